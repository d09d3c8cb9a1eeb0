//! The server of ATC'15 with 16 cores and 270 flows, and what moves its results: one cost is switched off at a time,
//! and the direction is named before.

use super::machine;
use portcullis::Protection::{self, Deferred, Strict};
use portcullis_sim::simulate::{Simulate, Simulation};
use portcullis_sim::{LabDesign, Machine, ServerError, ServerWork};

const CORES: u32 = 16;
const FLOWS: u32 = 270;

fn r430() -> Machine {
    machine("r430-bcm57810")
}

/// The same with one value changed.
fn with(key: &str, value: &str) -> Machine {
    let mut machine = r430();
    machine.set(key, value).expect("a value of a machine");
    machine.check().expect("such a machine can be");
    machine
}

fn work(machine: &Machine) -> ServerWork {
    let work = ServerWork::new(machine, "netperf-rr", Some(CORES), Some(FLOWS), None).expect("a server");
    ServerWork { earlier_runs: 1, earlier_packets: 20, warm_up: 4_000, measured: 8_000, ..work }
}

fn simulated(machine: &Machine, design: &str, protection: Protection, linux_wait: bool) -> Simulation {
    let choice = LabDesign::choice(design).expect("a design");
    let mut run = Simulate::new(machine, work(machine), choice, protection).expect("it is offered");
    run.linux_wait = linux_wait;
    let simulation = run.run(|_| ()).unwrap_or_else(|error| panic!("{design}: {error}"));
    assert_eq!(simulation.outcome.faults, 0, "{design}");
    assert!(protection != Strict || simulation.outcome.stale_accesses == 0, "{design}: S2");
    simulation
}

fn eiovar(machine: &Machine) -> f64 {
    simulated(machine, "eiovar", Deferred, false).throughput_vs_none
}

/// Strict, with Linux's wait.
fn strict(machine: &Machine) -> f64 {
    simulated(machine, "magazine", Strict, true).throughput_vs_none
}

/// Fifteen rings leave the last core without one. It runs processes of the others.
#[test]
fn every_core_works_and_none_does_without_a_lock() {
    let none = simulated(&r430(), "none", Protection::None, false);
    assert!(none.cpu_percent > 97.0, "{} %", none.cpu_percent);
    let magazine = simulated(&r430(), "magazine", Deferred, false);
    assert!(magazine.throughput_vs_none > 0.85, "{}", magazine.throughput_vs_none);
    let eiovar = simulated(&r430(), "eiovar", Deferred, false);
    assert!(eiovar.throughput_vs_none < 0.35, "{}", eiovar.throughput_vs_none);
    assert!((40.0..=85.0).contains(&eiovar.outcome.lock_wait_percent), "{}", eiovar.outcome.lock_wait_percent);
}

/// ATC'15, section 5: with queues of flushes per core, the lock of the addresses is all that is left, and is waited for
/// even longer. So EiovaR becomes slower.
#[test]
fn queues_per_core_leave_the_lock_of_the_addresses() {
    let [global, per_core] =
        ["eiovar", "eiovar:queue=per-core"].map(|design| simulated(&r430(), design, Deferred, false));
    assert!(per_core.outcome.lock_wait_iova_percent > global.outcome.lock_wait_iova_percent + 5.0);
    assert!(per_core.throughput_vs_none < global.throughput_vs_none);
}

/// With Linux's wait all strict designs end at the same rate, that of the lock of the queue. Without it they are
/// faster. Each unmap is a command under `identity` too, as in Linux 3.17.
#[test]
fn linux_s_wait_makes_all_strict_designs_equally_slow() {
    let designs = ["magazine", "identity:flush=each", "kmalloc"];
    let rates = |linux_wait| designs.map(|design| simulated(&r430(), design, Strict, linux_wait).throughput_vs_none);
    let (linux, ours) = (rates(true), rates(false));
    assert!(linux.iter().all(|rate| (0.10..=0.25).contains(rate)), "{linux:?}");
    assert!(linux.iter().all(|rate| (rate / linux[0] - 1.0).abs() < 0.1), "{linux:?}");
    assert!(ours.iter().zip(linux).all(|(ours, linux)| *ours > 1.4 * linux), "{ours:?} and {linux:?}");
    let waits = simulated(&r430(), "magazine", Strict, true).outcome.lock_wait_invalidation_percent;
    assert!(waits > 50.0, "{waits} % of the time waiting for the lock of the queue");
}

/// Receive buffers share pages. Under `identity` a page is invalidated when the last of its buffers is unmapped, and
/// the lock of the queue is taken less often. So there are fewer commands, and it is faster than another design by a
/// tenth.
#[test]
fn buffers_that_share_pages_spare_identity_commands() {
    let [shared, alone] =
        [r430(), with("fragment_bytes", "0")].map(|machine| simulated(&machine, "identity", Strict, true));
    let commands = |one: &Simulation| one.outcome.invalidations_per_page * one.outcome.pages as f64;
    assert!(commands(&shared) < 0.85 * commands(&alone), "{} and {}", commands(&shared), commands(&alone));
    assert!(shared.throughput_vs_none > 1.1 * strict(&r430()));
    let each = simulated(&r430(), "identity:flush=each", Strict, true);
    assert!(commands(&shared) < 0.85 * commands(&each), "{} and {}", commands(&shared), commands(&each));
}

/// In one socket each line comes from near: locks are handed on faster.
#[test]
fn without_the_second_socket_locks_cost_less() {
    let near = with("sockets", "1");
    assert!(eiovar(&near) > 1.1 * eiovar(&r430()));
    assert!(strict(&near) > 1.1 * strict(&r430()));
}

/// Waiters that read a line of their own do not slow a hand-off: so with queued locks.
#[test]
fn without_a_cost_per_waiter_locks_cost_less() {
    for changed in [with("handoff_per_waiter", "0"), with("lock_kind", "queued")] {
        assert!(eiovar(&changed) > 1.1 * eiovar(&r430()));
        assert!(strict(&changed) > 1.1 * strict(&r430()));
    }
}

/// A driver that maps new buffers while the hardware invalidates, and takes the buffers of sent frames back with the
/// next poll, waits less and gets more done.
#[test]
fn a_poll_in_two_halves_waits_less() {
    let machine = r430();
    let [whole, halves] = [false, true].map(|halves| {
        let work = ServerWork { halves, ..work(&machine) };
        let run = Simulate::new(&machine, work, LabDesign::choice("portcullis").expect("a design"), Strict);
        let simulation = run.expect("it is offered").run(|_| ()).expect("it runs");
        assert_eq!((simulation.outcome.faults, simulation.outcome.stale_accesses), (0, 0));
        simulation
    });
    assert!(halves.outcome.wait_cycles_per_page < 0.6 * whole.outcome.wait_cycles_per_page);
    assert!(halves.throughput_vs_none > whole.throughput_vs_none);
}

#[test]
fn what_does_not_fit_the_machine_is_refused() {
    let refused = |cores, flows| ServerWork::new(&r430(), "netperf-rr", Some(cores), Some(flows), None);
    assert!(matches!(refused(17, 270), Err(ServerError::Cores { most: 16, .. })));
    assert!(matches!(refused(16, 15), Err(ServerError::Flows { least: 16, .. })));
    assert!(matches!(refused(16, 4097), Err(ServerError::Flows { .. })));
    assert!(refused(16, 4096).is_ok());
}
