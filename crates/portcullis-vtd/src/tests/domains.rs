use super::fake_unit::*;
use super::host::Host;
use super::{bring_up, close, open, without_waits};
use crate::spec::descriptors::{ContextScope, InvalidationDescriptor, IotlbScope};
use crate::spec::tables::{ContextEntry, TranslationType};
use portcullis::iommu::{AttachError, DomainId, Iommu, QueueError, SourceId, Translation};
use portcullis::{NoMemory, PhysAddr};
use std::sync::atomic::Ordering;

pub(super) const TABLES: Translation = Translation::Tables { root: PhysAddr::new(0x7000), levels: 4 };
const DEVICE: SourceId = SourceId::new(1, 3, 0);

pub(super) fn drained(scope: IotlbScope) -> InvalidationDescriptor {
    InvalidationDescriptor::Iotlb { scope, drain_writes: true, drain_reads: true }
}

#[test]
fn capabilities_come_from_the_registers() {
    let host = Host::new(false);
    let fake = FakeUnit::new(&host);
    let capabilities = bring_up(&fake, &host).capabilities();
    assert!(capabilities.three_level && capabilities.four_level && capabilities.leaf_2m && capabilities.leaf_1g);
    assert!(!capabilities.coherent && !capabilities.caches_absent && capabilities.pass_through);
    assert_eq!((capabilities.address_mask_max, capabilities.physical_bits), (Some(18), 52));

    let poor = CAPABILITY.with_sagaw(0b10).with_sllps(0).with_psi(false).with_cm(true);
    let fake = FakeUnit::with_capabilities(&host, poor, EXTENDED.with_pt(false).with_coherent(true));
    let capabilities = bring_up(&fake, &host).capabilities();
    assert!(capabilities.three_level && !capabilities.four_level && !capabilities.leaf_2m && !capabilities.leaf_1g);
    assert!(capabilities.coherent && capabilities.caches_absent && !capabilities.pass_through);
    assert_eq!(capabilities.address_mask_max, None);

    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_rwbf(true), EXTENDED);
    assert!(bring_up(&fake, &host).capabilities().caches_absent, "an invalidation is what flushes the write buffer");
}

#[test]
fn a_device_reaches_its_domain_and_then_nothing() {
    for coherent in [true, false] {
        let host = Host::new(coherent);
        let fake = FakeUnit::new(&host);
        let unit = bring_up(&fake, &host);
        let domain = open(&unit, TABLES).expect("an id");
        assert_eq!(fake.context(DEVICE), None);
        unit.attach(domain, DEVICE).expect("a free device");
        let entry = ContextEntry {
            faults_disabled: false,
            translation_type: TranslationType::Untranslated,
            table: PhysAddr::new(0x7000),
            levels: 4,
            domain,
        };
        assert_eq!(fake.context(DEVICE), Some(entry));
        assert_eq!(fake.context(SourceId::from_requester(DEVICE.requester() + 1)), None);
        assert_eq!(fake.take_executed(), [], "nothing absent is cached, so an attach flushes nothing");

        unit.detach(domain, DEVICE).expect("an attached device");
        assert_eq!(fake.context(DEVICE), None);
        let executed = fake.take_executed();
        let scope = ContextScope::Device { domain, source: DEVICE, function_mask: 0 };
        assert_eq!(executed[..2], [InvalidationDescriptor::ContextCache(scope), drained(IotlbScope::Domain(domain))]);

        // If it were flushed before it is cleared, the next request would cache it again.
        assert_eq!(fake.with(|state| state.flushed_contexts.clone()), [(DEVICE, None)], "cleared, then flushed");

        close(&unit, domain).expect("an open domain");
        // SAFETY: no memory is behind the fake unit.
        unsafe { unit.shut_down() }.expect("it stops");
        assert_eq!(host.fake.frames_lent(), 0, "context tables go with the unit");
    }
}

#[test]
fn without_barriers_a_non_coherent_unit_sees_no_context() {
    let host = Host::new(false);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    let domain = open(&unit, TABLES).expect("an id");
    host.forget_barriers.store(true, Ordering::Relaxed);
    unit.attach(domain, DEVICE).expect("a free device");
    assert_eq!(fake.context(DEVICE), None);
    host.forget_barriers.store(false, Ordering::Relaxed);
}

#[test]
fn caching_mode_flushes_what_was_absent() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_cm(true), EXTENDED);
    let unit = bring_up(&fake, &host);
    let domain = open(&unit, TABLES).expect("an id");
    unit.attach(domain, DEVICE).expect("a free device");
    let absent = ContextScope::Device { domain: DomainId(0), source: DEVICE, function_mask: 0 };
    assert_eq!(
        fake.take_executed()[..2],
        [InvalidationDescriptor::ContextCache(absent), drained(IotlbScope::Domain(domain))]
    );
}

#[test]
fn a_write_buffer_is_flushed_at_attach() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_rwbf(true), EXTENDED);
    let unit = bring_up(&fake, &host);
    let domain = open(&unit, TABLES).expect("an id");
    let before = fake.with(|state| (state.write_buffer_flushes, state.commands.len()));
    unit.attach(domain, DEVICE).expect("a free device");
    // By an invalidation, because any invalidation flushes the write buffer.
    assert_eq!(fake.take_executed()[..1], [drained(IotlbScope::Domain(domain))]);
    assert_eq!(fake.with(|state| (state.write_buffer_flushes, state.commands.len())), before, "and not by a register");
}

#[test]
fn pass_through_names_the_deepest_tables() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_sagaw(0b01110), EXTENDED);
    let unit = bring_up(&fake, &host);
    let domain = open(&unit, Translation::PassThrough).expect("an id");
    unit.attach(domain, DEVICE).expect("a free device");
    let entry = fake.context(DEVICE).expect("an entry");
    assert_eq!((entry.translation_type, entry.levels), (TranslationType::PassThrough, 5));
    drop(unit);

    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_sagaw(0b00010), EXTENDED.with_pt(false));
    let unit = bring_up(&fake, &host);
    assert_eq!(open(&unit, Translation::PassThrough), Err(AttachError::Unsupported));
    assert_eq!(open(&unit, TABLES), Err(AttachError::Unsupported));
    let three = Translation::Tables { root: PhysAddr::new(0x7000), levels: 3 };
    assert!(open(&unit, three).is_ok());
    for (root, levels) in [(0x7008, 3), (0x7000, 2), (0x7000, 5)] {
        let tables = Translation::Tables { root: PhysAddr::new(root), levels };
        assert_eq!(open(&unit, tables), Err(AttachError::Unsupported));
    }
}

#[test]
fn ids_are_never_zero_and_run_out() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_nd(0), EXTENDED);
    let unit = bring_up(&fake, &host);
    let ids: Vec<u16> = (0..15).map(|_| open(&unit, TABLES).expect("an id").0).collect();
    assert_eq!(ids, (1..16).collect::<Vec<u16>>());
    assert_eq!(open(&unit, TABLES), Err(AttachError::NoDomainId));
    close(&unit, DomainId(9)).expect("an open domain");
    close(&unit, DomainId(4)).expect("an open domain");
    assert_eq!(close(&unit, DomainId(4)), Err(AttachError::NoSuchDomain(DomainId(4))));
    assert_eq!(open(&unit, TABLES), Ok(DomainId(4)));
    assert_eq!(open(&unit, TABLES), Ok(DomainId(9)));

    let fake = FakeUnit::new(&host);
    let wide = bring_up(&fake, &host);
    assert_eq!((1..=u16::MAX).find(|id| open(&wide, TABLES) != Ok(DomainId(*id))), None);
    assert_eq!(open(&wide, TABLES), Err(AttachError::NoDomainId));
}

#[test]
fn refused_attachments_change_nothing() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    let (one, two) = (open(&unit, TABLES).expect("an id"), open(&unit, TABLES).expect("an id"));
    let nowhere = DomainId(99);
    assert_eq!(unit.attach(nowhere, DEVICE), Err(AttachError::NoSuchDomain(nowhere)));
    host.fake.limit_frames(0);
    assert_eq!(unit.attach(one, DEVICE), Err(AttachError::NoMemory(NoMemory)));
    assert_eq!(unit.detach(one, DEVICE), Err(AttachError::NotAttached(DEVICE)));
    host.fake.limit_frames(9);
    unit.attach(one, DEVICE).expect("a free device");
    assert_eq!(unit.attach(one, DEVICE), Err(AttachError::Attached(DEVICE)));
    assert_eq!(unit.attach(two, DEVICE), Err(AttachError::Attached(DEVICE)));
    assert_eq!(unit.detach(two, DEVICE), Err(AttachError::NotAttached(DEVICE)));
    assert_eq!(fake.context(DEVICE).expect("an entry").domain, one);
}

#[test]
fn closing_takes_every_device_out_first() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    let (one, two) = (open(&unit, TABLES).expect("an id"), open(&unit, TABLES).expect("an id"));
    for device in [0x10, 0x210, 0x218] {
        unit.attach(one, SourceId::from_requester(device)).expect("a free device");
    }
    unit.attach(two, SourceId::new(2, 4, 0)).expect("a free device");
    close(&unit, one).expect("an open domain");
    for device in [0x10, 0x210, 0x218] {
        assert_eq!(fake.context(SourceId::from_requester(device)), None);
    }
    assert!(fake.context(SourceId::new(2, 4, 0)).is_some());
    let flushes = [InvalidationDescriptor::ContextCache(ContextScope::Domain(one)), drained(IotlbScope::Domain(one))];
    assert_eq!(fake.take_executed()[..2], flushes);
}

#[test]
fn the_devices_of_a_closed_domain_are_free_and_those_of_others_are_not() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    let (one, two) = (open(&unit, TABLES).expect("an id"), open(&unit, TABLES).expect("an id"));
    let (freed, kept) =
        ([0x10, 0x210, 0x218].map(SourceId::from_requester), [0x11, 0x220].map(SourceId::from_requester));
    freed.iter().for_each(|device| unit.attach(one, *device).expect("a free device"));
    kept.iter().for_each(|device| unit.attach(two, *device).expect("a free device"));
    close(&unit, one).expect("an open domain");
    for device in freed {
        assert_eq!(unit.detach(one, device), Err(AttachError::NotAttached(device)));
        assert_eq!(unit.attach(one, device), Err(AttachError::NoSuchDomain(one)));
        unit.attach(two, device).expect("a free device");
        assert_eq!(fake.context(device).expect("an entry").domain, two);
    }
    for device in kept {
        assert_eq!(unit.attach(two, device), Err(AttachError::Attached(device)));
        assert_eq!(fake.context(device).expect("an entry").domain, two);
        unit.detach(two, device).expect("an attached device");
    }
}

/// A close clears the contexts before the flush (S10), so a close whose flush fails has still cut the devices off.
/// Until a flush succeeds, the hardware may have cached the contexts. So the devices stay attached, the domain stays
/// open and its id stays taken.
#[test]
fn a_close_that_fails_cuts_its_devices_off_and_keeps_them() {
    let (device, neighbour) = (DEVICE, SourceId::from_requester(DEVICE.requester() + 1));
    let flushes = |domain| {
        [InvalidationDescriptor::ContextCache(ContextScope::Domain(domain)), drained(IotlbScope::Domain(domain))]
    };
    for refused in [None, Some(0), Some(1)] {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        let unit = bring_up(&fake, &host);
        let (one, two) = (open(&unit, TABLES).expect("an id"), open(&unit, TABLES).expect("an id"));
        unit.attach(one, device).expect("a free device");
        unit.attach(two, neighbour).expect("a free device");
        let error = match refused {
            None => {
                fake.behave(Behaviour::Silent);
                QueueError::Timeout(1000)
            }
            Some(which) => {
                fake.with(|state| state.refuse = Some(flushes(one)[which].encode()));
                QueueError::Descriptor
            }
        };
        for attempt in 0..2 {
            // A queue that has not answered is not waited for again.
            let error = if attempt > 0 && refused.is_none() { QueueError::Unresponsive } else { error };
            assert_eq!(close(&unit, one), Err(AttachError::Queue(error)), "attempt {attempt}");
            assert_eq!(fake.context(device), None);
            assert!(fake.context(neighbour).is_some());
            assert_eq!(unit.attach(two, device), Err(AttachError::Attached(device)));
            assert_ne!(open(&unit, TABLES), Ok(one), "its id is taken");
        }
        fake.behave(Behaviour::Prompt);
        fake.with(|state| state.refuse = None);
        close(&unit, one).expect("open still");
        assert!(without_waits(fake.take_executed()).ends_with(&flushes(one)));
        assert_eq!(close(&unit, one), Err(AttachError::NoSuchDomain(one)));
        unit.attach(two, device).expect("a free device");
    }
}

#[test]
fn after_a_failed_flush_the_device_counts_as_attached() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    let domain = open(&unit, TABLES).expect("an id");
    unit.attach(domain, DEVICE).expect("a free device");
    fake.behave(Behaviour::Silent);
    assert_eq!(unit.detach(domain, DEVICE), Err(AttachError::Queue(QueueError::Timeout(1000))));
    assert_eq!(unit.attach(domain, DEVICE), Err(AttachError::Attached(DEVICE)));
    assert_eq!(close(&unit, domain), Err(AttachError::Queue(QueueError::Unresponsive)), "it is not waited for again");
    assert_ne!(open(&unit, TABLES), Ok(domain), "its id stays in use");
    // The queue answers again, so the caller can retry.
    fake.behave(Behaviour::Prompt);
    unit.detach(domain, DEVICE).expect("attached still");
    close(&unit, domain).expect("open still");
}

#[test]
fn an_attach_that_cannot_be_announced_must_be_undone_by_a_flush() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_cm(true), EXTENDED);
    let unit = bring_up(&fake, &host);
    let domain = open(&unit, TABLES).expect("an id");
    fake.behave(Behaviour::Silent);
    assert_eq!(unit.attach(domain, DEVICE), Err(AttachError::Queue(QueueError::Timeout(1000))));
    assert_eq!(fake.context(DEVICE), None);
    fake.behave(Behaviour::Prompt);
    unit.detach(domain, DEVICE).expect("it may have been seen");
    unit.attach(domain, DEVICE).expect("a free device");
}
