//! Descriptors that are refused, and how the queue continues.

use crate::conformance::raw::{IOVA, PHYS, Raw, global_flush, leaves, pages};
use crate::conformance::rig::{A, MEMORY_END};
use crate::conformance::{Check, Checked, Seen, Stage, agree, write_refused};
use portcullis::PhysAddr;
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, StatusWrite};
use portcullis_vtd::spec::faults::{FaultReason, status};
use portcullis_vtd::spec::registers::{FSTS, IQA, IQT, global};

pub(super) const CHECKS: &[Check] = &[
    Check::raw("refused-type", |stage| refused(stage, [0xf, 0])),
    Check::raw("refused-type-zero", |stage| refused(stage, [0, 0])),
    Check::raw("refused-extended-type", |stage| refused(stage, [2 | 1 << 4 | 1 << 9, 0])),
    Check::raw("refused-iotlb-granularity", |stage| refused(stage, [2, 0])),
    Check::raw("refused-iotlb-reserved-low", |stage| refused(stage, [2 | 1 << 4 | 1 << 12, 0])),
    Check::raw("refused-iotlb-reserved-high", |stage| refused(stage, [2 | 3 << 4 | 1 << 16, IOVA | 1 << 8])),
    Check::raw("refused-iotlb-mask-beyond-the-largest", |stage| refused(stage, pages(1, 0, 19).encode())),
    Check::raw("refused-context-granularity", |stage| refused(stage, [1, 0])),
    Check::raw("refused-context-reserved", |stage| refused(stage, [1 | 1 << 4, 1])),
    Check::raw("refused-wait-reserved", |stage| refused(stage, [5 | 1 << 5 | 1 << 8, PHYS])),
    Check::raw("refused-wait-page-drain", |stage| refused(stage, [5 | 1 << 5 | 1 << 7, PHYS])),
    Check::raw("refused-wait-outside-memory", |stage| refused(stage, WAIT_NOWHERE.encode())),
    Check::raw("refused-tail-beyond-the-queue", tail_beyond),
    Check::raw("queue-outside-memory", queue_outside),
    Check::raw("stopped-queue-ignores-the-tail", ignores_tail),
    Check::raw("stopped-queue-has-done-what-was-ahead", done_ahead),
    Check::raw("stopped-queue-goes-on-with-the-tail", goes_on),
    Check::raw("stopped-queue-goes-on-by-itself", by_itself)
        .differs("QEMU looks at the queue again only when the tail is written", not_by_itself),
    Check::raw("stopped-queue-stops-again", stops_again),
];

const WAIT_NOWHERE: InvalidationDescriptor = InvalidationDescriptor::Wait {
    status: Some(StatusWrite { address: PhysAddr::new(4 * MEMORY_END), data: 1 }),
    interrupt: false,
    fence: false,
    drain_page_requests: false,
};

/// Checks that the queue has stopped in front of slot `head`.
fn expect_stopped(raw: &Raw<'_>, head: u64) -> Checked {
    raw.until("the queue error", || raw.rig.read32(FSTS) & status::QUEUE_ERRORS != 0)?;
    agree!(raw.rig.read32(FSTS) & status::QUEUE_ERRORS, status::QUEUE_ERROR, "the fault status");
    agree!(raw.head(), head, "the head");
    Ok(())
}

/// Overwrites slot `at` with a harmless descriptor, clears the error and hands the tail over again.
fn repair(raw: &Raw<'_>, at: u64) -> Checked {
    let tail = raw.tail.replace(at);
    raw.push(global_flush().encode());
    raw.tail.set(tail);
    raw.rig.poke32(FSTS, status::QUEUE_ERROR);
    raw.ring();
    raw.until("the end of the queue", || raw.head() == raw.tail.get())?;
    raw.expect_no_queue_error()
}

/// A descriptor that no unit executes: the queue stops at it, and continues once it is replaced.
fn refused(stage: &Stage, words: [u64; 2]) -> Checked {
    let raw = stage.raw()?;
    let (before, one) = raw.wait(0);
    let (behind, two) = raw.wait(1);
    raw.push(before.encode());
    raw.push(words);
    raw.push(behind.encode());
    raw.ring();
    expect_stopped(&raw, 1)?;
    agree!((raw.status(0), raw.status(1)), (one, 0), "the waits before and behind");
    repair(&raw, 1)?;
    agree!(raw.status(1), two, "the wait behind, repaired");
    Ok(())
}

fn tail_beyond(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let (wait, data) = raw.wait(0);
    raw.run(&[wait])?;
    raw.rig.poke64(IQT, 0x1000);
    expect_stopped(&raw, 1)?;
    // A valid tail first, because a unit that continues on its own would find the invalid one again.
    raw.ring();
    raw.rig.poke32(FSTS, status::QUEUE_ERROR);
    let (next, more) = raw.wait(1);
    raw.run(&[next])?;
    agree!((raw.status(0), raw.status(1)), (data, more), "the waits before and after");
    Ok(())
}

fn queue_outside(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let (wait, _) = raw.wait(0);
    raw.run(&[wait])?;
    raw.command(global::QUEUED_INVALIDATION, false)?;
    raw.rig.poke64(IQT, 0);
    raw.rig.poke64(IQA, 4 * MEMORY_END);
    raw.command(global::QUEUED_INVALIDATION, true)?;
    raw.rig.poke64(IQT, 16);
    expect_stopped(&raw, 0)
}

/// Stops the queue in front of slot 0.
fn stop(raw: &Raw<'_>) -> Checked {
    raw.push([0xf, 0]);
    raw.ring();
    expect_stopped(raw, 0)
}

fn ignores_tail(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    stop(&raw)?;
    let (wait, _) = raw.wait(0);
    raw.push(wait.encode());
    raw.ring();
    (0..100).for_each(|_| raw.rig.pause());
    agree!((raw.status(0), raw.head()), (0, 0), "a wait behind the error, and the head");
    expect_stopped(&raw, 0)
}

fn done_ahead(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.clear(table, IOVA, 1)?;
    raw.push(leaves(1, IOVA, 0).encode());
    raw.push([0xf, 0]);
    raw.ring();
    expect_stopped(&raw, 1)?;
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, FaultReason::NoWrite), "invalidated before the error");
    Ok(())
}

/// Nothing behind the error was executed before the repair, and all of it is executed afterwards.
fn goes_on(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.clear(table, IOVA, 1)?;
    raw.push([0xf, 0]);
    raw.push(leaves(1, IOVA, 0).encode());
    raw.ring();
    expect_stopped(&raw, 0)?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "stale, since the queue stopped before");
    repair(&raw, 0)?;
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, FaultReason::NoWrite), "repaired");
    Ok(())
}

/// Replaces slot 0 and clears the error, but leaves the tail as it is. Then adds a wait behind it.
fn cleared(raw: &Raw<'_>) -> core::result::Result<u32, crate::conformance::Trouble> {
    let (wait, data) = raw.wait(0);
    raw.push([0xf, 0]);
    raw.push(wait.encode());
    raw.ring();
    expect_stopped(raw, 0)?;
    let tail = raw.tail.replace(0);
    raw.push(global_flush().encode());
    raw.tail.set(tail);
    raw.rig.poke32(FSTS, status::QUEUE_ERROR);
    (0..100).for_each(|_| raw.rig.pause());
    Ok(data)
}

fn by_itself(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let data = cleared(&raw)?;
    agree!((raw.status(0), raw.head()), (data, 2), "the wait, and the head");
    Ok(())
}

fn not_by_itself(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let data = cleared(&raw)?;
    agree!((raw.status(0), raw.head()), (0, 0), "the wait, and the head");
    raw.ring();
    agree!((raw.status(0), raw.head()), (data, 2), "with the tail written again");
    Ok(())
}

/// An error that is cleared without a repair occurs again.
fn stops_again(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    stop(&raw)?;
    raw.rig.poke32(FSTS, status::QUEUE_ERROR);
    raw.ring();
    expect_stopped(&raw, 0)?;
    repair(&raw, 0)
}
