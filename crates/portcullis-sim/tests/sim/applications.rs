//! Applications and calls at 100 Gb/s. Each test names the direction in which a result must move.

use super::{at_100_gbps, machine};
use portcullis_sim::simulate::Simulation;
use portcullis_sim::{Machine, ServerWork};

#[derive(Clone, Copy)]
struct Run {
    machine: &'static str,
    workload: &'static str,
    design: &'static str,
    /// The largest batch. 1 also means Linux 6.0, whose hint is lost.
    batch: usize,
    /// Before the measurement, and in it.
    work: [u64; 2],
    change: fn(&mut Machine),
}

const REDIS: Run = Run {
    machine: "cascadelake-cx5-9k",
    workload: "redis:value=4096",
    design: "magazine",
    batch: 1,
    work: [20_000, 60_000],
    change: |_| (),
};
const NGINX: Run = Run { workload: "nginx:page=131072", ..REDIS };
const SPDK: Run = Run { workload: "spdk:block=32768", ..REDIS };
/// With a small receive buffer, in which more frames find no room.
const CALLS: Run = Run {
    machine: "cascadelake-cx5",
    workload: "rpc-tail",
    work: [50, 300],
    change: |machine| machine.server.as_mut().expect("a server").nic.receive_buffer_bytes = 40_000,
    ..REDIS
};

impl Run {
    fn under(self, design: &'static str) -> Self {
        Self { design, batch: 64, ..self }
    }

    fn make(&self) -> Simulation {
        let mut machine = machine(self.machine);
        (self.change)(&mut machine);
        let flows = if self.machine == CALLS.machine { 6 } else { 16 };
        let work = ServerWork::new(&machine, self.workload, None, Some(flows), None).expect("a server");
        let [warm_up, measured] = self.work;
        at_100_gbps(&machine, ServerWork { warm_up, measured, ..work }, self.design, self.batch)
    }

    fn gbps(&self) -> f64 {
        self.make().throughput_gbps.expect("bytes are counted")
    }
}

#[test]
fn with_no_protection_applications_fill_the_link_and_the_others_come_in_the_published_order() {
    for work in [REDIS, NGINX, SPDK] {
        let [none, linux, windows, chunks] =
            [work.under("none"), work, work.under("fast-and-safe"), work.under("portcullis")].map(|run| run.gbps());
        assert!(none > 97.0, "{}: {none}", work.workload);
        assert!(linux < 0.7 * none, "{}: {linux} of {none}", work.workload);
        assert!(windows > 0.8 * none && chunks >= 0.99 * windows, "{}: {windows} {chunks}", work.workload);
    }
}

#[test]
fn messages_are_answered_one_for_one() {
    for (run, bytes_of_a_message) in
        [(REDIS, 4096.0 + 32.0 + 5.0), (NGINX, 131_072.0 + 240.0 + 48.0), (SPDK, 32_768.0 + 24.0 + 72.0)]
    {
        let made = run.under("portcullis").make();
        let bytes = made.throughput_gbps.expect("bytes") * 1e9 / 8.0;
        let messages = made.transactions_per_second.expect("messages") * bytes_of_a_message;
        // What is under way when the measurement begins and ends differs a little.
        assert!((messages / bytes - 1.0).abs() < 0.05, "{}: {messages} {bytes}", run.workload);
    }
    let redis = REDIS.under("portcullis").make();
    assert!(redis.receive_gbps > Some(500.0 * redis.transmit_gbps.expect("replies")), "it receives");
    let nginx = NGINX.under("portcullis").make();
    assert!(nginx.transmit_gbps > Some(500.0 * nginx.receive_gbps.expect("requests")), "it sends");
}

#[test]
fn linux_sends_files_page_by_page_and_waits_for_the_unit_for_each() {
    let slower = |machine: &mut Machine| {
        (machine.iommu.invalidation_ps, machine.iommu.wait_ps) =
            (2 * machine.iommu.invalidation_ps, 2 * machine.iommu.wait_ps);
    };
    let [usual, slow] = [NGINX, Run { change: slower, ..NGINX }].map(|run| run.gbps());
    assert!(slow < 0.7 * usual, "a slower unit lets it send less: {slow} {usual}");
    let [usual, slow] = [REDIS, Run { change: slower, ..REDIS }].map(|run| run.gbps());
    assert!(slow > 0.7 * usual, "what is received is hardly ever unmapped: {slow} {usual}");
    let never = Run { workload: "redis:value=4096,recycle=never", ..REDIS }.gbps();
    assert!(never < 0.8 * usual, "unless the driver keeps no page: {never} {usual}");
}

#[test]
fn frames_of_nine_thousand_bytes_share_pages() {
    // A frame of 36 strides of 256 bytes lies in 3.2 pages on average, and carries the payload of 2.2.
    let made = Run { workload: "redis:value=131072", ..REDIS }.under("portcullis").make();
    let misses = made.outcome.iotlb_misses_per_page;
    assert!((1.1..1.6).contains(&misses), "{misses}");
    let unmapped = made.unmapped_percent.expect("pages are unmapped");
    assert!((100.0..112.0).contains(&unmapped), "each page once, some of it unused: {unmapped}");
}

#[test]
fn a_call_that_is_lost_waits_for_a_timeout() {
    let median = |made: &Simulation| made.latency_us_p50.expect("calls");
    let none = median(&CALLS.under("none").make());
    let linux = CALLS.make();
    assert!(median(&linux) < 2.0 * none, "half of the calls hardly wait: {} {none}", median(&linux));
    let waited_us = linux.latency_us_mean.expect("calls") * CALLS.work[1] as f64;
    assert!(waited_us > 200_000.0 && linux.drop_percent > Some(0.1), "a few wait for 200 ms: {waited_us}");
    for design in ["fast-and-safe", "portcullis"] {
        let made = Run { change: |_| (), ..CALLS.under(design) }.make();
        let mean = made.latency_us_mean.expect("calls");
        assert!(median(&made) < 1.5 * none && mean < 1.2 * median(&made), "{design}: {mean} {}", median(&made));
    }
}

#[test]
fn sizes_and_parameters_that_do_not_exist_are_refused() {
    let refused = |id: &str, workload: &str| {
        ServerWork::new(&machine(id), workload, None, None, None).expect_err("it is refused").to_string()
    };
    for workload in [
        "redis:value=255",
        "redis:value=1048577",
        "rpc-tail:bytes=0",
        "redis:page=1",
        "nginx:page=x",
        "spdk:direction=send",
    ] {
        let error = refused("cascadelake-cx5-9k", workload);
        assert!(error.contains(workload.split_once(':').expect("a parameter").1), "{error}");
    }
    assert!(refused("r210-cx3", "redis").contains("mlx4_en"));
    let with = ServerWork::new(&machine("cascadelake-cx5"), "spdk:block=4096,regions=99", None, None, None);
    assert_eq!(with.map(|work| (work.size, work.iperf.regions, work.cores)), Ok((4096, Some(99), 8)));
}
