//! Several units joined: a command reaches all of them, and a domain is closed once each of them has closed it.

use super::domains::{TABLES, drained};
use super::fake_unit::*;
use super::host::Host;
use super::{Driver, bring_up, close, finish, open, page, page_descriptor, pass_time, without_waits};
use crate::spec::descriptors::{ContextScope, InvalidationDescriptor, IotlbScope};
use crate::{Unit, UnitConfig, Units};
use portcullis::Iova;
use portcullis::iommu::{AttachError, DomainId, Invalidation, Iommu, QueueError, SourceId};

const UNITS: usize = 3;

/// Bus `n` is behind unit `n`.
fn by_bus(device: SourceId) -> Option<usize> {
    Some(usize::from(device.requester() >> 8)).filter(|index| *index < UNITS)
}

/// A device behind unit `index`.
fn device(index: usize) -> SourceId {
    SourceId::from_requester((index << 8 | 0x10) as u16)
}

/// Another device behind unit `index`.
fn neighbour(index: usize) -> SourceId {
    SourceId::from_requester(device(index).requester() + 1)
}

type Joined<'u, 'a> = Units<'u, Driver<'a>, &'a Host, fn(SourceId) -> Option<usize>>;

fn join<'u, 'a>(units: &'u [Driver<'a>; UNITS], host: &'a Host) -> Joined<'u, 'a> {
    Units::new(units, host, by_bus as fn(SourceId) -> Option<usize>, 1000).expect("three units")
}

/// Unit `n` has handed out `n` ids before, so a domain has a different id on each unit: see [`local`].
fn bring_up_all<'a>(fakes: &'a [FakeUnit<'a>; UNITS], host: &'a Host) -> [Driver<'a>; UNITS] {
    let units = fakes.each_ref().map(|fake| bring_up(fake, host));
    for (index, unit) in units.iter().enumerate() {
        for _ in 0..index {
            open(&unit, TABLES).expect("an id");
        }
    }
    units
}

/// The id of a domain on unit `index`.
fn local(domain: DomainId, index: usize) -> DomainId {
    DomainId(domain.0 + index as u16)
}

fn submit<I: Iommu>(iommu: &I, commands: &[Invalidation], shared: bool) -> I::Ticket {
    if shared { iommu.submit_shared(commands) } else { iommu.submit(commands) }.expect("room")
}

#[test]
fn a_global_command_reaches_every_unit() {
    let host = Host::new(true);
    let fakes = [(); UNITS].map(|()| FakeUnit::new(&host));
    let units = bring_up_all(&fakes, &host);
    let joined = join(&units, &host);
    for shared in [false, true] {
        // No domain is open, and the command names none.
        let ticket = submit(&joined, &[Invalidation::Global], shared);
        assert_eq!(joined.is_done(ticket), Ok(true));
        for fake in &fakes {
            assert_eq!(without_waits(fake.take_executed()), [drained(IotlbScope::Global)]);
        }
    }
}

#[test]
fn every_kind_of_command_reaches_every_unit_under_the_id_that_the_domain_has_there() {
    let host = Host::new(true);
    let fakes = [(); UNITS].map(|()| FakeUnit::new(&host));
    let units = bring_up_all(&fakes, &host);
    let joined = join(&units, &host);
    let (one, two) = (open(&joined, TABLES).expect("an id"), open(&joined, TABLES).expect("an id"));
    // 2 MiB, all levels.
    let (first, mask, leaf_only) = (Iova::new(0x60_0000), 9, false);
    let commands = [
        page(one.0, 5),
        Invalidation::Pages { domain: two, first, mask, leaf_only },
        Invalidation::Domain(one),
        Invalidation::Global,
        Invalidation::Domain(two),
        page(two.0, 6),
    ];
    for shared in [false, true] {
        for last in 0..UNITS {
            fakes.iter().for_each(|fake| fake.behave(Behaviour::Holding));
            let ticket = submit(&joined, &commands, shared);
            for (index, fake) in fakes.iter().enumerate() {
                let (one, two) = (local(one, index), local(two, index));
                let expected = [
                    page_descriptor(one.0, 5),
                    drained(IotlbScope::Pages { domain: two, first, mask, leaf_only }),
                    drained(IotlbScope::Domain(one)),
                    drained(IotlbScope::Global),
                    drained(IotlbScope::Domain(two)),
                    page_descriptor(two.0, 6),
                ];
                assert_eq!(without_waits(fake.take_executed()), expected, "unit {index}");
            }
            (0..UNITS).filter(|index| *index != last).for_each(|index| fakes[index].land(0));
            assert_eq!(joined.is_done(ticket), Ok(false), "unit {last} is not through");
            fakes[last].land(0);
            assert_eq!(joined.is_done(ticket), Ok(true));
        }
    }
}

#[test]
fn an_error_on_any_unit_is_told_whether_or_not_the_others_are_through() {
    for (failing, shared) in (0..UNITS).flat_map(|index| [(index, false), (index, true)]) {
        let host = Host::new(true);
        let fakes = [(); UNITS].map(|()| FakeUnit::new(&host));
        let units = bring_up_all(&fakes, &host);
        let joined = join(&units, &host);
        let domain = open(&joined, TABLES).expect("an id");
        fakes.iter().for_each(|fake| fake.behave(Behaviour::Holding));
        let refused = page_descriptor(local(domain, failing).0, 5).encode();
        fakes[failing].with(|state| state.refuse = Some(refused));
        let ticket = submit(&joined, &[page(domain.0, 4), page(domain.0, 5)], shared);
        pass_time(&host);
        assert_eq!(joined.is_done(ticket), Err(QueueError::Descriptor));
        fakes.iter().for_each(|fake| fake.land(0));
        assert_eq!(joined.is_done(ticket), Err(QueueError::Descriptor));
    }
}

/// Ways in which the flush of a close fails.
#[derive(Clone, Copy, Debug)]
enum Failing {
    Silent,
    Refusing,
}

impl Failing {
    fn begin(self, fake: &FakeUnit<'_>, domain: DomainId) -> AttachError {
        AttachError::Queue(match self {
            Self::Silent => {
                fake.behave(Behaviour::Silent);
                QueueError::Timeout(1000)
            }
            Self::Refusing => {
                fake.with(|state| state.refuse = Some(drained(IotlbScope::Domain(domain)).encode()));
                QueueError::Descriptor
            }
        })
    }

    fn end(fake: &FakeUnit<'_>) {
        fake.behave(Behaviour::Prompt);
        fake.with(|state| state.refuse = None);
    }
}

/// The units before the failing one have closed their part and may reuse its id. On the failing unit and those after
/// it, the domain is open: commands for it are executed, its devices count as attached, and it can be closed again.
#[test]
fn a_domain_that_one_unit_does_not_close_stays_open_from_there_on() {
    for (failing, how) in (0..UNITS).flat_map(|index| [(index, Failing::Silent), (index, Failing::Refusing)]) {
        let host = Host::new(true);
        let fakes = [(); UNITS].map(|()| FakeUnit::new(&host));
        let units = bring_up_all(&fakes, &host);
        let joined = join(&units, &host);
        let (domain, other) = (open(&joined, TABLES).expect("an id"), open(&joined, TABLES).expect("an id"));
        for index in 0..UNITS {
            joined.attach(domain, device(index)).expect("a free device");
        }
        let error = how.begin(&fakes[failing], local(domain, failing));
        for attempt in 0..3 {
            let error = match how {
                // A queue that has not answered is not waited for again.
                Failing::Silent if attempt > 0 => AttachError::Queue(QueueError::Unresponsive),
                _ => error,
            };
            assert_eq!(close(&joined, domain), Err(error), "attempt {attempt} with unit {failing} {how:?}");
        }
        Failing::end(&fakes[failing]);
        assert_ne!(open(&joined, TABLES), Ok(domain), "its id is taken");

        // The commands that the silent unit had received are executed at the next doorbell.
        let ticket = joined.submit(&[]).expect("room");
        assert_eq!(finish(&joined, &host, ticket), Ok(()));
        fakes.iter().for_each(|fake| drop(fake.take_executed()));
        let ticket = joined.submit(&[page(domain.0, 5), Invalidation::Domain(domain)]).expect("room");
        assert_eq!(joined.is_done(ticket), Ok(true));
        for (index, fake) in fakes.iter().enumerate() {
            let (device, neighbour) = (device(index), neighbour(index));
            let executed = without_waits(fake.take_executed());
            assert_eq!(fake.context(device).is_some(), index > failing, "contexts go first");
            if index < failing {
                assert_eq!(executed, []);
                joined.attach(other, device).expect("closed here, so a free device");
                assert_eq!(joined.attach(domain, neighbour), Err(AttachError::Unsupported));
                assert_eq!(joined.detach(domain, neighbour), Err(AttachError::NotAttached(neighbour)));
            } else {
                let domain_there = local(domain, index);
                assert_eq!(executed, [page_descriptor(domain_there.0, 5), drained(IotlbScope::Domain(domain_there))]);
                assert_eq!(joined.attach(other, device), Err(AttachError::Attached(device)));
                joined.attach(domain, neighbour).expect("open here");
            }
        }

        close(&joined, domain).expect("every unit answers");
        for (index, (fake, unit)) in fakes.iter().zip(&units).enumerate() {
            let (device, closed) = (device(index), local(domain, index));
            let executed = without_waits(fake.take_executed());
            assert_eq!(fake.context(neighbour(index)), None);
            if index < failing {
                assert_eq!(executed, [], "closed before");
                assert_eq!(fake.context(device).map(|entry| entry.domain), Some(local(other, index)));
            } else {
                let contexts = InvalidationDescriptor::ContextCache(ContextScope::Domain(closed));
                assert_eq!(executed, [contexts, drained(IotlbScope::Domain(closed))]);
                assert_eq!(fake.context(device), None);
                joined.attach(other, device).expect("a free device");
            }
            assert_eq!(close(&unit, closed), Err(AttachError::NoSuchDomain(closed)), "unit {index}");
        }
        assert_eq!(close(&joined, domain), Err(AttachError::NoSuchDomain(domain)));
        assert_eq!(joined.submit(&[page(domain.0, 5)]).err(), Some(QueueError::Unsupported));
    }
}

#[test]
fn a_domain_that_one_unit_cannot_open_is_open_on_none() {
    for failing in 0..UNITS {
        let host = Host::new(true);
        // All units but one have the most ids possible.
        let capability = |index| if index == failing { CAPABILITY.with_nd(0) } else { CAPABILITY };
        let fakes = [0, 1, 2].map(|index| FakeUnit::with_capabilities(&host, capability(index), EXTENDED));
        let units = fakes.each_ref().map(|fake| bring_up(fake, &host));
        let joined = join(&units, &host);
        for _ in 0..15 {
            open(&units[failing], TABLES).expect("an id");
        }
        assert_eq!(open(&joined, TABLES), Err(AttachError::NoDomainId));
        for (index, unit) in units.iter().enumerate().filter(|(index, _)| *index != failing) {
            let closed = (1..=UNITS as u16).map(DomainId).find(|id| close(&unit, *id).is_ok());
            assert_eq!(closed, None, "on unit {index}");
        }
        close(&units[failing], DomainId(9)).expect("an open domain");
        let domain = open(&joined, TABLES).expect("an id again");
        joined.attach(domain, device(failing)).expect("a free device");
        assert_eq!(fakes[failing].context(device(failing)).expect("an entry").domain, DomainId(9));
    }
}

#[test]
fn the_narrowest_unit_says_how_wide_addresses_are() {
    for narrow in 0..UNITS {
        let host = Host::new(true);
        let capability = |index| if index == narrow { CAPABILITY.with_mgaw(38) } else { CAPABILITY };
        let fakes = [0, 1, 2].map(|index| FakeUnit::with_capabilities(&host, capability(index), EXTENDED));
        let units = [0, 1, 2].map(|index| {
            let physical_bits = if index == narrow { 46 } else { 52 };
            let config = UnitConfig { physical_bits, ..UnitConfig::default() };
            Unit::bring_up(&fakes[index], &host, config).expect("a sound unit")
        });
        let capabilities = join(&units, &host).capabilities();
        assert_eq!((capabilities.address_bits, capabilities.physical_bits), (39, 46));
    }
}
