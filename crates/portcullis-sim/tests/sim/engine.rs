//! Virtual cores: the order of virtual time, locks, timers, and that every run is the same.

use super::machine;
use portcullis::platform::{Lock, LockClass, Phase, Step};
use portcullis::{PhysAddr, Platform};
use portcullis_model::Ram;
use portcullis_sim::engine::{Core, Engine, Event, Frequency, LabLock};
use portcullis_sim::{CostBook, LabPlatform, LockKind, Numbering, Sharing};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

const PS_PER_CYCLE: u64 = 1000;

/// Cores of 1 GHz with the costs of a real machine.
struct Bench {
    engine: Rc<Engine>,
    platform: LabPlatform,
    costs: CostBook,
}

impl Bench {
    fn new(cores: usize) -> Self {
        Self::with_sharing(cores, &Sharing::default())
    }

    fn with_sharing(cores: usize, sharing: &Sharing) -> Self {
        let costs = machine("cascadelake-cx5").costs;
        let engine = Engine::new(cores, Frequency::new(1e9), costs.clone(), true);
        let engine = Rc::new(engine.with_sharing(sharing, cores as u32));
        let ram = Arc::new(Ram::new(PhysAddr::new(1 << 40), 1 << 20));
        Self { platform: LabPlatform::new(engine.clone(), ram, 0), engine, costs }
    }

    /// Runs `body` on each of the cores. Returns how long the longest took, in picoseconds.
    fn run(&self, cores: usize, body: impl Fn(Core) + 'static) -> u64 {
        let body = Rc::new(body);
        let bodies = (0..cores).map(|core| {
            let body = body.clone();
            Box::new(move || body(core)) as Box<dyn FnOnce()>
        });
        self.engine.run(bodies.collect())
    }

    fn lock<T: Send>(&self, value: T) -> Rc<LabLock<T>> {
        Rc::new(self.platform.lock(LockClass::IovaAllocator, value))
    }
}

/// What cores append, in the order in which they really ran.
type Log<T> = Rc<RefCell<Vec<T>>>;

/// Three cores of different speed, each of which appends its clock and number after every step.
fn clocks(step: Step) -> Vec<(u64, Core)> {
    let bench = Bench::new(3);
    let log: Log<(u64, Core)> = Log::default();
    let (engine, platform, out) = (bench.engine.clone(), bench.platform.clone(), log.clone());
    bench.run(3, move |core| {
        for _ in 0..40 {
            for _ in 0..=core {
                platform.probe(step);
            }
            out.borrow_mut().push((engine.now_ps(), core));
        }
    });
    log.take()
}

#[test]
fn shared_steps_happen_in_the_order_of_virtual_time() {
    let log = clocks(Step::TableWalk { levels: 1 });
    assert_eq!(log.len(), 120);
    assert!(log.is_sorted(), "by time, and at the same time by core: {log:?}");
    // Private steps, which other cores cannot observe, do not wait for each other, so they come out of order.
    assert!(!clocks(Step::TreeFind).is_sorted());
}

#[test]
fn a_lock_serves_in_the_order_of_arrival() {
    const CORES: usize = 6;
    let bench = Bench::new(CORES);
    let lock = bench.lock(Vec::new());
    let (engine, platform, inner) = (bench.engine.clone(), bench.platform.clone(), lock.clone());
    bench.run(CORES, move |core| {
        // The core with the highest number comes first. All come while the first holds the lock.
        engine.sleep_until((CORES - core) as u64 * 50 * PS_PER_CYCLE);
        inner.with(|order| {
            order.push(core);
            for _ in 0..100 {
                platform.probe(Step::TableWalk { levels: 1 });
            }
        });
    });
    assert_eq!(lock.with(|order| order.clone()), [5, 4, 3, 2, 1, 0]);
}

#[test]
fn a_critical_section_is_never_entered_twice() {
    let bench = Bench::new(4);
    let lock = bench.lock(());
    let (platform, inside) = (bench.platform.clone(), Cell::new(0));
    bench.run(4, move |_| {
        for _ in 0..50 {
            lock.with(|()| {
                inside.set(inside.get() + 1);
                platform.probe(Step::RegisterWrite);
                assert_eq!(inside.get(), 1);
                inside.set(inside.get() - 1);
            });
        }
    });
}

/// How long it takes until each of `cores` cores, starting together, has written a register under a lock, in cycles.
fn passed_round(cores: usize) -> (u64, Bench) {
    passed_round_on(Bench::new(cores), cores)
}

fn passed_round_on(bench: Bench, cores: usize) -> (u64, Bench) {
    let lock = bench.lock(());
    let (engine, platform) = (bench.engine.clone(), bench.platform.clone());
    let took_ps = bench.run(cores, move |_| engine.charged(|| lock.with(|()| platform.probe(Step::RegisterWrite))));
    (took_ps / PS_PER_CYCLE, bench)
}

#[test]
fn a_hand_off_costs_more_the_more_cores_wait() {
    for cores in 1..=16 {
        let (took, bench) = passed_round(cores);
        let costs = &bench.costs;
        // All cores have requested the lock before the first releases it. After each hand-off one waiter less remains.
        let handoff = |turn: u64| costs.line_transfer + costs.handoff_per_waiter * (cores as u64 - 1 - turn);
        let before = |turn: u64| (1..=turn).map(|turn| costs.register_write + handoff(turn)).sum::<u64>();
        let last = cores as u64 - 1;
        assert_eq!(took, costs.lock + before(last) + costs.register_write, "{cores} cores");
        // The spinning of each core is charged to the lock's class, and to the phase in which it was.
        let spun = (0..=last).map(before).sum::<u64>();
        let account = bench.engine.account();
        assert_eq!(account.lock_wait_cycles(LockClass::IovaAllocator), spun, "{cores} cores");
        assert_eq!(account.lock_wait_cycles(LockClass::InvalidationQueue), 0);
        assert_eq!(account.cycles(), (costs.lock + costs.register_write) * cores as u64 + spun);
        assert_eq!(account.phase_cycles(Phase::Other), account.cycles());
    }
}

#[test]
fn a_lock_last_held_elsewhere_costs_the_move_of_its_line() {
    let bench = Bench::new(2);
    let lock = bench.lock(());
    let (engine, costs) = (bench.engine.clone(), bench.costs.clone());
    bench.run(2, move |core| {
        for (turn, at_us) in [1, 2, 3].into_iter().enumerate() {
            engine.sleep_until((at_us + 10 * core as u64) * 1_000_000);
            let before = engine.now_ps();
            lock.with(|()| ());
            let moved = core == 1 && turn == 0;
            let expected = costs.lock + if moved { costs.line_transfer } else { 0 };
            assert_eq!((engine.now_ps() - before) / PS_PER_CYCLE, expected, "core {core}, turn {turn}");
        }
    });
}

/// Cores 0 and 2 are in one socket, and core 1 in the other. The lines behind a lock move with it.
#[test]
fn a_lock_and_the_data_behind_it_come_from_near_or_far() {
    let sharing = Sharing {
        sockets: 2,
        numbering: Numbering::Alternating,
        line_transfer_far: 257,
        iova_lock_lines: 2,
        ..Sharing::default()
    };
    let bench = Bench::with_sharing(3, &sharing);
    let lock = bench.lock(());
    let (engine, costs) = (bench.engine.clone(), bench.costs.clone());
    bench.run(3, move |core| {
        for turn in 0..2 {
            // In the order 0, 1, 2, and again.
            engine.sleep_until((3 * turn + core as u64 + 1) * 1_000_000);
            let before = engine.now_ps();
            lock.with(|()| ());
            let moved = match (turn, core) {
                (0, 0) => 0,
                // From core 2, in the same socket.
                (_, 0) => costs.line_transfer,
                _ => 257,
            };
            let expected = costs.lock + 3 * moved;
            assert_eq!((engine.now_ps() - before) / PS_PER_CYCLE, expected, "core {core}, turn {turn}");
        }
    });
}

/// Under contention a hand-off pays for the lines, too. With queued locks it does not depend on the other waiters.
#[test]
fn a_queued_lock_is_handed_on_at_one_price() {
    let sharing = Sharing { lock_kind: LockKind::Queued, iova_lock_lines: 2, ..Sharing::default() };
    for cores in [2, 3, 16] {
        let (took, bench) = passed_round_on(Bench::with_sharing(cores, &sharing), cores);
        let (costs, handoffs) = (&bench.costs, cores as u64 - 1);
        let expected = costs.lock + (handoffs + 1) * costs.register_write + handoffs * 3 * costs.line_transfer;
        assert_eq!(took, expected, "{cores} cores");
    }
}

#[test]
fn a_timer_waits_for_the_end_of_the_critical_section() {
    let bench = Bench::new(1);
    let (outer, inner) = (bench.lock(()), bench.lock(()));
    let (engine, platform) = (bench.engine.clone(), bench.platform.clone());
    bench.run(1, move |_| {
        let due_ps = engine.now_ps() + PS_PER_CYCLE;
        engine.arm_timer(due_ps);
        outer.with(|()| {
            inner.with(|()| platform.probe(Step::RegisterWrite));
            platform.probe(Step::RegisterWrite);
            assert!(engine.now_ps() > due_ps);
            assert_eq!(engine.own_timer_ps(), Some(due_ps), "masked, also after the inner lock");
        });
        assert_eq!(engine.own_timer_ps(), None, "taken when the lock was released");
    });
}

#[test]
fn a_timer_fires_while_its_core_sleeps_and_the_earliest_request_wins() {
    let bench = Bench::new(2);
    let engine = bench.engine.clone();
    bench.run(2, move |core| {
        if core == 1 {
            return assert_eq!(engine.own_timer_ps(), None, "each core has its own");
        }
        engine.arm_timer(9_000);
        engine.arm_timer(5_000);
        engine.arm_timer(7_000);
        assert_eq!(engine.own_timer_ps(), Some(5_000));
        engine.sleep_until(4_999);
        assert_eq!(engine.own_timer_ps(), Some(5_000));
        engine.sleep_until(20_000);
        assert_eq!((engine.own_timer_ps(), engine.now_ps()), (None, 20_000));
    });
}

#[test]
fn who_waits_goes_on_when_told_and_not_earlier() {
    let bench = Bench::new(2);
    let there = Rc::new(Cell::new(false));
    let engine = bench.engine.clone();
    bench.run(2, move |core| {
        if core == 0 {
            engine.wait_until(Event(1), || there.get());
            assert_eq!(engine.now_ps(), 3_000_000);
        } else {
            engine.sleep_until(1_000_000);
            // The condition does not hold yet.
            engine.notify(Event(1));
            engine.sleep_until(3_000_000);
            there.set(true);
            engine.notify(Event(1));
        }
    });
    assert_eq!(bench.engine.account().cycles(), 0, "neither sleep nor wait is protection");
}

#[test]
#[should_panic(expected = "wait for each other")]
fn cores_that_all_wait_are_told_of() {
    let bench = Bench::new(2);
    let engine = bench.engine.clone();
    bench.run(2, move |_| engine.wait_until(Event(1), || false));
}

#[test]
fn only_what_is_protection_is_charged() {
    let bench = Bench::new(1);
    let (engine, platform) = (bench.engine.clone(), bench.platform.clone());
    bench.run(1, move |_| {
        platform.probe(Step::TableWalk { levels: 1 });
        engine.charged(|| {
            platform.probe(Step::Enter(Phase::Table));
            platform.probe(Step::TableWalk { levels: 1 });
            platform.probe(Step::TableWrite { entries: 3 });
            platform.probe(Step::Enter(Phase::IovaAllocate));
            platform.probe(Step::TreeSearch { nodes: 1 });
            platform.probe(Step::TreeSearch { nodes: 1 });
            platform.probe(Step::TreeInsert);
        });
        platform.probe(Step::RegisterWrite);
    });
    let (account, costs) = (bench.engine.account(), &bench.costs);
    let table = costs.table_read + costs.table_write + 2 * costs.table_entry;
    assert_eq!(account.phase_cycles(Phase::Table), table);
    assert_eq!(account.phase_cycles(Phase::IovaAllocate), 2 * costs.tree_search + costs.tree_insert);
    assert_eq!(account.cycles(), table + 2 * costs.tree_search + costs.tree_insert);
    assert_eq!((account.allocations(), account.search_steps(), account.search_steps_max()), (1, 2, 2));
}

/// Cores that take two locks at random times. Returns which core was inside when.
fn brawl(seed: u64) -> (Vec<(u64, Core)>, u64, u64) {
    const CORES: usize = 8;
    let bench = Bench::new(CORES);
    let locks = [bench.lock(0u64), bench.lock(0u64)];
    let log: Log<(u64, Core)> = Log::default();
    let (engine, platform, out) = (bench.engine.clone(), bench.platform.clone(), log.clone());
    let took_ps = bench.run(CORES, move |core| {
        let mut state = seed + core as u64;
        for _ in 0..100 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            engine.sleep_until(engine.now_ps() + (state >> 48) * 10);
            engine.charged(|| {
                locks[(state >> 47) as usize % 2].with(|count| {
                    *count += 1;
                    platform.probe(Step::TableWalk { levels: 1 });
                    out.borrow_mut().push((engine.now_ps(), core));
                });
            });
        }
    });
    (log.take(), took_ps, bench.engine.account().cycles())
}

#[test]
fn the_same_run_is_the_same_every_time() {
    let first = brawl(7);
    assert_eq!(first, brawl(7));
    assert_ne!(first, brawl(8));
    assert!(first.0.is_sorted());
}

/// A body that panics ends the run with that panic, and the other bodies are unwound from where they were.
#[test]
fn a_panic_in_a_body_is_the_callers() {
    struct Syncs(Rc<Engine>);
    impl Drop for Syncs {
        fn drop(&mut self) {
            self.0.sync();
            self.0.sleep_until(1_000_000);
        }
    }
    let machine = machine("cascadelake-cx5");
    let engine = Rc::new(Engine::new(3, machine.frequency(), machine.costs.clone(), true));
    let sleeper = |until_ps: u64| {
        let engine = engine.clone();
        Box::new(move || {
            let syncs = Syncs(engine);
            syncs.0.sleep_until(until_ps);
        }) as Box<dyn FnOnce()>
    };
    let panics = engine.clone();
    let bodies = vec![
        sleeper(500),
        Box::new(move || {
            panics.sleep_until(100);
            assert!(panics.now_ps() == 0, "the body of core 1");
        }) as Box<dyn FnOnce()>,
        sleeper(900),
    ];
    let run = engine.clone();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.run(bodies)));
    let message = ended.expect_err("a body panicked").downcast::<&str>().expect("with a message");
    assert_eq!(*message, "the body of core 1");
    assert_eq!(engine.current(), None);
    // The engine can be used again.
    let again = engine.clone();
    assert_eq!(engine.run(vec![Box::new(move || again.sleep_until(again.now_ps() + 7))]), 7);
}
