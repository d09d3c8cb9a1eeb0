//! A card that joins segments of streams (TPA of bnx2x), and buffers that are cut from runs of pages. What each must
//! change, and in which direction, follows from the driver's source, and was written down before the first run.

use super::machine;
use portcullis::Protection::{self, Deferred, Strict};
use portcullis_designs::DesignId;
use portcullis_sim::simulate::{Simulate, Simulation};
use portcullis_sim::{LabDesign, Machine, ServerWork};

/// The machine, with some of its values changed.
fn bcm(settings: &[(&str, &str)]) -> Machine {
    let mut machine = machine("r210-bcm57810");
    settings.iter().for_each(|(key, value)| machine.set(key, value).expect(key));
    assert_eq!(machine.check(), Ok(()));
    machine
}

const NOT_JOINED: (&str, &str) = ("joined_bytes", "0");
const PAGE_EACH: (&str, &str) = ("fragment_bytes", "0");

fn simulated(machine: &Machine, workload: &str, design: DesignId, protection: Protection) -> Simulation {
    let work = ServerWork::new(machine, workload, None, None, None).expect("a server");
    let work = ServerWork { earlier_runs: 3, ..work };
    let choice = LabDesign::from(design).into();
    let run = Simulate::new(machine, work, choice, protection).expect("it is offered");
    let ended =
        run.run(|_| ()).unwrap_or_else(|error| panic!("{workload}, {} {protection}: {error}", design.info().id));
    assert_eq!(ended.outcome.faults, 0);
    ended
}

fn stream(machine: &Machine, design: DesignId, protection: Protection) -> Simulation {
    simulated(machine, "netperf-stream", design, protection)
}

/// Maps for each packet of a stream.
fn maps(stream: &Simulation) -> f64 {
    // The packets of the measurement.
    stream.outcome.operations as f64 / 40_000.0
}

#[test]
fn a_joined_stream_has_the_maps_that_the_source_says() {
    // 22 segments are at most 32 KiB, and take a buffer and eight pages. The last of 45 has the flag PSH, and it is the
    // third packet: 19 maps. Two of the packets are acknowledged at once, and the third with the next one: 21 maps.
    let joined = stream(&bcm(&[]), DesignId::Eiovar, Deferred);
    assert!((maps(&joined) / (21.0 / 45.0) - 1.0).abs() < 0.05, "{} maps", maps(&joined));
    let alone = stream(&bcm(&[NOT_JOINED]), DesignId::Eiovar, Deferred);
    assert!((1.0..1.2).contains(&maps(&alone)), "{} maps", maps(&alone));
}

#[test]
fn joining_lets_a_stream_search_for_longer_and_take_less_of_the_cpu() {
    // Named beforehand. Maps become fewer, see above. Searches become longer: buffers and pages lie apart, so that the
    // place from which the allocator searches moves from one to the other with each packet. Deferred, the link is full
    // in either case and the CPU does less. Strict without searches, the CPU is the limit and the stream is faster.
    let (joined, alone) = (bcm(&[]), bcm(&[NOT_JOINED]));
    let of = |design, protection| [&joined, &alone].map(|machine| stream(machine, design, protection));
    let [with, without] = of(DesignId::Stock, Strict);
    let steps = [&with, &without].map(|one| one.outcome.search_steps_mean.expect("a tree"));
    assert!(steps[0] > 1.5 * steps[1], "{steps:?} steps");
    let [with, without] = of(DesignId::Eiovar, Deferred);
    assert!(with.throughput_gbps > without.throughput_gbps.map(|rate| 0.98 * rate));
    assert!(with.cpu_percent < 0.8 * without.cpu_percent, "{} and {} %", with.cpu_percent, without.cpu_percent);
    let [with, without] = of(DesignId::Eiovar, Strict).map(|one| one.throughput_gbps.expect("a stream"));
    assert!(with > 1.1 * without, "{with} and {without} Gb/s");
}

#[test]
fn joining_changes_no_requests() {
    // A request of one byte is not a full segment of a stream, so the card joins nothing: as many maps.
    let maps = |settings: &[(&str, &str)]| {
        simulated(&bcm(settings), "netperf-rr", DesignId::Eiovar, Strict).outcome.operations
    };
    assert_eq!(maps(&[]), maps(&[NOT_JOINED]));
}

#[test]
fn buffers_that_cross_pages_take_two_addresses() {
    // Of the 16 buffers of a run, seven cross the end of a page: one page and 7/16 for each buffer that is received,
    // and one for each that is sent. A packet is sent for each that comes.
    let pages = |settings: &[(&str, &str)]| {
        let outcome = simulated(&bcm(settings), "netperf-rr", DesignId::Eiovar, Strict).outcome;
        outcome.pages as f64 / outcome.operations as f64
    };
    let (cut, whole) = (pages(&[]), pages(&[PAGE_EACH]));
    assert!((cut - (1.0 + 7.0 / 32.0)).abs() < 0.01 && (whole - 1.0).abs() < 1e-9, "{cut} and {whole} pages a map");
}

#[test]
fn batches_of_joined_segments_let_nothing_stale_through() {
    let machine = bcm(&[]);
    for design in [DesignId::Portcullis, DesignId::RIommu, DesignId::Magazine, DesignId::Identity] {
        for halves in [false, true] {
            let work = ServerWork::new(&machine, "netperf-stream", None, None, None).expect("a server");
            let work =
                ServerWork { earlier_runs: 1, earlier_packets: 500, warm_up: 0, measured: 20_000, halves, ..work };
            let mut run = Simulate::new(&machine, work, LabDesign::from(design).into(), Strict).expect("it is offered");
            run.batch = Some(64);
            let made = run.run(|_| ()).expect("it runs");
            let outcome = made.outcome;
            assert!(outcome.operations < 20_000, "segments were joined: {} buffers", outcome.operations);
            assert_eq!((outcome.faults, outcome.stale_accesses), (0, 0), "{}, halves: {halves}", design.info().id);
        }
    }
}
