use super::fake_unit::*;
use super::host::Host;
use super::{bring_up, finish, page, page_descriptor, without_waits};
use crate::queue::{BURST_MAX, SLOTS};
use crate::spec::descriptors::{InvalidationDescriptor, IotlbScope};
use crate::spec::faults::status;
use crate::{Unit, UnitConfig};
use portcullis::Iova;
use portcullis::Platform;
use portcullis::iommu::{DomainId, Invalidation, Iommu, QueueError};
use portcullis::platform::Step;

fn pages(domain: u16, first: u64, count: usize) -> Vec<Invalidation> {
    (first..first + count as u64).map(|pfn| page(domain, pfn)).collect()
}

fn run(unit: &super::Driver<'_>, command: Invalidation) -> Result<(), QueueError> {
    let ticket = unit.submit(&[command])?;
    assert_eq!(unit.is_done(ticket), Ok(true));
    Ok(())
}

#[test]
fn commands_become_descriptors() {
    let host = Host::new(false);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    let domain = DomainId(7);
    let select = |first, mask, leaf_only| Invalidation::Pages { domain, first: Iova::new(first), mask, leaf_only };
    for (command, words) in [
        (select(0xffff_8000, 0, true), [0x7_00f2, 0xffff_8040]),
        (select(0x20_0000, 9, false), [0x7_00f2, 0x20_0009]),
        (select(0x4000_0000, 18, true), [0x7_00f2, 0x4000_0052]),
        // A larger mask than the unit supports: the whole domain, at all levels.
        (select(0x8000_0000, 19, true), [0x7_00e2, 0]),
        (Invalidation::Domain(domain), [0x7_00e2, 0]),
        (Invalidation::Global, [0xd2, 0]),
    ] {
        run(&unit, command).expect("a prompt queue");
        assert_eq!(without_waits(fake.take_executed())[0].encode(), words, "{command:?}");
        assert_eq!(unit.try_invalidate(command), Ok(()));
        assert_eq!(without_waits(fake.take_executed())[0].encode(), words, "{command:?} at once");
    }
}

#[test]
fn a_unit_without_page_selection_flushes_domains() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_psi(false), EXTENDED);
    let unit = bring_up(&fake, &host);
    assert_eq!(unit.try_invalidate(page(7, 5)), Ok(()));
    let at_once = fake.take_executed();
    run(&unit, page(7, 5)).expect("a prompt queue");
    let scope = IotlbScope::Domain(DomainId(7));
    assert_eq!(at_once[0], InvalidationDescriptor::Iotlb { scope, drain_writes: true, drain_reads: true });
    assert_eq!(fake.take_executed()[0], InvalidationDescriptor::Iotlb { scope, drain_writes: true, drain_reads: true });
}

#[test]
fn without_the_hint_nothing_is_said_of_leaves() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let config = UnitConfig { wait_us_max: 1000, leaf_only_hint: false, ..UnitConfig::default() };
    let unit = Unit::bring_up(&fake, &host, config).expect("a sound unit");
    fake.take_executed();
    assert_eq!(unit.try_invalidate(page(7, 5)), Ok(()));
    let at_once = fake.take_executed();
    run(&unit, page(7, 5)).expect("a prompt queue");
    let scope = IotlbScope::Pages { domain: DomainId(7), first: Iova::from_pfn(5), mask: 0, leaf_only: false };
    assert_eq!(at_once[0], InvalidationDescriptor::Iotlb { scope, drain_writes: true, drain_reads: true });
    assert_eq!(fake.take_executed()[0], InvalidationDescriptor::Iotlb { scope, drain_writes: true, drain_reads: true });
}

#[test]
fn draining_is_asked_for_where_the_unit_can() {
    for (dwd, drd, words) in [(false, false, 0x32), (true, false, 0x72), (false, true, 0xb2), (true, true, 0xf2)] {
        let host = Host::new(true);
        let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_dwd(dwd).with_drd(drd), EXTENDED);
        let unit = bring_up(&fake, &host);
        assert_eq!(unit.try_invalidate(page(7, 5)), Ok(()));
        assert_eq!(fake.take_executed()[0].encode()[0], 0x7_0000 | words, "at once");
        run(&unit, page(7, 5)).expect("a prompt queue");
        assert_eq!(fake.take_executed()[0].encode()[0], 0x7_0000 | words);
    }
}

#[test]
fn a_misaligned_run_is_refused_before_anything_is_queued() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    let before = unit.queue_use();
    for (first, mask) in [(0x1000, 1), (0x1800, 0), (0x1_0000, 5), (0x1000, 63)] {
        let bad = Invalidation::Pages { domain: DomainId(7), first: Iova::new(first), mask, leaf_only: true };
        assert_eq!(unit.submit(&[page(7, 1), bad]), Err(QueueError::Unsupported));
        // It is left to a submission, which says why.
        assert_eq!(unit.try_invalidate(bad), Err(Ok(None)));
        assert_eq!(unit.submit_shared(&[bad]), Err(QueueError::Unsupported));
    }
    assert_eq!(fake.take_executed(), []);
    assert_eq!(unit.queue_use(), before, "no descriptor waits for the next doorbell");
    assert_eq!(unit.try_invalidate(page(7, 2)), Ok(()));
    assert_eq!(without_waits(fake.take_executed()), [page_descriptor(7, 2)]);
}

#[test]
fn one_submission_is_one_doorbell() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    let doorbells = fake.with(|state| state.tail_writes);
    let ticket = unit.submit(&pages(7, 100, 3)).expect("room");
    assert_eq!(host.take_steps(), [Step::QueueWrite { descriptors: 4 }, Step::RegisterWrite]);
    assert_eq!(unit.is_done(ticket), Ok(true));
    assert_eq!(host.take_steps(), [], "memory alone shows that a submission has finished");
    assert_eq!(fake.with(|state| state.tail_writes), doorbells + 1);
    let ticket = unit.submit(&[]).expect("room");
    assert_eq!(unit.is_done(ticket), Ok(true));
}

#[test]
fn the_ring_wraps_whole() {
    for size in [1, 2, 3, 7, 63, BURST_MAX] {
        let host = Host::new(false);
        let fake = FakeUnit::new(&host);
        let unit = bring_up(&fake, &host);
        let mut expected = Vec::new();
        host.take_covered();
        let mut end = None;
        for round in 0..600 / size as u64 + 20 {
            let commands = pages(7, round * 100, size);
            let ticket = unit.submit(&commands).expect("room");
            assert_eq!(unit.is_done(ticket), Ok(true), "round {round} of {size}");
            // Barriers cover what was written, two entries for each descriptor, and nothing else.
            let covered = host.take_covered();
            let first = end.unwrap_or(covered[0]);
            let written = (first..first + 2 * (size + 1)).map(|entry| entry % (2 * SLOTS));
            assert!(covered.iter().copied().eq(written), "round {round} of {size}: {covered:?}");
            end = covered.last().map(|last| (last + 1) % (2 * SLOTS));
            expected.extend((round * 100..round * 100 + size as u64).map(|pfn| page_descriptor(7, pfn)));
        }
        assert_eq!(without_waits(fake.take_executed()), expected);
    }
}

#[test]
fn more_commands_than_the_ring_holds_go_in_pieces() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    let ticket = unit.submit(&pages(7, 0, 1000)).expect("pieces fit");
    assert_eq!(unit.is_done(ticket), Ok(true));
    let expected: Vec<InvalidationDescriptor> = (0..1000).map(|pfn| page_descriptor(7, pfn)).collect();
    assert_eq!(without_waits(fake.take_executed()), expected);

    // If one piece does not complete, the submission fails as a whole.
    fake.behave(Behaviour::Silent);
    assert_eq!(unit.submit(&pages(7, 0, 1000)), Err(QueueError::Timeout(1000)));
}

#[test]
fn a_full_ring_is_waited_for_and_never_overrun() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    fake.behave(Behaviour::Silent);
    let mut tickets = Vec::new();
    let refused = loop {
        match unit.submit(&[page(7, tickets.len() as u64)]) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
        assert!(tickets.len() < SLOTS, "the ring was overrun");
    };
    assert_eq!(refused, QueueError::Timeout(1000));
    // Each has two descriptors, and one slot stays free.
    assert_eq!(tickets.len(), (SLOTS - 1) / 2);
    assert!(tickets.iter().all(|ticket| unit.is_done(*ticket) == Ok(false)));

    fake.behave(Behaviour::Slow(20));
    let last = loop {
        match unit.submit(&[page(7, 999)]) {
            // The oldest has not landed yet.
            Err(QueueError::Unresponsive) => host.fake.advance_us(1),
            last => break last,
        }
    };
    assert_eq!(finish(&unit, &host, last.expect("room again")), Ok(()));
    assert!(tickets.iter().all(|ticket| unit.is_done(*ticket) == Ok(true)));
    let executed = without_waits(fake.take_executed());
    assert_eq!(executed.len(), tickets.len() + 1);
    assert_eq!(executed.last(), Some(&page_descriptor(7, 999)));
}

/// However many callers of however many domains there are: the first of them waits, and the others do not.
#[test]
fn a_queue_that_does_not_answer_is_waited_for_once() {
    // An error that does not go away is no reason to wait either.
    for (is_posted, stuck_faults) in [(false, 0), (true, 0), (false, status::TIMEOUT_ERROR)] {
        let host = Host::new(true);
        let fake = FakeUnit::new(&host);
        let unit = bring_up(&fake, &host);
        fake.behave(Behaviour::Silent);
        fake.with(|state| state.stuck_faults = stuck_faults);
        // Two are in flight, and a third is posted.
        let tickets = [(); 3].map(|()| unit.submit_shared(&[page(7, 0)]).expect("room"));
        let (first, last) = (tickets[0], tickets[2]);
        assert_eq!(unit.is_done(last), Ok(false));
        unit.gave_up(if is_posted { last } else { first });
        let begun_us = host.now_us();
        for pfn in 0..600 {
            assert_eq!(unit.submit(&[page(7, pfn)]), Err(QueueError::Unresponsive));
            assert_eq!(unit.submit_shared(&[page(8, pfn)]), Err(QueueError::Unresponsive));
            assert_eq!(unit.try_invalidate(page(9, pfn)), Err(Ok(None)));
        }
        assert_eq!(host.now_us(), begun_us, "no caller waits");
        // What was taken before is done when the hardware moves on.
        fake.with(|state| state.stuck_faults = 0);
        fake.behave(Behaviour::Slow(20));
        assert_eq!(unit.submit(&[]), Err(QueueError::Unresponsive), "the first has not landed yet");
        assert_eq!(finish(&unit, &host, first), Ok(()));
        let next = unit.submit(&[page(7, 1)]).expect("the queue moves");
        assert_eq!(finish(&unit, &host, next), Ok(()));
        assert!(tickets.iter().all(|ticket| finish(&unit, &host, *ticket) == Ok(())));
        // A caller that gives up what has landed meanwhile closes nothing.
        unit.gave_up(first);
        fake.behave(Behaviour::Prompt);
        assert_eq!(unit.try_invalidate(page(7, 2)), Ok(()));
    }
}

/// A caller that gives up what has landed, as one that waits for several units does, refuses nothing to others, whose
/// submissions are young.
#[test]
fn a_queue_that_moves_refuses_nothing() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    fake.behave(Behaviour::Holding);
    let [old, young] = [0, 1].map(|pfn| unit.submit(&[page(7, pfn)]).expect("room"));
    fake.land(0);
    unit.gave_up(old);
    let next = unit.submit(&[page(7, 2)]).expect("the queue moves");
    unit.gave_up(young);
    assert_eq!(unit.submit(&[page(7, 3)]), Err(QueueError::Unresponsive), "the young one has become old");
    (0..2).for_each(|_| fake.land(0));
    assert_eq!(finish(&unit, &host, next), Ok(()));
}

/// A queue that stopped on an error after its callers gave up is resumed by the next caller.
#[test]
fn an_error_after_the_last_caller_gave_up_is_handled() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    fake.with(|state| state.refuse = Some(page_descriptor(7, 0).encode()));
    let refused = unit.submit(&[page(7, 0)]).expect("room");
    unit.gave_up(refused);
    fake.with(|state| state.refuse = None);
    let next = unit.submit(&[page(7, 1)]).expect("the queue is resumed");
    assert_eq!(finish(&unit, &host, next), Ok(()));
    assert_eq!(unit.is_done(refused), Err(QueueError::Descriptor));
}

#[test]
fn waits_may_land_in_any_order() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    fake.behave(Behaviour::Holding);
    let tickets: Vec<_> = (0..3).map(|pfn| unit.submit(&[page(7, pfn)]).expect("room")).collect();
    let done = || tickets.iter().map(|ticket| unit.is_done(*ticket) == Ok(true)).collect::<Vec<bool>>();
    assert_eq!(done(), [false, false, false]);
    fake.land(2);
    assert_eq!(done(), [false, false, true]);
    fake.land(0);
    assert_eq!(done(), [true, false, true]);
    fake.land(0);
    assert_eq!(done(), [true, true, true]);
}

#[test]
fn a_slot_whose_wait_has_not_landed_is_not_taken_again() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    fake.behave(Behaviour::Holding);
    let first = unit.submit(&[page(7, 0)]).expect("room");
    let mut others = Vec::new();
    while let Ok(ticket) = unit.submit(&[page(7, 1)]) {
        others.push(ticket);
        // All later submissions land at once. The head register would show room long before the first has landed.
        fake.land(1);
        assert!(others.len() < SLOTS, "the ring was overrun");
    }
    assert_eq!(others.len(), (SLOTS - 1) / 2 - 1);
    assert_eq!(unit.is_done(first), Ok(false));
    fake.land(0);
    assert_eq!(unit.is_done(first), Ok(true));
    unit.submit(&[page(7, 2)]).expect("room");
}

#[test]
fn sequences_wrap() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    for skipped in [(1 << 31) - 300, (1 << 31) - 600, 1 << 40] {
        unit.queue.ring().with(|ring| ring.skip(skipped)).expect("no panic");
        fake.behave(Behaviour::Prompt);
        let mut earlier = None;
        for pfn in 0..600 {
            fake.behave(if pfn % 50 == 0 { Behaviour::Holding } else { Behaviour::Prompt });
            let ticket = unit.submit(&[page(7, pfn)]).expect("room");
            if pfn % 50 == 0 {
                assert_eq!(unit.is_done(ticket), Ok(false), "{ticket:?}");
                fake.land(0);
            }
            assert_eq!(unit.is_done(ticket), Ok(true), "{ticket:?}");
            if let Some(earlier) = earlier.replace(ticket) {
                assert_eq!(unit.is_done(earlier), Ok(true), "{earlier:?}");
            }
        }
    }
}

#[test]
fn what_an_old_revolution_left_in_a_status_passes_for_nothing() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    for pfn in 0..SLOTS as u64 {
        run(&unit, page(7, pfn)).expect("a prompt queue");
    }
    // After more than half of the 32-bit sequences, every old status would look newer.
    unit.queue.ring().with(|ring| ring.skip((1 << 31) + 5)).expect("no panic");
    fake.behave(Behaviour::Holding);
    for pfn in 0..20 {
        let ticket = unit.submit(&pages(7, pfn, 2)).expect("room");
        assert_eq!(unit.is_done(ticket), Ok(false));
        fake.land(0);
        assert_eq!(unit.is_done(ticket), Ok(true));
    }
}

#[test]
fn threads_share_the_ring() {
    let host = Host::new(false);
    let fake = FakeUnit::new(&host);
    let unit = bring_up(&fake, &host);
    std::thread::scope(|scope| {
        for thread in 0..4u16 {
            let (unit, host) = (&unit, &host);
            scope.spawn(move || {
                for round in 0..300 {
                    let ticket = unit.submit(&pages(thread + 1, round, 1 + round as usize % 5)).expect("room");
                    assert_eq!(finish(unit, host, ticket), Ok(()));
                }
            });
        }
    });
    let executed = without_waits(fake.take_executed());
    for thread in 0..4u16 {
        let expected = (0..300u64)
            .flat_map(|round| (round..round + 1 + round % 5).map(move |pfn| page_descriptor(thread + 1, pfn)));
        let domain = DomainId(thread + 1);
        let own = executed.iter().copied().filter(|descriptor| {
            matches!(descriptor, InvalidationDescriptor::Iotlb { scope: IotlbScope::Pages { domain: of, .. }, .. } if *of == domain)
        });
        assert!(own.eq(expected), "every submission of thread {thread} ran whole and in order");
    }
}
