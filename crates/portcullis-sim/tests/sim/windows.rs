//! How long a buffer stays within the device's reach after its unmap, and what else lies in its page.

use super::capture::{Buffer, Capture, OTHER_CPU, READS, TASK, WRITES, buffer};
use super::{STRICT_TRACES, bundled, every_trace, every_translating, job, machine, measured, replay};
use portcullis::Protection;
use portcullis::invalidation::{QUEUE_CAPACITY, QUEUE_TIMEOUT_US};
use portcullis::mapper::Addressing;
use portcullis_designs::DesignId;
use portcullis_sim::{Job, Pace, RunOutcome};

const TIMEOUT_US: f64 = QUEUE_TIMEOUT_US as f64;
/// The resolution of the timer, and a flush of less than a microsecond.
const TIMER_US: f64 = 2.0;

fn stock(capture: &Capture, protection: Protection) -> RunOutcome {
    let machine = machine("cascadelake-cx5");
    measured(&job(&machine, replay(&capture.read()), DesignId::Stock, protection))
}

fn windows(outcome: &RunOutcome) -> (f64, f64) {
    (outcome.stale_window_us_mean.expect("there were unmaps"), outcome.stale_window_us_max.expect("it translates"))
}

#[test]
fn a_lone_unmap_waits_for_the_timer() {
    let lone = Buffer { len: 1500, ..buffer(0) };
    let mut capture = Capture::default();
    capture.map(TASK, lone, WRITES).at(100).unmap(TASK, lone);
    for pace in [Pace::Timestamps, Pace::Gaps(0.0), Pace::Gaps(3.0)] {
        let machine = machine("cascadelake-cx5");
        let job = job(&machine, replay(&capture.read()), DesignId::Stock, Protection::Deferred);
        let outcome = measured(&Job { pace, ..job });
        let (mean, max) = windows(&outcome);
        assert!((max - TIMEOUT_US).abs() < TIMER_US, "{pace:?}: {max} us");
        assert_eq!(mean, max);
        assert_eq!((outcome.stale_accesses, outcome.invalidations_per_page), (1, 1.0));
        let bytes_us = outcome.stale_bytes_us.unwrap();
        assert!((bytes_us - 1500.0 * max).abs() < 1.0, "{bytes_us} bytes·us");
    }
}

#[test]
fn the_oldest_of_what_waits_ages_until_the_timer_comes() {
    // There is an unmap every millisecond. The first of them waits longest, and then the first one after the flush.
    let mut capture = Capture::default();
    for number in 0..25 {
        capture.at(1000 * number).map(TASK, buffer(number), WRITES).unmap(TASK, buffer(number));
    }
    let machine = machine("cascadelake-cx5");
    let job = job(&machine, replay(&capture.read()), DesignId::Stock, Protection::Deferred);
    let outcome = measured(&Job { pace: Pace::Timestamps, ..job.clone() });
    let (ages_us, piece_us) = (outcome.stale_window_us_over_time.unwrap(), outcome.stale_window_piece_us.unwrap());
    assert_eq!(piece_us, 512.0, "the run and its last window take more than 100 pieces of 256 us");
    let steps = ages_us.windows(2).map(|pair| pair[1] - pair[0]);
    let falls = steps.clone().filter(|step| *step < 0.0).count();
    assert_eq!(falls, 2, "three windows of 10 ms, one after the other: {ages_us:?}");
    assert!(steps.filter(|step| *step > 0.0).all(|step| step < piece_us + TIMER_US), "an age grows as time passes");
    assert_eq!(ages_us.iter().copied().fold(0.0, f64::max), outcome.stale_window_us_max.unwrap());
    let strict = measured(&Job { protection: Protection::Strict, ..job.clone() });
    assert_eq!(strict.stale_window_us_over_time, Some(Vec::new()), "nothing waits");
    let none = measured(&Job { design: DesignId::Static.into(), protection: Protection::None, ..job });
    assert_eq!((none.stale_window_us_over_time, none.stale_window_piece_us), (None, None), "nothing is taken back");
}

#[test]
fn a_full_queue_does_not_wait_for_the_timer() {
    let unmapped = |count: u64| {
        let mut capture = Capture::default();
        for number in 0..count {
            capture.at(2 * number).map(TASK, buffer(number), WRITES);
        }
        capture.at(2000);
        for number in 0..count {
            capture.unmap(TASK, buffer(number));
        }
        let outcome = stock(&capture, Protection::Deferred);
        let flushes = (outcome.invalidations_per_page * outcome.pages as f64).round();
        (flushes, outcome.stale_accesses, windows(&outcome))
    };
    let full = QUEUE_CAPACITY as u64;
    let (flushes, stale, (mean, _)) = unmapped(full);
    assert_eq!((flushes, stale), (1.0, full));
    assert!(mean > 0.9 * TIMEOUT_US, "{mean} us: all of them wait for the timer");
    // One more finds no room. Its translations are cleared by then, so the flush covers them too. The timer still
    // fires for what waits in the queue.
    let (flushes, stale, (_, max)) = unmapped(full + 1);
    assert_eq!((flushes, stale), (2.0, full));
    assert!(max < 0.1 * TIMEOUT_US, "{max} us");
}

/// If an invalidation is submitted and not waited for, the window is the time that the hardware takes, including what
/// is ahead in its queue.
#[test]
fn where_nobody_waits_the_window_is_the_queue() {
    let unmapped = |count: u64| {
        let machine = machine("cascadelake-cx5");
        let mut capture = Capture::default();
        for number in 0..count {
            capture.at(2 * number).map(TASK, buffer(number), WRITES);
        }
        capture.at(2000);
        for number in 0..count {
            capture.unmap(TASK, buffer(number));
        }
        let outcome = measured(&job(&machine, replay(&capture.read()), DesignId::MacOs, Protection::Deferred));
        assert_eq!((outcome.stale_accesses, outcome.invalidations_per_page), (count, 1.0));
        windows(&outcome).1
    };
    let (alone, behind) = (unmapped(1), unmapped(64));
    assert!(0.0 < alone && alone < 2.0, "{alone} us: as long as one invalidation takes");
    assert!(
        behind > 4.0 * alone && behind < 64.0 * alone,
        "{behind} us: behind others in the queue, and {alone} us alone"
    );
}

#[test]
fn the_timer_does_not_wait_for_a_cpu_that_has_nothing_to_do() {
    // The first CPU queues an unmap and then does nothing until the second has done 40 ms of work.
    let mut machine = machine("cascadelake-cx5");
    machine.bytes_in_flight = machine.transaction_bytes;
    machine.disk_bytes_in_flight = None;
    machine.iommu.set("hit_ps", "1000000000").unwrap();
    let mut capture = Capture::default();
    let short = |number| Buffer { len: 64, ..buffer(number) };
    capture.map(TASK, short(0), WRITES).unmap(TASK, short(0));
    for number in 1..41 {
        capture.at(number).map(OTHER_CPU, short(number), WRITES).unmap(OTHER_CPU, short(number));
    }
    capture.at(50).map(TASK, short(41), WRITES).unmap(TASK, short(41));
    let job = job(&machine, replay(&capture.read()), DesignId::Stock, Protection::Deferred);
    for pace in [Pace::Timestamps, Pace::Gaps(0.0)] {
        let (_, max) = windows(&measured(&Job { pace, ..job.clone() }));
        assert!((max - TIMEOUT_US).abs() < TIMER_US, "{pace:?}: {max} us");
    }
}

#[test]
fn strict_leaves_none() {
    let mut capture = Capture::default();
    for number in 0..30 {
        capture.at(10 * number).map(TASK, buffer(number), WRITES).at(10 * number + 5).unmap(TASK, buffer(number));
    }
    let (strict, deferred) = (stock(&capture, Protection::Strict), stock(&capture, Protection::Deferred));
    assert_eq!((strict.stale_accesses, windows(&strict)), (0, (0.0, 0.0)));
    assert_eq!(strict.stale_bytes_us, Some(0.0));
    // The work is the same.
    assert_eq!((strict.operations, strict.pages), (deferred.operations, deferred.pages));
    assert_eq!(strict.iotlb_misses_per_page, deferred.iotlb_misses_per_page);
    assert_eq!((deferred.stale_accesses, deferred.residual_bytes_us), (30, Some(0.0)));
}

/// The CPUs follow each other as closely as possible.
#[test]
fn strict_leaves_none_on_any_trace() {
    let machine = machine("cascadelake-cx5");
    for (name, trace) in every_trace() {
        for (design, protection) in every_translating().filter(|(_, protection)| *protection == Protection::Strict) {
            let outcome = measured(&Job { pace: Pace::Gaps(0.0), ..job(&machine, replay(&trace), design, protection) });
            let found = (outcome.stale_accesses, outcome.faults, windows(&outcome));
            assert_eq!(found, (0, 0, (0.0, 0.0)), "{name} under {}", design.info().id);
        }
    }
}

#[test]
fn every_page_of_a_mapping_is_asked_about() {
    let across = Buffer { page: 0x40, phys: 0x9c40, len: 1522 };
    let mut capture = Capture::default();
    capture.map(TASK, across, WRITES).at(10).unmap(TASK, across);
    assert_eq!(stock(&capture, Protection::Deferred).stale_accesses, 2);
    assert_eq!(stock(&capture, Protection::Strict).stale_accesses, 0);
}

/// If only the next map of an address ends a window, the window lasts until then. A window that nothing ends is
/// counted up to the last operation.
#[test]
fn a_window_without_bound_lasts_until_the_address_is_used_again() {
    let across = |number| Buffer { len: 2 * 4096, ..buffer(number) };
    let mut capture = Capture::default();
    capture.map(TASK, buffer(0), WRITES).at(1_000).unmap(TASK, buffer(0));
    // This buffer gets the same address. The one of two pages gets other addresses.
    capture.at(21_000).map(TASK, buffer(1), WRITES).at(22_000).unmap(TASK, buffer(1));
    capture.at(30_000).map(TASK, across(4), WRITES).at(62_000).unmap(TASK, across(4));
    let machine = machine("cascadelake-cx5");
    let outcome = measured(&job(&machine, replay(&capture.read()), DesignId::Solaris, Protection::Deferred));
    assert_eq!((outcome.operations, outcome.pages, outcome.faults), (3, 4, 0));
    assert_eq!((outcome.stale_accesses, outcome.invalidations_per_page * 4.0), (4, 3.0), "one command per map");
    let (mean, max) = windows(&outcome);
    assert!((max - 40_000.0).abs() < TIMER_US, "{max} us: from the second unmap to the last operation");
    assert!((mean * 3.0 - 60_000.0).abs() < 2.0 * TIMER_US, "{mean} us: 20 ms, 40 ms and none");
    let bytes_us = outcome.stale_bytes_us.unwrap();
    assert!((bytes_us / (4096.0 * 60_000.0) - 1.0).abs() < 0.001, "{bytes_us} bytes·us");
    // The invalidations of the first and the last map cover no stale page.
    assert_eq!(outcome.over_invalidated_pages, 1 + 2);
}

#[test]
fn windows_without_bound_are_seen_on_a_trace() {
    let machine = machine("cascadelake-cx5");
    for name in STRICT_TRACES {
        let outcome = measured(&job(&machine, replay(&bundled(name)), DesignId::Solaris, Protection::Deferred));
        assert_eq!(outcome.faults, 0, "{name}");
        assert!(outcome.stale_accesses > outcome.pages / 2, "{name}: {} of {}", outcome.stale_accesses, outcome.pages);
        assert!(windows(&outcome).1 > TIMEOUT_US, "{name}: longer than any that ends with a timer");
        assert_eq!(outcome.search_steps_max, Some(0), "{name}");
    }
}

/// A receive page in a pool stays within reach from its hand-back until it is mapped again. Buffers that the device
/// reads are not pooled, and strict.
#[test]
fn a_pooled_page_is_within_reach_until_it_is_mapped_again() {
    let page = buffer(0);
    let mut capture = Capture::default();
    capture.map(TASK, page, WRITES).at(100).unmap(TASK, page).at(5_100).map(TASK, page, WRITES);
    capture.at(6_000).unmap(TASK, page).at(7_000).map(TASK, buffer(1), READS).unmap(TASK, buffer(1));
    let machine = machine("cascadelake-cx5");
    let job = job(&machine, replay(&capture.read()), DesignId::PagePool, Protection::Deferred);
    let outcome = measured(&Job { pace: Pace::Timestamps, ..job });
    let (mean, max) = windows(&outcome);
    assert!((max - 5_000.0).abs() < TIMER_US && (3.0 * mean - 6_000.0).abs() < TIMER_US, "{mean}, {max} us");
    assert_eq!((outcome.stale_accesses, outcome.invalidations_per_page), (2, 1.0 / 3.0), "one for what it reads");
}

/// Two buffers share a page, each under its own address or both under one. The part of the page that the device
/// reaches through the other mapping is not stale, and is reported as residual.
#[test]
fn the_other_half_of_a_page_is_residual_and_not_stale() {
    let halves = [0, 1].map(|half| Buffer { page: 0x40 + half, phys: 0x9000 + 2048 * half, len: 2048 });
    let mut capture = Capture::default();
    capture.map(TASK, halves[0], WRITES).at(1_000).map(TASK, halves[1], WRITES);
    // The unmaps are 9 ms apart: the flush of the first, after 10 ms, must not coincide with the unmap of the second.
    capture.at(10_000).unmap(TASK, halves[0]).at(19_000).unmap(TASK, halves[1]);
    for (design, protection) in every_translating() {
        let machine = machine("cascadelake-cx5");
        let outcome = measured(&job(&machine, replay(&capture.read()), design, protection));
        let run = format!("{} {protection}", design.info().id);
        // 1 ms before the second half is mapped, and 9 ms after the first is unmapped. Nothing while both are live.
        let residual = outcome.residual_bytes_us.unwrap();
        if outcome.riotlb.is_some() {
            assert_eq!((residual, outcome.stale_accesses), (0.0, 0), "{run}: an entry ends with its buffer");
            continue;
        }
        assert!((residual / (2048.0 * 10_000.0) - 1.0).abs() < 0.01, "{run}: {residual} bytes·us");
        let shared = design.info().addressing == Addressing::Shared;
        let stale = if protection == Protection::Strict { 0 } else { 2 - u64::from(shared) };
        assert_eq!(outcome.stale_accesses, stale, "{run}");
        if shared {
            // The first unmap leaves nothing to flush, and its buffer has no window.
            let (mean, max) = windows(&outcome);
            if outcome.bound_us.is_none() {
                // The run ends with the second unmap, and the window with the run.
                assert_eq!((mean, max), (0.0, 0.0), "{run}");
                continue;
            }
            assert!((max - TIMEOUT_US * stale as f64).abs() < TIMER_US && mean == max / 2.0, "{run}: {mean}, {max} us");
        }
    }
}

/// The first half is handed back while the unmap of the second is in progress on another CPU: cleared, but not yet
/// invalidated. What the device reaches then belongs to a mapping whose buffer is not handed back.
#[test]
fn a_page_whose_last_unmap_is_under_way_is_not_stale() {
    let mut machine = machine("cascadelake-cx5");
    machine.iommu.set("invalidation_ps", "100000000").unwrap();
    let halves = [0, 1].map(|half| Buffer { page: 0x40 + half, phys: 0x9000 + 2048 * half, len: 2048 });
    let mut capture = Capture::default();
    capture.map(TASK, halves[0], WRITES).map(OTHER_CPU, halves[1], WRITES);
    // The first unmap waits in its batch for the map that ends it.
    capture.at(100).unmap(TASK, halves[0]).at(200).unmap(OTHER_CPU, halves[1]).at(250).map(TASK, buffer(9), WRITES);
    for (design, protection) in every_translating().filter(|(_, protection)| *protection == Protection::Strict) {
        let outcome = measured(&Job { batch: 64, ..job(&machine, replay(&capture.read()), design, protection) });
        assert_eq!((outcome.stale_accesses, windows(&outcome)), (0, (0.0, 0.0)), "{}", design.info().id);
    }
}
