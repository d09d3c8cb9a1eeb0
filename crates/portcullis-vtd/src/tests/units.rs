use super::fake_unit::*;
use super::host::Host;
use super::{Driver, bring_up, close, open, page, page_descriptor, without_waits};
use crate::{UNITS_MAX, UnitCount, Units};
use portcullis::designs::Magazine;
use portcullis::iommu::fake::FakeIommu;
use portcullis::iommu::{AttachError, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation};
use portcullis::platform::fake::run_on;
use portcullis::{Access, Iova, Open, PhysAddr, Protection};

const TABLES: Translation = Translation::Tables { root: PhysAddr::new(0x7000), levels: 4 };

/// Bus 0 is behind unit 0, bus 1 behind unit 1.
fn by_bus(device: SourceId) -> Option<usize> {
    (device.requester() < 0x200).then_some(usize::from(device.requester() >> 8))
}

pub(super) type Both<'u, 'a> = Units<'u, Driver<'a>, &'a Host, fn(SourceId) -> Option<usize>>;

pub(super) fn join<'u, 'a>(units: &'u [Driver<'a>], host: &'a Host) -> Both<'u, 'a> {
    Units::new(units, host, by_bus as fn(SourceId) -> Option<usize>, 1000).expect("two units")
}

#[test]
fn what_all_can_do_is_what_each_can() {
    let host = Host::new(true);
    let poor = CAPABILITY.with_mamv(9).with_sagaw(0b100).with_sllps(1).with_cm(true);
    let fakes = [
        FakeUnit::with_capabilities(&host, CAPABILITY, EXTENDED.with_coherent(true)),
        FakeUnit::with_capabilities(&host, poor, EXTENDED.with_pt(false)),
    ];
    let units = [bring_up(&fakes[0], &host), bring_up(&fakes[1], &host)];
    let capabilities = join(&units, &host).capabilities();
    assert!(!capabilities.three_level && capabilities.four_level && capabilities.leaf_2m && !capabilities.leaf_1g);
    assert!(!capabilities.coherent && capabilities.caches_absent && !capabilities.pass_through);
    assert_eq!(capabilities.address_mask_max, Some(9));
    let alone = join(&units[..1], &host).capabilities();
    assert_eq!(alone, units[0].capabilities());

    let none: [Driver<'_>; 0] = [];
    assert_eq!(Units::new(&none, &host, by_bus, 1000).err(), Some(UnitCount(0)));
    let many: [_; UNITS_MAX + 1] = core::array::from_fn(|_| FakeIommu::new(&host.fake));
    assert_eq!(Units::new(&many, &host, by_bus, 1000).err(), Some(UnitCount(UNITS_MAX + 1)));
    assert!(Units::new(&many[1..], &host, by_bus, 1000).is_ok());
}

#[test]
fn a_domain_spans_units_under_different_ids() {
    let host = Host::new(true);
    let fakes = [FakeUnit::new(&host), FakeUnit::new(&host)];
    let units = [bring_up(&fakes[0], &host), bring_up(&fakes[1], &host)];
    // Unit 1 has handed out one id before.
    open(&units[1], TABLES).expect("an id");
    let both = join(&units, &host);
    let domain = open(&both, TABLES).expect("an id");
    both.attach(domain, SourceId::new(0, 2, 0)).expect("a free device");
    both.attach(domain, SourceId::new(1, 2, 0)).expect("a free device");
    assert_eq!(both.attach(domain, SourceId::new(2, 2, 0)), Err(AttachError::Unsupported));
    assert_eq!(both.attach(domain, SourceId::new(1, 2, 0)), Err(AttachError::Attached(SourceId::new(1, 2, 0))));
    assert_eq!(fakes[0].context(SourceId::new(0, 2, 0)).expect("an entry").domain, DomainId(1));
    assert_eq!(fakes[1].context(SourceId::new(1, 2, 0)).expect("an entry").domain, DomainId(2));
    assert_eq!(fakes[1].context(SourceId::new(0, 2, 0)), None);

    fakes.iter().for_each(|fake| fake.behave(Behaviour::Holding));
    let ticket = both.submit(&[page(domain.0, 5), Invalidation::Global]).expect("room");
    assert_eq!(without_waits(fakes[0].take_executed())[0], page_descriptor(1, 5));
    assert_eq!(without_waits(fakes[1].take_executed())[0], page_descriptor(2, 5));
    assert_eq!(both.is_done(ticket), Ok(false));
    fakes[1].land(0);
    assert_eq!(both.is_done(ticket), Ok(false), "done means done on every unit");
    fakes[0].land(0);
    assert_eq!(both.is_done(ticket), Ok(true));

    // At once, as an unmap does it: done where every unit is, and waited for where one is not.
    let Err(Ok(Some(ticket))) = both.try_invalidate(page(domain.0, 6)) else { panic!("both units hold the command") };
    for (fake, id) in fakes.iter().zip([1, 2]) {
        assert_eq!(without_waits(fake.take_executed()), [page_descriptor(id, 6)]);
    }
    fakes[1].land(0);
    assert_eq!(both.is_done(ticket), Ok(false), "done means done on every unit");
    fakes[0].land(0);
    assert_eq!(both.is_done(ticket), Ok(true));
    fakes.iter().for_each(|fake| fake.behave(Behaviour::Prompt));
    assert!(both.try_invalidate(page(domain.0, 7)).is_ok());
    for (fake, id) in fakes.iter().zip([1, 2]) {
        assert_eq!(without_waits(fake.take_executed()), [page_descriptor(id, 7)]);
    }

    both.detach(domain, SourceId::new(1, 2, 0)).expect("an attached device");
    assert_eq!(both.detach(domain, SourceId::new(1, 2, 0)), Err(AttachError::NotAttached(SourceId::new(1, 2, 0))));
    assert_eq!(both.detach(domain, SourceId::new(2, 2, 0)), Err(AttachError::NotAttached(SourceId::new(2, 2, 0))));
    close(&both, domain).expect("an open domain");
    assert_eq!(fakes[0].context(SourceId::new(0, 2, 0)), None);
    assert_eq!(close(&both, domain), Err(AttachError::NoSuchDomain(domain)));
    assert_eq!(both.submit(&[page(domain.0, 5)]).err(), Some(QueueError::Unsupported));
}

#[test]
fn a_large_submission_reaches_every_unit() {
    let host = Host::new(true);
    let fakes = [FakeUnit::new(&host), FakeUnit::new(&host)];
    let units = [bring_up(&fakes[0], &host), bring_up(&fakes[1], &host)];
    let both = join(&units, &host);
    let domain = open(&both, TABLES).expect("an id");
    let commands: Vec<_> = (0..300).map(|pfn| page(domain.0, pfn)).collect();
    let ticket = both.submit(&commands).expect("room");
    assert_eq!(both.is_done(ticket), Ok(true));
    for fake in &fakes {
        let expected: Vec<_> = (0..300).map(|pfn| page_descriptor(1, pfn)).collect();
        assert_eq!(without_waits(fake.take_executed()), expected);
    }
    fakes[1].behave(Behaviour::Silent);
    assert_eq!(both.submit(&commands).err(), Some(QueueError::Timeout(1000)));
}

/// A batch in flight is done when it is on every unit.
#[test]
fn a_batch_is_in_flight_on_every_unit() {
    let host = Host::new(true);
    let fakes = [FakeUnit::new(&host), FakeUnit::new(&host)];
    let units = [bring_up(&fakes[0], &host), bring_up(&fakes[1], &host)];
    let both = join(&units, &host);
    let domain = Magazine::open(&both, &host, Protection::Strict).expect("a domain");
    // SAFETY: no memory is behind the fakes.
    let map = |pfn: u64| unsafe { domain.map_raw(PhysAddr::new(pfn << 12), 4096, Access::DeviceWrites) }.expect("room");
    let pages = [1, 2].map(map);
    fakes.iter().for_each(|fake| fake.behave(Behaviour::Holding));
    let [mut first, second] = pages.map(|page| {
        let mut batch = domain.raw_batch();
        batch.unmap_raw(page, 4096).expect("mapped");
        batch.submit().expect("room")
    });
    let flying = || [units[0].submissions_in_flight(), units[1].submissions_in_flight()];
    assert_eq!((domain.usage().batches_in_flight, flying()), (2, [2, 2]));
    fakes[0].land(0);
    fakes[0].land(0);
    assert_eq!(flying(), [0, 2]);
    assert!(!first.is_done(), "S2: done means done on every unit");
    fakes[1].land(0);
    assert!(first.is_done());
    fakes[1].land(0);
    assert_eq!(flying(), [0, 0]);
    first.wait().expect("it is done");
    second.wait().expect("it is done");
    assert_eq!((domain.usage().batches_in_flight, domain.usage().live_ranges), (0, 0));
    fakes.iter().for_each(|fake| fake.behave(Behaviour::Prompt));
}

#[test]
fn a_commit_is_posted_to_every_unit() {
    let host = Host::new(true);
    let fakes = [FakeUnit::new(&host), FakeUnit::new(&host)];
    let units = [bring_up(&fakes[0], &host), bring_up(&fakes[1], &host)];
    let both = join(&units, &host);
    let domain = open(&both, TABLES).expect("an id");
    fakes.iter().for_each(|fake| fake.behave(Behaviour::Holding));
    let share = |cpu, pfn| {
        run_on(cpu);
        both.submit_shared(&[page(domain.0, pfn)]).expect("room")
    };
    let (flying, posted) = ([0, 1].map(|pfn| share(0, pfn)), [share(1, 2), share(2, 3)]);
    for fake in &fakes {
        assert_eq!(without_waits(fake.take_executed()), [0, 1].map(|pfn| page_descriptor(1, pfn)));
    }
    let done = |tickets: [_; 2]| tickets.map(|ticket| both.is_done(ticket).expect("no error"));
    // What is posted to one unit goes on while what is posted to the other does not.
    for _ in 0..3 {
        fakes[0].land(0);
        assert_eq!((done(flying), done(posted)), ([false; 2], [false; 2]));
    }
    fakes[1].land(0);
    assert_eq!((done(flying), done(posted)), ([true, false], [false; 2]));
    fakes[1].land(0);
    assert_eq!((done(flying), done(posted)), ([true; 2], [false; 2]));
    fakes[1].land(0);
    assert_eq!((done(flying), done(posted)), ([true; 2], [true; 2]));
    for fake in &fakes {
        assert_eq!(without_waits(fake.take_executed()), [page_descriptor(1, 2), page_descriptor(1, 3)]);
    }
    let large: Vec<_> = (0..100).map(|pfn| page(domain.0, pfn)).collect();
    fakes.iter().for_each(|fake| fake.behave(Behaviour::Prompt));
    assert_eq!(both.submit_shared(&large).and_then(|ticket| both.is_done(ticket)), Ok(true));
}

#[test]
fn what_fails_on_one_unit_fails_and_can_be_tried_again() {
    let host = Host::new(true);
    let fakes = [FakeUnit::new(&host), FakeUnit::with_capabilities(&host, CAPABILITY.with_nd(0), EXTENDED)];
    let units = [bring_up(&fakes[0], &host), bring_up(&fakes[1], &host)];
    let both = join(&units, &host);
    let domains: Vec<_> = (0..15).map(|_| open(&both, TABLES).expect("an id")).collect();
    assert_eq!(open(&both, TABLES), Err(AttachError::NoDomainId));
    assert_eq!(close(&units[0], DomainId(16)), Err(AttachError::NoSuchDomain(DomainId(16))), "undone there");

    let bad = Invalidation::Pages { domain: domains[3], first: Iova::new(0x1000), mask: 3, leaf_only: true };
    assert_eq!(both.submit(&[bad]).err(), Some(QueueError::Unsupported));

    fakes[1].behave(Behaviour::Silent);
    assert_eq!(close(&both, domains[3]), Err(AttachError::Queue(QueueError::Timeout(1000))));
    fakes[1].behave(Behaviour::Prompt);
    // Unit 0 has closed its part and may reuse that id. The second attempt must not touch it again.
    let reused = (0..).find_map(|_| open(&units[0], TABLES).ok().filter(|id| *id == DomainId(4)));
    assert_eq!(reused, Some(DomainId(4)));
    units[0].attach(DomainId(4), SourceId::new(0, 6, 0)).expect("a free device");
    close(&both, domains[3]).expect("unit 1 answers again");
    assert!(fakes[0].context(SourceId::new(0, 6, 0)).is_some());
}
