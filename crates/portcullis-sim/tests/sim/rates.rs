//! What limits the rate: the CPUs that do the work, the link or the disks. Also tests the fill of buffers.

use super::capture::{Buffer, Capture, OTHER_CPU, READS, TASK, WRITES, Who, buffer};
use super::{bundled, job, machine, measured, replay, rings};
use portcullis::Protection::{self, Deferred, Strict};
use portcullis_designs::DesignId;
use portcullis_sim::{Job, Limit, Machine, Pace, PayloadRule, RunOutcome, Traffic, Work};

fn unprotected(machine: &Machine, work: Work) -> RunOutcome {
    measured(&job(machine, work, DesignId::Unprotected, Protection::None))
}

/// The most that a core carries without protection.
fn one_core_gbps(machine: &Machine) -> f64 {
    machine.core_hz * 8.0 / machine.unprotected_cycles_per_byte / 1e9
}

fn is_near(one: f64, other: f64) -> bool {
    (one / other - 1.0).abs() < 1e-6
}

#[test]
fn one_ring_is_served_by_one_core_and_sixteen_by_sixteen() {
    let mut machine = machine("cascadelake-cx5");
    machine.link_gbps = Some(10_000.0);
    for count in [1, 16] {
        let outcome = unprotected(&machine, rings(&format!("count={count}")));
        let expected = f64::from(count) * one_core_gbps(&machine);
        assert!(is_near(outcome.estimate_gbps, expected), "{count}: {} {expected}", outcome.estimate_gbps);
        assert_eq!((outcome.limit, outcome.estimate_vs_none), (Limit::Cpu, 1.0));
    }
    // The work uses no more cores than the machine has.
    machine.cores = 4;
    let outcome = unprotected(&machine, rings("count=16"));
    assert!(is_near(outcome.estimate_gbps, 4.0 * one_core_gbps(&machine)), "{}", outcome.estimate_gbps);
}

/// A buffer of a network card: it does not consist of whole sectors.
fn frame(number: u64) -> Buffer {
    Buffer { len: 1000, ..buffer(number) }
}

/// Two buffers. The second is mapped and unmapped by the CPU of `second`, which may be another one or the same.
fn two_frames(second: Who, direction: &str) -> Work {
    let mut capture = Capture::default();
    capture.map(TASK, frame(1), direction).at(5).map(second, frame(2), direction);
    capture.at(10).unmap(TASK, frame(1)).unmap(second, frame(2));
    replay(&capture.read())
}

#[test]
fn the_busiest_core_is_full_first() {
    let machine = machine("cascadelake-cx5");
    let rate = |second| unprotected(&machine, two_frames(second, READS)).cpu_gbps;
    assert!(is_near(rate(TASK), one_core_gbps(&machine)), "{}", rate(TASK));
    assert!(is_near(rate(OTHER_CPU), 2.0 * one_core_gbps(&machine)), "{}", rate(OTHER_CPU));
}

#[test]
fn how_full_received_buffers_were_is_a_range_unless_it_is_known() {
    let machine = machine("cascadelake-cx5");
    let received =
        |payload| measured(&Job { payload, ..job(&machine, two_frames(TASK, WRITES), DesignId::Magazine, Strict) });
    let shown = received(PayloadRule::Shown);
    assert_eq!((shown.payload_bytes_min, shown.payload_bytes_max), (2, 2000));
    let (least, most) = (shown.estimate_gbps_min.expect("a range"), shown.estimate_gbps);
    // The CPUs are the limit in both cases, and serve the same number of buffers.
    assert!(is_near(least * 1000.0, most), "{least} to {most}");
    assert!(shown.estimate_vs_none_min.is_some_and(|share| is_near(share, shown.estimate_vs_none)), "{shown:?}");
    for (rule, bytes) in
        [(PayloadRule::Bytes(100), 200), (PayloadRule::Share(0.1), 200), (PayloadRule::Bytes(9000), 2000)]
    {
        let said = received(rule);
        assert_eq!((said.payload_bytes_min, said.payload_bytes_max), (bytes, bytes), "{rule:?}");
        assert_eq!((said.estimate_gbps_min, said.estimate_vs_none_min), (None, None), "{rule:?}");
        assert!(
            is_near(said.estimate_gbps, most * bytes as f64 / 2000.0),
            "{rule:?}: {} of {most}",
            said.estimate_gbps
        );
    }
    // The payload of a sent buffer is known.
    let sent = measured(&job(&machine, two_frames(TASK, READS), DesignId::Magazine, Strict));
    assert_eq!((sent.payload_bytes_min, sent.payload_bytes_max, sent.estimate_gbps_min), (2000, 2000, None));
}

#[test]
fn a_capture_may_show_how_full_a_buffer_was() {
    let machine = machine("cascadelake-cx5");
    let mut capture = Capture::default();
    let (first, second) = (frame(1), frame(2));
    capture.map(TASK, first, WRITES).map(TASK, second, WRITES).at(10);
    let at = |buffer: Buffer| buffer.page * 4096 + buffer.phys % 4096;
    let synced = format!("dma_sync_single_for_cpu: 0000:00:04.0 dir=FROM_DEVICE dma_addr={:x} size=98", at(first));
    capture.event(TASK, &synced).unmap(TASK, first).unmap(TASK, second);
    let outcome = measured(&job(&machine, replay(&capture.read()), DesignId::Magazine, Strict));
    assert_eq!((outcome.payload_bytes_min, outcome.payload_bytes_max), (98 + 1, 98 + 1000));
}

#[test]
fn a_disks_buffers_are_whole_sectors_and_full() {
    let machine = machine("cascadelake-cx5");
    let (iops, bytes_per_second) = (machine.disk_iops.expect("a disk"), machine.disk_bytes_per_second.expect("a disk"));
    for (name, expected) in [
        ("q-nvme-randread4k.strict.2cpu", iops),
        ("nvme-seqread128k.strict.4cpu", bytes_per_second / f64::from(128 << 10)),
    ] {
        let outcome = unprotected(&machine, replay(&bundled(name)));
        assert_eq!((outcome.traffic, outcome.limit), (Traffic::Disk, Limit::Disk), "{name}");
        assert!(is_near(outcome.estimate_operations_per_second, expected), "{name}: {outcome:?}");
        assert_eq!(outcome.payload_bytes_min, outcome.payload_bytes_max, "{name}");
    }
    for name in ["q-e1000e-rx.strict.2cpu", "q-e1000e-tx.lazy.2cpu"] {
        assert_eq!(unprotected(&machine, replay(&bundled(name))).traffic, Traffic::Network, "{name}");
    }
    // A card may have nothing but receive buffers of whole sectors. It refills its ring in interrupts.
    for (who, traffic) in [(("<idle>-0", 0, "..s1."), Traffic::Network), (TASK, Traffic::Disk)] {
        let mut capture = Capture::default();
        for number in 0..20 {
            let whole = Buffer { len: 2048, ..buffer(number) };
            capture.at(number).map(who, whole, WRITES).unmap(who, whole);
        }
        assert_eq!(unprotected(&machine, replay(&capture.read())).traffic, traffic, "{who:?}");
    }
    // A machine without disks has no disk traffic, and one without a link has no other traffic.
    let disk = replay(&bundled("q-nvme-randread4k.strict.2cpu"));
    assert_eq!(unprotected(&super::machine("r210-cx3"), disk).traffic, Traffic::Network);
    let mut storage = machine;
    storage.link_gbps = None;
    assert_eq!(unprotected(&storage, replay(&bundled("q-e1000e-rx.strict.2cpu"))).traffic, Traffic::Disk);
}

#[test]
fn a_buffer_waits_from_its_unmap_to_the_end_of_its_batch() {
    let machine = machine("cascadelake-cx5");
    let mut capture = Capture::default();
    for number in 0..4 {
        capture.map(TASK, frame(number), READS);
    }
    for number in 0..4 {
        capture.at(100 + 10 * number).unmap(TASK, frame(number));
    }
    let run = |batch| {
        measured(&Job {
            batch,
            pace: Pace::Timestamps,
            ..job(&machine, replay(&capture.read()), DesignId::Stock, Strict)
        })
    };
    let batched = run(64);
    assert_eq!((batched.batch_buffers_mean, batched.batch_buffers_max), (Some(4.0), Some(4)));
    // The first buffer waits for three pauses of 10 µs, and the last for none. The commit also takes time.
    let (mean, most) = (batched.batch_wait_us_mean.expect("waits"), batched.batch_wait_us_max.expect("waits"));
    assert!((15.0..17.0).contains(&mean) && (30.0..32.0).contains(&most), "{mean} {most}");
    assert_eq!((run(1).batch_buffers_mean, run(1).batch_wait_us_max), (None, None));
    let deferred = measured(&Job { batch: 64, ..job(&machine, replay(&capture.read()), DesignId::Stock, Deferred) });
    assert_eq!(deferred.batch_buffers_max, Some(4));
}
