//! A unit that is taken over while it translates keeps the devices of its previous owner, until each is released.

use super::domains::{TABLES, drained};
use super::fake_unit::*;
use super::host::Host;
use super::{CONFIG, Driver, close, finish, open, page};
use crate::spec::descriptors::{ContextScope, InvalidationDescriptor, IotlbScope};
use crate::spec::registers::*;
use crate::spec::tables::{ContextEntry, RootEntry, TranslationType, context_index, root_index};
use crate::{BringUpError, InheritanceError, TakeOver, Unit};
use portcullis::iommu::{AttachError, DomainId, Iommu, QueueError, SourceId};
use portcullis::{NoMemory, PhysAddr};

/// The tables of the previous owner.
const ROOT: u64 = 0x12_3000;
const CONTEXTS: u64 = 0x45_6000;
/// Devices on two buses; the first two share a domain.
const DEVICES: [SourceId; 3] = [SourceId::new(0, 3, 0), SourceId::new(0, 31, 7), SourceId::new(0xff, 0, 0)];
const FREE: SourceId = SourceId::new(0, 3, 1);

/// The context entry that the previous owner gave `DEVICES[number]`.
pub(super) fn entry(number: usize) -> ContextEntry {
    ContextEntry {
        faults_disabled: number == 1,
        translation_type: if number == 2 { TranslationType::PassThrough } else { TranslationType::Untranslated },
        table: PhysAddr::new(0x77_7000),
        levels: if number == 2 { 4 } else { 3 },
        domain: DomainId([5, 5, 2][number]),
    }
}

fn put(host: &Host, device: SourceId, words: [u64; 2]) {
    let contexts = CONTEXTS + 0x1000 * root_index(device) as u64;
    let root = RootEntry { context_table: PhysAddr::new(contexts) };
    host.write_foreign(ROOT, root_index(device), root.encode());
    host.write_foreign(contexts, context_index(device), words);
}

/// Leaves the unit translating for another owner.
pub(super) fn left_on(fake: &FakeUnit<'_>, host: &Host) {
    (0..).zip(DEVICES).for_each(|(number, device)| put(host, device, entry(number).encode()));
    fake.with(|state| {
        (state.root, state.status) = (ROOT, global::TRANSLATION | global::QUEUED_INVALIDATION);
        state.watched = Some(DEVICES[0]);
    });
}

pub(super) fn take_over<'u>(host: &'u Host, fake: &'u FakeUnit<'u>) -> Result<Driver<'u>, BringUpError> {
    take_over_with(host, fake, |_| Ok(()))
}

fn take_over_with<'u>(
    host: &'u Host,
    fake: &'u FakeUnit<'u>,
    admit: impl FnOnce(&Driver<'u>) -> Result<(), AttachError>,
) -> Result<Driver<'u>, BringUpError> {
    // SAFETY: no memory is behind the fake unit.
    unsafe { Unit::take_over(fake, host, CONFIG, TakeOver::Always, admit) }
}

fn inherited(unit: &Driver<'_>) -> Vec<SourceId> {
    unit.inherited_devices().collect()
}

#[test]
fn devices_go_on_until_they_are_released() {
    for (coherent, caching) in [(true, false), (false, false), (false, true)] {
        let host = Host::new(coherent);
        let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_cm(caching).with_rwbf(caching), EXTENDED);
        left_on(&fake, &host);
        let before = host.foreign();
        let unit = take_over(&host, &fake).expect("a unit that was in use");
        assert_ne!(fake.with(|state| state.root), ROOT, "it uses our root table");
        assert_eq!(fake.with(|state| state.opened), 0, "translation was never off");
        assert_eq!(host.fake.frames_lent(), 6, "four, and a context table for each bus");
        (0..).zip(DEVICES).for_each(|(number, device)| assert_eq!(fake.context(device), Some(entry(number))));
        assert_eq!(fake.context(FREE), None, "a device without a domain still has none");
        assert_eq!(inherited(&unit), DEVICES);

        let domain = open(&unit, TABLES).expect("an id");
        for device in DEVICES {
            assert_eq!(unit.attach(domain, device), Err(AttachError::Inherited(device)));
            assert_eq!(unit.detach(domain, device), Err(AttachError::NotAttached(device)));
        }
        // Their domain does not belong to us.
        let old = entry(0).domain;
        assert_eq!(unit.attach(old, FREE), Err(AttachError::NoSuchDomain(old)));
        assert_eq!(unit.detach(old, DEVICES[0]), Err(AttachError::Inherited(DEVICES[0])));
        assert_eq!(close(&unit, old), Err(AttachError::NoSuchDomain(old)));
        unit.attach(domain, FREE).expect("a free device beside them");
        assert_eq!(unit.release_inherited(FREE), Err(AttachError::NotAttached(FREE)), "it is ours");

        fake.take_executed();
        fake.with(|state| state.flushed_contexts.clear());
        unit.release_inherited(DEVICES[0]).expect("inherited");
        let scope = ContextScope::Device { domain: old, source: DEVICES[0], function_mask: 0 };
        let expected = [InvalidationDescriptor::ContextCache(scope), drained(IotlbScope::Domain(old))];
        assert_eq!(fake.take_executed()[..2], expected);
        assert_eq!(fake.with(|state| state.flushed_contexts.clone()), [(DEVICES[0], None)], "cleared, then flushed");
        assert_eq!(unit.release_inherited(DEVICES[0]), Err(AttachError::NotAttached(DEVICES[0])), "released");
        assert_eq!((inherited(&unit), fake.context(DEVICES[1])), (DEVICES[1..].to_vec(), Some(entry(1))));
        unit.attach(domain, DEVICES[0]).expect("it is free now");
        assert_eq!(fake.context(DEVICES[0]).map(|context| context.domain), Some(domain));
        unit.detach(domain, DEVICES[0]).expect("attached");

        // A halt changes nothing, because everything is in our own tables.
        unit.halt().expect("it stops");
        fake.lose_power();
        unit.resume().expect("a sound unit");
        assert_eq!([1, 2].map(|number| fake.context(DEVICES[number])), [1, 2].map(|number| Some(entry(number))));
        // SAFETY: no memory is behind the fake unit.
        unsafe { unit.shut_down() }.expect("it stops");
        assert_eq!(host.fake.frames_lent(), 0);
        assert_eq!(host.foreign(), before, "the previous owner's tables are unchanged");
    }
}

/// Hardware must not find what it cached for the previous owner's domain in one of our domains, even after all
/// devices of that owner are gone.
#[test]
fn ids_of_the_previous_owner_are_never_used() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_nd(0), EXTENDED);
    left_on(&fake, &host);
    let unit = take_over(&host, &fake).expect("a unit that was in use");
    for round in 0..3 {
        let ids: Vec<u16> = core::iter::from_fn(|| open(&unit, TABLES).ok()).map(|id| id.0).collect();
        let mut sorted = ids.clone();
        sorted.sort_unstable();
        let free: Vec<u16> = (1..16).filter(|id| ![2, 5].contains(id)).collect();
        assert_eq!(sorted, free, "round {round}");
        assert_eq!(open(&unit, TABLES), Err(AttachError::NoDomainId));
        ids.into_iter().for_each(|id| close(&unit, DomainId(id)).expect("open"));
        DEVICES.iter().for_each(|device| _ = unit.release_inherited(*device));
        assert_eq!(inherited(&unit), []);
    }
}

/// `admit` may release an inherited device and attach it: hardware sees the old entry and then the new one.
#[test]
fn admission_waits_for_a_release() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    left_on(&fake, &host);
    let device = DEVICES[0];
    let mut domain = DomainId(0);
    let unit = take_over_with(&host, &fake, |unit| {
        domain = open(unit, TABLES)?;
        assert_eq!(unit.attach(domain, device), Err(AttachError::Inherited(device)));
        unit.release_inherited(device)?;
        unit.attach(domain, device)
    });
    let unit = unit.expect("a unit that was in use");
    assert_eq!(fake.with(|state| state.seen_at_root.clone()), [fake.context(device)], "as the root was set");
    assert_eq!(fake.context(device).map(|context| context.domain), Some(domain));
    assert_eq!(inherited(&unit), DEVICES[1..]);

    // If the device is refused, the previous owner's tables stay in use.
    let (host, other) = (Host::new(true), FakeUnit::new(&host));
    left_on(&other, &host);
    let refused = take_over_with(&host, &other, |unit| unit.attach(open(unit, TABLES)?, device)).err();
    assert_eq!(refused, Some(BringUpError::Admission(AttachError::Inherited(device))));
    assert_eq!(other.with(|state| (state.root, state.commands.len())), (ROOT, 0));
    assert_eq!(host.fake.frames_lent(), 0);
}

/// After a release that the hardware does not confirm, the device still counts as inherited and can be released
/// again.
#[test]
fn a_release_that_fails_can_be_made_again() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    left_on(&fake, &host);
    let unit = take_over(&host, &fake).expect("a unit that was in use");
    let domain = open(&unit, TABLES).expect("an id");
    fake.behave(Behaviour::Silent);
    let device = DEVICES[1];
    assert_eq!(unit.release_inherited(device), Err(AttachError::Queue(QueueError::Timeout(50))));
    assert_eq!(fake.context(device), None, "as far as it could be");
    assert_eq!(unit.attach(domain, device), Err(AttachError::Inherited(device)));
    assert_eq!(inherited(&unit), DEVICES);
    fake.behave(Behaviour::Prompt);
    unit.release_inherited(device).expect("it answers again");
    unit.attach(domain, device).expect("a free device");
    let ticket = unit.submit(&[page(domain.0, 1)]).expect("room");
    assert_eq!(finish(&unit, &host, ticket), Ok(()));
}

/// State that cannot be carried on is refused by name, before the unit is touched, and nothing is left behind.
#[test]
fn what_cannot_be_carried_on_is_refused() {
    let refused = |root: u64, capability: Capability, extended, change: &dyn Fn(&Host)| {
        let host = Host::new(true);
        let fake = FakeUnit::with_capabilities(&host, capability, extended);
        left_on(&fake, &host);
        change(&host);
        fake.with(|state| state.root = root);
        let error = take_over(&host, &fake).err().expect("a unit that cannot be taken over");
        let touched = fake.with(|state| (state.commands.len(), state.tail_writes, state.root));
        assert_eq!((touched, host.fake.frames_lent()), ((0, 0, root), 0), "{error}");
        match error {
            BringUpError::Inheritance(error) => error,
            other => panic!("{other}"),
        }
    };
    let as_it_is: &dyn Fn(&Host) = &|_| {};
    for mode in [1 << 10, 2 << 10, 3 << 10] {
        assert_eq!(refused(ROOT | mode, CAPABILITY, EXTENDED, as_it_is), InheritanceError::Mode(ROOT | mode));
    }
    let nowhere = PhysAddr::new(0x9_9999_9000);
    let unreadable = InheritanceError::Unreadable(nowhere);
    assert_eq!(refused(nowhere.as_u64(), CAPABILITY, EXTENDED, as_it_is), unreadable);
    let leads_nowhere = RootEntry { context_table: nowhere }.encode();
    assert_eq!(refused(ROOT, CAPABILITY, EXTENDED, &|host| host.write_foreign(ROOT, 7, leads_nowhere)), unreadable);

    let root = InheritanceError::Root { bus: 7, low: 0x7003, high: 0 };
    assert_eq!(refused(ROOT, CAPABILITY, EXTENDED, &|host| host.write_foreign(ROOT, 7, [0x7003, 0])), root);
    // Reserved bits; a depth and a type that the hardware lacks; a domain id that is too wide for it.
    let three_levels = ContextEntry { levels: 3, ..entry(2) }.encode();
    let rings = ContextEntry { translation_type: TranslationType::Rings, ..entry(0) }.encode();
    let wide = ContextEntry { domain: DomainId(16), ..entry(0) }.encode();
    let four_only = CAPABILITY.with_sagaw(widths::LEVELS_4);
    for (words, capability, extended) in [
        ([0x77_7011, 2], CAPABILITY, EXTENDED),
        ([0x77_7001, 1 << 32], CAPABILITY, EXTENDED),
        (three_levels, four_only, EXTENDED),
        (entry(2).encode(), CAPABILITY, EXTENDED.with_pt(false)),
        (rings, CAPABILITY, EXTENDED),
        (wide, CAPABILITY.with_nd(0), EXTENDED),
    ] {
        let alone = |host: &Host| {
            // Only this device has an entry.
            DEVICES.iter().for_each(|device| put(host, *device, [0; 2]));
            put(host, FREE, words);
        };
        let context = InheritanceError::Context { device: FREE, low: words[0], high: words[1] };
        assert_eq!(refused(ROOT, capability, extended, &alone), context);
    }
}

/// Firmware that has left translation on is also a previous owner. Nothing is inherited if translation is off.
#[test]
fn firmware_leaves_devices_too() {
    for (status, devices) in [(global::TRANSLATION, &DEVICES[..]), (0, &[]), (global::QUEUED_INVALIDATION, &[])] {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        left_on(&fake, &host);
        fake.with(|state| state.status = status);
        let from = if status & global::QUEUED_INVALIDATION == 0 { TakeOver::Firmware } else { TakeOver::Always };
        // SAFETY: no memory is behind the fake unit.
        let unit = unsafe { Unit::take_over(&fake, &host, CONFIG, from, |_| Ok(())) }.expect("a sound unit");
        assert_eq!(inherited(&unit), devices);
        assert_eq!(fake.context(DEVICES[0]).is_some(), !devices.is_empty());
    }
}

/// A unit that was taken over can be taken over again, with the devices of both previous owners.
#[test]
fn inheritance_is_inherited() {
    let host = Host::new(false);
    let fake = FakeUnit::new(&host);
    left_on(&fake, &host);
    let first = take_over(&host, &fake).expect("a unit that was in use");
    let domain = open(&first, TABLES).expect("an id");
    first.attach(domain, FREE).expect("a free device");
    drop(first);
    let (entries, pages) = (fake.context(FREE), host.fake.frames_lent());
    let second = take_over(&host, &fake).expect("a unit that was in use");
    assert_eq!(inherited(&second), [DEVICES[0], FREE, DEVICES[1], DEVICES[2]]);
    assert_eq!((fake.context(FREE), fake.context(DEVICES[2])), (entries, Some(entry(2))));
    let id = open(&second, TABLES).expect("an id");
    assert!(![domain, entry(0).domain, entry(2).domain].contains(&id));
    // SAFETY: no memory is behind the fake unit.
    unsafe { second.shut_down() }.expect("it stops");
    assert_eq!(host.fake.frames_lent(), pages, "the pages of the first unit stay allocated");
}

/// Each page that a take-over needs may be refused. Then nothing is left behind, and the unit is as it was.
#[test]
fn no_memory_leaves_the_previous_owner_in_force() {
    for pages in 0..5 {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        left_on(&fake, &host);
        host.fake.limit_frames(pages);
        assert_eq!(take_over(&host, &fake).err(), Some(BringUpError::NoMemory(NoMemory)));
        assert_eq!(fake.with(|state| (state.commands.len(), state.root)), (0, ROOT));
        assert_eq!(host.fake.frames_lent(), 0);
    }
}
