//! The invalidation queue: order, waits, wraparound.

use crate::conformance::raw::{IOVA, PHYS, Raw, device_context, domain, global_flush, leaves};
use crate::conformance::rig::A;
use crate::conformance::{Check, Checked, Seen, Stage, agree, write_refused};
use portcullis::iommu::SourceId;
use portcullis::table::Rights;
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, StatusWrite};
use portcullis_vtd::spec::faults::FaultReason;
use portcullis_vtd::spec::registers::{ICS, IQA, IQH, IQT, global};

pub(super) const CHECKS: &[Check] = &[
    Check::raw("wait-writes-its-status", wait_writes),
    Check::raw("wait-writes-four-bytes", four_bytes),
    Check::raw("wait-writes-anywhere", anywhere),
    Check::raw("wait-comes-after-what-is-ahead", after_what_is_ahead),
    Check::raw("waits-come-in-order", in_order),
    Check::raw("wait-with-a-fence", fence),
    Check::raw("wait-without-effect", without_effect)
        .differs("QEMU refuses a wait that neither writes nor interrupts", refused_without_effect),
    Check::raw("wait-with-an-interrupt-shows-in-its-register", interrupt),
    Check::raw("queue-holds-still-until-the-tail-moves", until_the_tail),
    Check::raw("queue-of-256-wraps", |stage| wraps(stage, 0)),
    Check::raw("queue-of-512-wraps", |stage| wraps(stage, 1)),
    Check::raw("queue-runs-across-the-wrap", across),
    Check::raw("queue-starts-again-at-zero", starts_again),
    Check::raw("queue-takes-device-tlb-and-interrupt-entry-commands", harmless),
    Check::raw("queue-mixes-commands", mixed),
];

fn wait_writes(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    for index in [0, 5, 1000] {
        let (wait, data) = raw.wait(index);
        raw.run(&[wait])?;
        agree!(raw.status(index), data, "status {index}");
    }
    Ok(())
}

fn four_bytes(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let at = |word: u64| PhysAddr::new(raw.statuses.as_u64() + 8 * word);
    raw.hide(at(0), u64::MAX);
    raw.hide(at(1), u64::MAX);
    let (wait, data) = raw.wait(1);
    raw.run(&[wait])?;
    agree!([raw.status(0), raw.status(1), raw.status(2)], [u32::MAX, data, u32::MAX], "its word and those beside");
    Ok(())
}

/// A wait may write to any address, not only to a status.
fn anywhere(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.rig.store(PhysAddr::new(PHYS), &[0xee; 16]);
    let status = Some(StatusWrite { address: PhysAddr::new(PHYS + 4), data: 0x0403_0201 });
    raw.run(&[InvalidationDescriptor::Wait { status, interrupt: false, fence: false, drain_page_requests: false }])?;
    let mut there = [0; 12];
    raw.rig.load(PhysAddr::new(PHYS), &mut there);
    agree!(there, [0xee, 0xee, 0xee, 0xee, 1, 2, 3, 4, 0xee, 0xee, 0xee, 0xee], "little-endian, four bytes");
    Ok(())
}

fn after_what_is_ahead(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.clear(table, IOVA, 1)?;
    let (wait, data) = raw.wait(0);
    raw.push(leaves(1, IOVA, 0).encode());
    raw.push(wait.encode());
    raw.ring();
    raw.until("the status", || raw.status(0) == data)?;
    agree!(raw.write(A, IOVA, PHYS)?, write_refused(A, IOVA, FaultReason::NoWrite), "the wait is done");
    Ok(())
}

fn in_order(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    // All waits write to one word, and the last must win.
    let waits: Vec<_> = (0..20).map(|_| raw.wait(3)).collect();
    raw.run(&waits.iter().map(|(wait, _)| *wait).collect::<Vec<_>>())?;
    agree!(raw.status(3), waits[19].1, "the last of 20");
    Ok(())
}

fn fence(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let status = Some(StatusWrite { address: raw.statuses, data: 77 });
    let fenced = InvalidationDescriptor::Wait { status, interrupt: false, fence: true, drain_page_requests: false };
    let (wait, data) = raw.wait(1);
    raw.run(&[global_flush(), fenced, global_flush(), wait])?;
    agree!([raw.status(0), raw.status(1)], [77, data], "the fenced wait and the one behind it");
    Ok(())
}

/// A wait that writes nothing and raises no interrupt.
const EMPTY: InvalidationDescriptor =
    InvalidationDescriptor::Wait { status: None, interrupt: false, fence: true, drain_page_requests: false };

fn without_effect(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let (wait, data) = raw.wait(0);
    raw.run(&[EMPTY, wait])?;
    agree!(raw.status(0), data, "the wait behind it");
    Ok(())
}

fn refused_without_effect(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    raw.push(EMPTY.encode());
    raw.ring();
    agree!(raw.head(), 0, "the head stays");
    agree!(raw.expect_no_queue_error().is_err(), true, "the queue has stopped");
    Ok(())
}

fn interrupt(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    agree!(raw.rig.read32(ICS), 0, "before");
    raw.run(&[InvalidationDescriptor::Wait {
        status: None,
        interrupt: true,
        fence: false,
        drain_page_requests: false,
    }])?;
    agree!(raw.rig.read32(ICS), 1, "after");
    raw.rig.poke32(ICS, 1);
    agree!(raw.rig.read32(ICS), 0, "acknowledged");
    Ok(())
}

fn until_the_tail(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let (first, one) = raw.wait(0);
    let (second, two) = raw.wait(1);
    raw.run(&[first])?;
    raw.push(second.encode());
    raw.rig.pause();
    agree!((raw.status(0), raw.status(1)), (one, 0), "written, but not handed over");
    raw.ring();
    raw.until("the status", || raw.status(1) == two)?;
    agree!(raw.rig.read64(IQH), raw.rig.read64(IQT), "head and tail");
    Ok(())
}

/// Moves the queue to one of 2^`size` pages.
fn resize(raw: &mut Raw<'_>, size: u64) -> Checked {
    // The queue is turned off after a wait, which QEMU requires.
    let (wait, _) = raw.wait(0);
    raw.run(&[wait])?;
    raw.command(global::QUEUED_INVALIDATION, false)?;
    // New pages are adjacent. The first page of the queue must be aligned to the size of the queue.
    let bytes = PAGE_SIZE << size;
    let mut pages = vec![raw.rig.allocate()?];
    while pages.len() < 1 << size {
        if !pages[0].as_u64().is_multiple_of(bytes) {
            pages.clear();
        }
        pages.push(raw.rig.allocate()?);
    }
    raw.queue = pages[0];
    raw.slots = 256 << size;
    raw.tail.set(0);
    raw.rig.poke64(IQT, 0);
    raw.rig.poke64(IQA, raw.queue.as_u64() | size);
    raw.command(global::QUEUED_INVALIDATION, true)
}

fn wraps(stage: &Stage, size: u64) -> Checked {
    let mut raw = stage.raw()?;
    resize(&mut raw, size)?;
    for round in 0..3 * raw.slots / 10 {
        let (wait, data) = raw.wait(round % 7);
        let mut batch = vec![leaves(1, IOVA + round * PAGE_SIZE, 0); 9];
        batch.push(wait);
        raw.run(&batch)?;
        agree!(raw.status(round % 7), data, "round {round}");
    }
    agree!(raw.head() < raw.slots, true, "the head has come round");
    Ok(())
}

/// One submission wraps around the end of the ring, and all of it is executed.
fn across(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    raw.run(&vec![global_flush(); 250])?;
    for page in 0..10 {
        let (iova, phys) = (IOVA + page * PAGE_SIZE, PHYS + page * PAGE_SIZE);
        raw.map(table, iova, phys, Rights::READ_WRITE)?;
        agree!(raw.write(A, iova, phys)?, Seen::Landed, "page {page}");
        raw.clear(table, iova, 1)?;
    }
    let (wait, data) = raw.wait(0);
    let mut batch: Vec<_> = (0..10).map(|page| leaves(1, IOVA + page * PAGE_SIZE, 0)).collect();
    batch.push(wait);
    raw.run(&batch)?;
    agree!((raw.status(0), raw.tail.get()), (data, 5), "the wait, and the tail");
    for page in 0..10 {
        let iova = IOVA + page * PAGE_SIZE;
        let seen = raw.write(A, iova, PHYS)?;
        agree!(seen, write_refused(A, iova, FaultReason::NoWrite), "page {page}, invalidated");
    }
    Ok(())
}

fn starts_again(stage: &Stage) -> Checked {
    let mut raw = stage.raw()?;
    raw.run(&[global_flush(), global_flush()])?;
    resize(&mut raw, 0)?;
    agree!(raw.head(), 0, "the head of a queue that was turned off and on");
    let (wait, data) = raw.wait(0);
    raw.run(&[wait])?;
    agree!((raw.status(0), raw.head()), (data, 1), "its first wait");
    Ok(())
}

/// These descriptors are executed and drop nothing.
fn harmless(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.clear(table, IOVA, 1)?;
    let device_tlb = InvalidationDescriptor::DeviceTlb {
        source: A,
        // None, because only virtual functions have one.
        physical_function: SourceId::from_requester(0),
        pending_max: 0,
        address: Iova::new(IOVA),
        sized: false,
    };
    raw.run(&[device_tlb, InvalidationDescriptor::InterruptEntryCache { entries: None }])?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "still cached");
    Ok(())
}

fn mixed(stage: &Stage) -> Checked {
    let raw = stage.raw()?;
    let table = raw.one_page()?;
    agree!(raw.write(A, IOVA, PHYS)?, Seen::Landed, "mapped");
    raw.clear(table, IOVA, 1)?;
    raw.context(A, [0, 0]);
    let (wait, data) = raw.wait(0);
    raw.run(&[device_context(1, A, 0), domain(1), leaves(2, IOVA, 3), wait])?;
    agree!(raw.status(0), data, "the wait");
    let seen = raw.write(A, IOVA, PHYS)?;
    agree!(seen, write_refused(A, IOVA, FaultReason::ContextNotPresent), "context and pages are gone");
    Ok(())
}
