//! Servers with a network card: what they carry comes out of events, agrees with the estimate where both apply, and is
//! the same every time.

use super::machine;
use portcullis::Protection::{self, Deferred, Strict};
use portcullis_designs::DesignId;
use portcullis_sim::simulate::{Simulate, Simulation};
use portcullis_sim::{Choice, LabDesign, Machine, RunError, SERVER_WORKLOADS, ServerError, ServerWork, ServerWorkload};
use serde_json::json;

const MACHINES: [&str; 2] = ["r210-cx3", "r210-bcm57810"];

fn choice(design: DesignId) -> Choice {
    LabDesign::from(design).into()
}

const REQUESTS: [&str; 4] = ["netperf-rr", "apache-1m", "apache-1k", "memcached"];

fn work(machine: &Machine, name: &str) -> ServerWork {
    ServerWork::new(machine, name, None, None, None).expect("a server")
}

fn stream(machine: &Machine) -> ServerWork {
    work(machine, "netperf-stream")
}

/// A stream after few earlier runs. The order of addresses matters to the cost of a packet, and not to what comes of
/// that cost.
fn early_stream(machine: &Machine) -> ServerWork {
    ServerWork { earlier_runs: 10, ..stream(machine) }
}

fn simulated(machine: &Machine, work: ServerWork, design: DesignId, protection: Protection) -> Simulation {
    let run = Simulate::new(machine, work, choice(design), protection).expect("it is offered");
    run.run(|_| ()).unwrap_or_else(|error| panic!("{} {protection}: {error}", design.info().id))
}

fn is_near(ours: f64, published: f64, tolerance: f64) -> bool {
    (ours / published - 1.0).abs() < tolerance
}

#[test]
fn with_no_protection_the_published_rates_are_reached() {
    // Calibration: cycles per packet and per request, and the client of a request, are taken from these.
    let published = [
        ("r210-cx3", 19.79, 100.0, [74_800.0, 1914.0, 12_090.0, 134_300.0]),
        ("r210-bcm57810", 9.40, 31.4, [29_000.0, 1120.0, 13_370.0, 159_700.0]),
    ];
    for (id, gbps, cpu_percent, rates) in published {
        let machine = machine(id);
        let streamed = simulated(&machine, stream(&machine), DesignId::Unprotected, Protection::None);
        let ours = streamed.throughput_gbps.expect("a stream");
        assert!(is_near(ours, gbps, 0.01), "{id}: {ours} Gb/s");
        assert!(is_near(streamed.cpu_percent, cpu_percent, 0.02), "{id}: {} % of the CPU", streamed.cpu_percent);
        assert_eq!(streamed.throughput_vs_none, 1.0, "{id}");
        assert!(streamed.drop_percent < Some(0.2), "{id}: {:?}", streamed.drop_percent);
        for (name, rate) in REQUESTS.iter().zip(rates) {
            let work = ServerWork { earlier_runs: 0, ..work(&machine, name) };
            let asked = simulated(&machine, work, DesignId::Unprotected, Protection::None);
            let ours = asked.transactions_per_second.expect("requests");
            // There the CPU was idle for 3 % of the time. Here it never is.
            let tolerance = if (id, *name) == ("r210-bcm57810", "apache-1k") { 0.035 } else { 0.015 };
            assert!(is_near(ours, rate, tolerance), "{id}, {name}: {ours} requests per second");
            assert!(asked.throughput_gbps.is_none() && asked.latency_us_p99 >= asked.latency_us_mean);
        }
    }
}

/// Whether what comes of events is within 15 % of what the same work is estimated to reach.
fn agrees(machine: &Machine, design: DesignId, protection: Protection) -> bool {
    let ours = simulated(machine, early_stream(machine), design, protection);
    is_near(ours.throughput_gbps.expect("a stream"), ours.outcome.estimate_gbps, 0.15)
}

#[test]
fn a_saturated_stream_reaches_what_is_estimated() {
    for id in MACHINES {
        let machine = machine(id);
        for (design, protection) in [
            (DesignId::Unprotected, Protection::None),
            (DesignId::Eiovar, Strict),
            (DesignId::Eiovar, Deferred),
            (DesignId::Portcullis, Strict),
        ] {
            assert!(agrees(&machine, design, protection), "{id}: {} {protection}", design.info().id);
        }
    }
}

#[test]
fn without_the_card_it_does_not() {
    // A card that takes no time, on a link without end: what is left is the CPU, and it alone would carry three times
    // as much.
    let mut machine = machine("r210-bcm57810");
    let nic = &mut machine.server.as_mut().expect("a server").nic;
    (nic.link_gbps, nic.doorbell_ps, nic.read_ps) = (1e6, 0, 0);
    (nic.read_window_bytes, nic.write_window_bytes) = (1 << 40, 1 << 40);
    let driver = &mut machine.server.as_mut().expect("a server").driver;
    driver.transmit_moderation.delay_ps = 0;
    assert!(!agrees(&machine, DesignId::Unprotected, Protection::None));
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_does_not() {
    let machine = machine("r210-bcm57810");
    let bytes = |seed| {
        // The client of a stream does nothing at random.
        let work = ServerWork { earlier_runs: 1, warm_up: 100, measured: 2_000, ..work(&machine, "netperf-rr") };
        let mut run = Simulate::new(&machine, work, choice(DesignId::Stock), Strict).expect("it is offered");
        run.seed = seed;
        json!(run.run(|_| ()).expect("it runs")).to_string()
    };
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
}

#[test]
fn every_combination_runs_or_says_why_not() {
    let machines: Vec<_> = Machine::all().into_iter().filter(|machine| machine.server.is_some()).collect();
    for (machine, (name, ..)) in machines.iter().flat_map(|one| SERVER_WORKLOADS.iter().map(move |two| (one, two))) {
        // A call that is lost beside the first burst of a stream waits for 200 ms. Here calls are alone.
        let cores = (*name == "rpc-tail").then_some(1);
        // In small rings entries are used again soon.
        let work = match ServerWork::new(machine, name, cores, None, Some(256)) {
            Ok(work) => {
                let (earlier_packets, measured) =
                    if work.workload == ServerWorkload::Apache1m { (4, 16) } else { (50, 200) };
                ServerWork { earlier_runs: 2, earlier_packets, warm_up: 0, measured, ..work }
            }
            Err(error) => {
                assert!(matches!(error, ServerError::Driver { .. }), "{error}");
                continue;
            }
        };
        for design in DesignId::ALL {
            for protection in [Strict, Deferred, Protection::None] {
                match Simulate::new(machine, work.clone(), choice(*design), protection) {
                    Ok(run) => {
                        let ended = run.run(|_| ());
                        let what = format!("{name} on {}: {} {protection}", machine.id, design.info().id);
                        let outcome = ended.unwrap_or_else(|error| panic!("{what}: {error}")).outcome;
                        assert_eq!(outcome.faults, 0, "{what}");
                        assert!(protection != Strict || outcome.stale_accesses == 0, "{what}: S2");
                    }
                    Err(error) => {
                        let text = error.to_string();
                        assert!(!design.info().protections.contains(&protection), "{text}");
                        assert!(text.contains(design.info().id) && !text.contains('\n'), "{text}");
                    }
                }
            }
        }
    }
}

#[test]
fn free_software_leaves_the_wait_for_the_hardware() {
    let mut machine = machine("r210-cx3");
    machine = machine.with_free_software();
    let ours = simulated(&machine, early_stream(&machine), DesignId::Eiovar, Strict).outcome;
    assert!(ours.cycles_per_page > 1000.0, "{}", ours.cycles_per_page);
    assert!(is_near(ours.wait_cycles_per_page, ours.cycles_per_page, 1e-9), "{ours:?}");
}

#[test]
fn more_cores_and_flows_carry_more_up_to_the_link() {
    let mut machine = machine("r210-cx3");
    machine.cores = 4;
    let carried = |cores, flows| {
        let work = ServerWork::new(&machine, "netperf-stream", Some(cores), Some(flows), Some(256)).expect("a server");
        let work = ServerWork { earlier_runs: 10, ..work };
        simulated(&machine, work, DesignId::Portcullis, Strict).throughput_gbps.expect("a stream")
    };
    let (one, two, four) = (carried(1, 3), carried(2, 4), carried(4, 16));
    assert!(is_near(two, 2.0 * one, 0.1), "{one} and {two} Gb/s");
    let link = 40.0 * 1448.0 / 1538.0;
    // What the card had received before the measurement adds a little.
    assert!(is_near(four, link, 0.05), "{four} of {link} Gb/s");
}

#[test]
fn a_run_in_which_no_client_makes_progress_ends() {
    let mut machine = machine("r210-bcm57810");
    // No acknowledgement gets through, so that the window stays full.
    machine.server.as_mut().expect("a server").nic.receive_buffer_bytes = 0;
    let run = Simulate::new(&machine, stream(&machine), choice(DesignId::Eiovar), Strict).expect("it is offered");
    let ended = run.run(|_| ());
    assert!(matches!(ended, Err(RunError::NoProgress)), "{ended:?}");
}

#[test]
fn a_full_transmit_ring_loses_no_frame() {
    // More clients than entries, each with frames that open and close its connections.
    let machine = machine("r210-cx3");
    let work = ServerWork::new(&machine, "apache-1m", None, Some(128), Some(64)).expect("a server");
    let work = ServerWork { earlier_runs: 0, warm_up: 128, measured: 256, ..work };
    let run = Simulate::new(&machine, work, choice(DesignId::Eiovar), Strict).expect("it is offered");
    let ours = run.run(|_| ()).expect("no client is left waiting");
    // With a client fewer, the others would be served sooner.
    let (latency_us, rate) = (ours.latency_us_mean.expect("requests"), ours.transactions_per_second.expect("requests"));
    assert!(is_near(latency_us * 1e-6 * rate, 128.0, 0.1), "{latency_us} us at {rate} requests per second");
}

#[test]
fn work_that_a_machine_cannot_do_is_named() {
    let (cx3, bcm) = (machine("r210-cx3"), machine("r210-bcm57810"));
    let refused = |machine: &Machine, name: &str, cores, flows, ring, parts: &[&str]| {
        let error = ServerWork::new(machine, name, cores, flows, ring).expect_err(name).to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    refused(&cx3, "netperf", None, None, None, &["`netperf`", "netperf-stream, netperf-rr"]);
    let no_card = Machine { server: None, ..machine("cascadelake-cx5") };
    refused(&no_card, "netperf-rr", None, None, None, &["cascadelake-cx5", "r210-cx3, r210-bcm57810"]);
    refused(&cx3, "netperf-rr", Some(0), None, None, &["--cores 0", "from 1 to 1"]);
    refused(&cx3, "netperf-rr", None, Some(0), None, &["--flows 0", "from 1"]);
    refused(&cx3, "netperf-rr", None, Some(4097), None, &["--flows 4097", "to 4096"]);
    refused(&cx3, "netperf-rr", None, None, Some(1000), &["--ring 1000", "a power of two", "mlx4_en"]);
    refused(&bcm, "netperf-rr", None, None, Some(5000), &["--ring 5000", "4078"]);
    let work = ServerWork::new(&bcm, "netperf-rr", None, Some(3), Some(1000)).expect("any number will do here");
    assert_eq!((work.workload, work.transmit_entries, work.receive_entries), (ServerWorkload::NetperfRr, 1000, 1000));
}
