//! One command for a crowd: what a unit that merges makes of posts.

use super::fake_unit::*;
use super::host::Host;
use super::{Driver, bring_up_merging, finish, page, page_descriptor, pages_descriptor, without_waits};
use crate::Ticket;
use crate::queue::SLOTS;
use crate::spec::descriptors::InvalidationDescriptor;
use portcullis::iommu::{Invalidation, Iommu, QueueError};
use portcullis::platform::fake::run_on;

const FEWEST: u8 = 4;

/// Commands that CPUs post, and then a commit that takes them along.
fn submit_together(unit: &Driver<'_>, posted: &[Invalidation], own: Invalidation) -> Vec<Ticket> {
    let waiting = unit.queue.ring().with(|_| {
        std::thread::scope(|scope| {
            let post = |(cpu, command): (u32, &Invalidation)| {
                let command = *command;
                let posting = scope.spawn(move || {
                    run_on(cpu);
                    unit.try_invalidate(command)
                });
                match posting.join().expect("it does not wait for the holder") {
                    Err(Ok(Some(ticket))) => ticket,
                    other => panic!("{other:?}"),
                }
            };
            (1..).zip(posted).map(post).collect::<Vec<_>>()
        })
    });
    run_on(0);
    let own = unit.submit_shared(&[own]).expect("room");
    waiting.expect("no panic").into_iter().chain([own]).collect()
}

/// What hardware executes for pages `posted`, and then `own`.
fn executed(merge_min: Option<u8>, posted: &[Invalidation], own: Invalidation) -> Vec<InvalidationDescriptor> {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up_merging(&fake, &host, merge_min);
    let before = unit.queue_use();
    let tickets = submit_together(&unit, posted, own);
    assert!(tickets.iter().all(|ticket| unit.is_done(*ticket) == Ok(true)));
    let after = unit.queue_use();
    assert_eq!((after.commits - before.commits, after.waits - before.waits), (tickets.len() as u64, 1));
    without_waits(fake.take_executed())
}

#[test]
fn one_command_serves_enough_of_them() {
    let posted = [page(7, 0x81), page(7, 0x82), page(7, 0x8f)];
    assert_eq!(executed(Some(FEWEST), &posted, page(7, 0x90)), [pages_descriptor(7, 0x80, 5)]);
    assert_eq!(executed(Some(FEWEST), &posted[..2], page(7, 0x90)).len(), 3, "too few");
    let expected = [0x90, 0x81, 0x82, 0x8f].map(|pfn| page_descriptor(7, pfn));
    assert_eq!(executed(None, &posted, page(7, 0x90)), expected, "only if it was asked for");
}

#[test]
fn commands_that_one_cannot_replace_are_left() {
    let Invalidation::Pages { domain, first, mask, .. } = page(7, 0x83) else { panic!("pages") };
    let tables_changed = Invalidation::Pages { domain, first, mask, leaf_only: false };
    // Masks of this unit reach 18 bits.
    for odd in [page(8, 0x83), tables_changed, page(7, 0x81 + (1 << 18))] {
        let posted = [page(7, 0x81), page(7, 0x82), odd];
        assert_eq!(executed(Some(FEWEST), &posted, page(7, 0x84)).len(), 4, "{odd:?}");
        let posted = [page(7, 0x81), page(7, 0x82), page(7, 0x83)];
        assert_eq!(executed(Some(FEWEST), &posted, odd).len(), 4, "{odd:?}");
    }
}

/// A CPU that has the hardware to itself gets what it has asked for.
#[test]
fn the_commands_of_one_commit_are_not_merged() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up_merging(&fake, &host, Some(2));
    let alone = unit.submit_shared(&[0x81, 0x83, 0x85, 0x87].map(|pfn| page(7, pfn))).expect("room");
    assert_eq!(unit.is_done(alone), Ok(true));
    assert_eq!(without_waits(fake.take_executed()).len(), 4);
}

#[test]
fn a_unit_below_a_hypervisor_that_looks_for_changes_does_not_merge() {
    let host = Host::new(true);
    let fake = FakeUnit::with_capabilities(&host, CAPABILITY.with_cm(true), EXTENDED.with_coherent(true));
    let unit = bring_up_merging(&fake, &host, Some(2));
    let tickets = submit_together(&unit, &[page(7, 0x81)], page(7, 0x83));
    assert!(tickets.iter().all(|ticket| unit.is_done(*ticket) == Ok(true)));
    assert_eq!(without_waits(fake.take_executed()).len(), 2);
}

/// Where the ring ends, commands go on at its start.
#[test]
fn merged_commands_go_round_the_ring() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up_merging(&fake, &host, Some(FEWEST));
    for round in 0..2 * SLOTS as u64 {
        let base = 0x1000 * round;
        let posted = [base + 1, base + 2, base + 4].map(|pfn| page(7, pfn));
        // Three slots more, so that submissions begin in odd slots too.
        if round % 7 == 0 {
            let single = unit.submit(&[page(9, 1), page(9, 2)]).expect("room");
            assert_eq!(finish(&unit, &host, single), Ok(()));
            fake.take_executed();
        }
        let tickets = submit_together(&unit, &posted, page(7, base));
        assert!(tickets.iter().all(|ticket| unit.is_done(*ticket) == Ok(true)));
        assert_eq!(without_waits(fake.take_executed()), [pages_descriptor(7, base, 3)]);
    }
}

/// S11: all whose pages a refused command was to cover learn of it.
#[test]
fn s11_a_merged_command_that_is_refused_fails_all() {
    let host = Host::new(true);
    let fake = FakeUnit::new(&host);
    let unit = bring_up_merging(&fake, &host, Some(FEWEST));
    fake.with(|state| state.refuse = Some(pages_descriptor(7, 0x80, 2).encode()));
    let posted = [page(7, 0x81), page(7, 0x82), page(7, 0x83)];
    let tickets = submit_together(&unit, &posted, page(7, 0x80));
    for (cpu, ticket) in [1, 2, 3, 0].into_iter().zip(tickets) {
        run_on(cpu);
        assert_eq!(finish(&unit, &host, ticket), Err(QueueError::Descriptor), "CPU {cpu}");
        // What they do then: each alone.
        let alone = unit.submit(&[page(7, 0x80 + u64::from(cpu))]).expect("room");
        assert_eq!(finish(&unit, &host, alone), Ok(()), "CPU {cpu}");
    }
}
