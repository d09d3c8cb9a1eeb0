//! Streams in both directions at 100 Gb/s: what makes Linux receive so little beside what it sends, and what does not.
//! Each test removes one mechanism and names the direction in which the result must move.

use super::{at_100_gbps, machine};
use portcullis_sim::simulate::Simulation;
use portcullis_sim::{Machine, ServerWork};

/// Cores that receive, and as many that send.
const CORES: u32 = 4;

struct Run {
    workload: &'static str,
    cores: u32,
    design: &'static str,
    /// The largest batch. 1 also means Linux 6.0, whose hint is lost.
    batch: usize,
    change: fn(&mut Machine),
}

const LINUX: Run =
    Run { workload: "iperf:direction=both", cores: 2 * CORES, design: "magazine", batch: 1, change: |_| () };

impl Run {
    fn make(&self) -> Simulation {
        let mut machine = machine("icelake-cx5");
        (self.change)(&mut machine);
        let work = ServerWork::new(&machine, self.workload, Some(self.cores), None, None).expect("a server");
        at_100_gbps(&machine, ServerWork { warm_up: 60_000, measured: 200_000, ..work }, self.design, self.batch)
    }

    /// Gb/s received and sent.
    fn rates(&self) -> [f64; 2] {
        let made = self.make();
        let [received, sent] = [made.receive_gbps, made.transmit_gbps].map(|gbps| gbps.expect("it does both"));
        let both = made.throughput_gbps.expect("streams");
        assert!((received + sent - both).abs() < 1e-6 * both);
        [received, sent]
    }
}

#[test]
fn without_protection_a_core_has_its_calibrated_rate_and_four_fill_the_link_in_each_direction() {
    let one = Run { cores: 2, design: "none", batch: 64, ..LINUX };
    let [received, sent] = one.rates();
    assert!((received / 35.0 - 1.0).abs() < 0.02 && (sent / 30.6 - 1.0).abs() < 0.02, "{received} {sent}");
    let [received, sent] = Run { cores: 2 * CORES, ..one }.rates();
    assert!(received > 97.0 && sent > 97.0, "{received} {sent}");
}

#[test]
fn what_linux_sends_takes_the_walkers_from_what_it_receives() {
    let [received, sent] = LINUX.rates();
    assert!(received < 0.6 * sent, "{received} {sent}");
    // Without streams that are sent, and with a unit that walks for everyone at once.
    let alone = Run { workload: "iperf", cores: CORES, ..LINUX }.make();
    assert_eq!((alone.receive_gbps, alone.transmit_gbps), (None, None), "it only receives");
    assert!(alone.throughput_gbps >= Some(1.3 * received), "{:?} {received}", alone.throughput_gbps);
    let [freely, _] = Run { change: |machine| machine.iommu.walkers = 64, ..LINUX }.rates();
    assert!(freely >= 1.2 * received, "{freely} {received}");
}

#[test]
fn tags_let_reads_bear_what_posted_writes_do_not() {
    let [received, sent] = LINUX.rates();
    let few = |machine: &mut Machine| machine.server.as_mut().expect("a server").nic.read_window_bytes = 4096;
    let [received_beside_few, sent_with_few] = Run { change: few, ..LINUX }.rates();
    assert!(sent_with_few <= 0.8 * sent, "as few bytes in flight as posted writes have: {sent_with_few} {sent}");
    assert!(received_beside_few >= 1.2 * received, "{received_beside_few} {received}");
}

#[test]
fn with_the_hint_and_batches_both_directions_are_nearly_free() {
    for design in ["fast-and-safe", "portcullis"] {
        let [received, sent] = Run { design, batch: 64, ..LINUX }.rates();
        assert!(received > 0.9 * 97.6 && sent > 0.9 * 97.6, "{design}: {received} {sent}");
    }
}

#[test]
fn a_server_that_only_sends_has_its_calibrated_rate_too() {
    let sends = Run { workload: "iperf:direction=send", cores: 1, design: "none", batch: 64, ..LINUX }.make();
    let sent = sends.transmit_gbps.expect("it sends");
    assert!((sent / 30.6 - 1.0).abs() < 0.02 && sends.receive_gbps == Some(0.0), "{sent}");
}

#[test]
fn acknowledgements_that_the_card_drops_do_not_stop_what_is_sent() {
    let losing = LINUX.make();
    assert!(losing.drop_percent > Some(0.5), "of data and of acknowledgements: {:?}", losing.drop_percent);
    assert!(losing.transmit_gbps > Some(0.7 * 97.6), "{:?}", losing.transmit_gbps);
}

#[test]
fn a_machine_whose_cost_of_sending_is_not_known_does_not_send() {
    let mut unknown = machine("icelake-cx5");
    let software = &mut unknown.server.as_mut().expect("a server").software;
    (software.writer, software.applications) = (None, None);
    for workload in ["iperf:direction=both", "iperf:direction=send", "redis"] {
        assert!(ServerWork::new(&machine("icelake-cx5"), workload, None, None, None).is_ok());
        let error = ServerWork::new(&unknown, workload, None, None, None).expect_err("its cost is not known");
        assert!(error.to_string().contains(workload), "{error}");
    }
    assert!(ServerWork::new(&unknown, "iperf:direction=receive", None, None, None).is_ok());
    assert!(ServerWork::new(&machine("icelake-cx5"), "iperf:direction=up", None, None, None).is_err());
}
