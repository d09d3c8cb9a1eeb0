//! Receive at 100 Gb/s: what makes Linux collapse with many flows, and what does not. Each test removes one mechanism
//! and names the direction in which the result must move.

use super::machine;
use portcullis::Protection;
use portcullis_sim::simulate::{Simulate, Simulation};
use portcullis_sim::{LabDesign, Machine, ServerWork};

/// A run of Linux 6.0 unless changed: single unmaps whose hint is lost.
struct Run {
    workload: &'static str,
    flows: u32,
    design: &'static str,
    batch: usize,
    hint: bool,
    set: &'static [(&'static str, &'static str)],
    seed: u64,
    /// Packets that are measured, after a third as many.
    measured: u64,
}

const LINUX: Run = Run {
    workload: "iperf:regions=46",
    flows: 5,
    design: "magazine",
    batch: 1,
    hint: false,
    set: &[],
    seed: 1,
    measured: 300_000,
};

impl Run {
    fn machine(&self) -> Machine {
        let mut machine = machine("cascadelake-cx5");
        for (key, value) in self.set {
            machine.set(key, value).expect("a value of the machine");
        }
        machine
    }

    fn make(&self) -> Simulation {
        let machine = self.machine();
        let work = ServerWork::new(&machine, self.workload, None, Some(self.flows), None).expect("a server");
        let work = ServerWork { warm_up: self.measured / 3, measured: self.measured, ..work };
        let choice = LabDesign::choice(self.design).expect("a design");
        let protection = if self.design == "none" { Protection::None } else { Protection::Strict };
        let mut run = Simulate::new(&machine, work, choice, protection).expect("it is offered");
        (run.batch, run.leaf_only_hint, run.seed) = (Some(self.batch), self.hint, self.seed);
        run.run(|_| ()).unwrap_or_else(|error| panic!("{} {}: {error}", self.design, self.workload))
    }

    fn gbps(&self) -> f64 {
        self.make().throughput_gbps.expect("a stream")
    }
}

/// With batches, as F&S and `portcullis` run.
fn batched(design: &'static str, flows: u32) -> Simulation {
    Run { workload: "iperf", flows, design, batch: 64, hint: true, ..LINUX }.make()
}

#[test]
fn windows_keep_the_paging_structure_caches_and_chunks_are_as_fast() {
    for (flows, published_gbps) in [(5, 97.6), (40, 84.8)] {
        let (windows, chunks) = (batched("fast-and-safe", flows), batched("portcullis", flows));
        let (outcome, gbps) = (&windows.outcome, windows.throughput_gbps.expect("a stream"));
        assert!((gbps / published_gbps - 1.0).abs() <= 0.15, "{flows} flows: {gbps} Gb/s");
        assert!(outcome.ptcache_l1_misses_per_page <= 0.005 && outcome.ptcache_l2_misses_per_page <= 0.005);
        assert!(outcome.ptcache_l3_misses_per_page <= 0.06, "{flows} flows: {}", outcome.ptcache_l3_misses_per_page);
        assert!((1.05..=1.4).contains(&outcome.iotlb_misses_per_page), "{}", outcome.iotlb_misses_per_page);
        assert!(chunks.throughput_gbps >= Some(gbps * 0.999), "{flows} flows: {:?}", chunks.throughput_gbps);
    }
}

#[test]
fn linux_loses_a_fifth_with_few_flows_and_collapses_with_many() {
    let few = LINUX.make();
    let few_gbps = few.throughput_gbps.expect("a stream");
    assert!((few_gbps / 77.8 - 1.0).abs() <= 0.15, "{few_gbps} Gb/s");
    let many = Run { workload: "iperf:regions=140", flows: 40, ..LINUX }.make();
    assert!(many.throughput_vs_none <= 0.6, "{}", many.throughput_vs_none);
    assert!(many.unmapped_percent >= Some(50.0), "{:?}", many.unmapped_percent);
    let [few_l1, many_l1] = [&few, &many].map(|one| one.outcome.ptcache_l1_misses_per_page);
    assert!(many_l1 >= 8.0 * few_l1, "{many_l1} and {few_l1}");
    let many_l3 = many.outcome.ptcache_l3_misses_per_page;
    assert!((0.895 / 1.5..=0.895 * 1.5).contains(&many_l3), "{many_l3}");
}

#[test]
fn pages_that_are_not_used_again_are_unmapped_one_by_one() {
    let l1 = |workload| Run { workload, measured: 600_000, ..LINUX }.make().outcome.ptcache_l1_misses_per_page;
    let (with, without) = (l1("iperf:regions=46"), l1("iperf:regions=46,recycle=never"));
    // 5 times was the goal, and 4.9 it is: more pages than published are unmapped with recycling too.
    assert!(without >= 4.5 * with, "{without} and {with}");
}

#[test]
fn without_pages_that_sockets_hold_there_is_no_collapse() {
    let holds = Run { workload: "iperf:regions=140", flows: 40, ..LINUX };
    let at_once = Run { workload: "iperf:regions=140,hold=no", ..holds };
    let (held, free) = (Run { workload: "iperf:regions=140", flows: 40, ..LINUX }.gbps(), at_once.gbps());
    assert!(free >= 1.5 * held, "{free} and {held} Gb/s");
}

#[test]
fn a_smaller_buffer_of_the_card_loses_more() {
    let rates = |set| [1, 2, 3].map(|seed| Run { set, seed, ..LINUX }.gbps());
    let (whole, half) = (rates(&[]), rates(&[("receive_buffer_bytes", "130944")]));
    let least = whole.into_iter().fold(f64::INFINITY, f64::min);
    let most = half.into_iter().fold(0.0, f64::max);
    assert!(most < least, "{half:?} and {whole:?}");
}

#[test]
fn what_an_invalidation_takes_from_the_iotlb_shows_there_alone() {
    // Runs that lose packets differ from seed to seed, so that each number is the middle one of three.
    let middle = |mut numbers: [f64; 3]| {
        numbers.sort_by(f64::total_cmp);
        numbers[1]
    };
    let medians = |set| {
        let runs = [1, 2, 3].map(|seed| Run { set, seed, ..LINUX }.make().outcome);
        let iotlb = runs.each_ref().map(|run| run.iotlb_misses_per_page);
        [middle(iotlb), middle(runs.map(|run| run.ptcache_l1_misses_per_page))]
    };
    let [all_iotlb, all_l1] = medians(&[("psi_drops", "all")]);
    let [exact_iotlb, exact_l1] = medians(&[]);
    assert!(all_iotlb > 1.05 * exact_iotlb, "{all_iotlb} and {exact_iotlb}");
    assert!((all_l1 / exact_l1 - 1.0).abs() < 0.25, "{all_l1} and {exact_l1}");
}

#[test]
fn the_parameters_of_the_workload_are_checked() {
    let machine = machine("cascadelake-cx5");
    for wrong in ["iperf:recycle=sometimes", "iperf:hold", "iperf:regions=5000", "iperf:message=64", "iperf:,"] {
        let error = ServerWork::new(&machine, wrong, None, None, None).expect_err(wrong).to_string();
        assert!(error.contains("recycle=driver|never|always"), "{error}");
    }
    let other = ServerWork::new(&machine, "netperf-rr", None, None, None).expect_err("another driver").to_string();
    assert!(other.contains("mlx5e of Linux 6.0"), "{other}");
    // What the rings take is checked too: 32 of each direction, whichever serve.
    let ring = |workload, entries| ServerWork::new(&machine, workload, None, None, Some(entries));
    assert!(ring("iperf", 64).is_ok() && ring("iperf:regions=0", 2048).is_ok());
    for large in [4096, 8192] {
        let error = ring("iperf", large).expect_err("too large").to_string();
        assert!(error.contains("256 MiB"), "{error}");
    }
    assert!(ring("iperf:regions=256", 2048).is_ok());
    let error = ring("iperf:regions=255", 2048).expect_err("too few regions").to_string();
    assert!(error.contains("fill 256"), "{error}");
    let small = super::machine("r210-cx3");
    assert!(ServerWork::new(&small, "iperf", None, None, None).is_err());
}
