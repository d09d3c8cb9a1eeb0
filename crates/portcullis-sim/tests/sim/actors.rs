//! What there is beside the CPUs: actors, work that is not protection, interrupts of devices, and who is woken by what.

use super::machine;
use portcullis::Platform;
use portcullis::platform::{Lock, LockClass, Step};
use portcullis_model::Ram;
use portcullis_sim::LabPlatform;
use portcullis_sim::engine::{Actor, Body, Engine, Event, Frequency, Stuck};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

const PS_PER_CYCLE: u64 = 1000;

/// CPUs of 1 GHz, and actors.
fn bench(cpus: usize, actors: usize) -> (Rc<Engine>, LabPlatform) {
    let costs = machine("cascadelake-cx5").costs;
    let engine = Rc::new(Engine::new(cpus, Frequency::new(1e9), costs, true).with_actors(actors));
    let ram = Arc::new(Ram::new(portcullis::PhysAddr::new(1 << 40), 1 << 20));
    (engine.clone(), LabPlatform::new(engine, ram, 0))
}

fn body(body: impl FnOnce() + 'static) -> Body {
    Box::new(body)
}

/// An actor that acts once for each of these times, in cycles, unless an event comes before. It gets the number of the
/// act.
fn actor(event: u64, times: Vec<u64>, mut act: impl FnMut(usize) + 'static) -> Actor {
    let mut turn = 0;
    let act = move || {
        if (1..=times.len()).contains(&turn) {
            act(turn - 1);
        }
        turn += 1;
        times.get(turn - 1).map(|at| at * PS_PER_CYCLE)
    };
    Actor { event: Event(event), act: Box::new(act) }
}

/// Takes interrupts by noting when they came.
fn note_interrupts(engine: &Rc<Engine>, cycles: u64) -> Rc<RefCell<Vec<(u64, u8)>>> {
    let taken = Rc::new(RefCell::new(Vec::new()));
    let (weak, log) = (Rc::downgrade(engine), taken.clone());
    engine.on_interrupt(Some(Rc::new(move |vector| {
        let engine = weak.upgrade().expect("it runs");
        log.borrow_mut().push((engine.now_ps() / PS_PER_CYCLE, vector));
        engine.busy(cycles);
    })));
    taken
}

#[test]
fn an_actor_is_no_cpu_is_never_charged_and_ends_with_the_cpus() {
    let (engine, platform) = bench(2, 1);
    assert_eq!((engine.cores(), platform.cpus()), (2, 2));
    let (inner, acted) = (engine.clone(), Rc::new(Cell::new(0)));
    let (acts, probes) = (acted.clone(), platform.clone());
    let times = (1..).map(|act| 10 * act).take(20).collect();
    let actor = actor(1, times, move |_| {
        inner.charged(|| probes.probe(Step::RegisterWrite));
        acts.set(acts.get() + 1);
    });
    let sleeper = engine.clone();
    let took = engine.run_beside(vec![body(move || sleeper.sleep_until(95 * PS_PER_CYCLE))], vec![actor]);
    assert_eq!((took, acted.get()), (Ok(95 * PS_PER_CYCLE), 9));
    assert_eq!(engine.account().cycles(), 0);
    assert_eq!(engine.busy_cycles_by_core(), [0, 0]);
    // And again: the actor of before is gone.
    assert_eq!(engine.run_beside(vec![body(|| ())], Vec::new()), Ok(0));
}

#[test]
fn busy_work_is_counted_and_not_charged_and_an_interrupt_lengthens_it() {
    let (engine, _) = bench(1, 1);
    let taken = note_interrupts(&engine, 30);
    let (cpu, device) = (engine.clone(), engine.clone());
    let took = engine.run_beside(
        vec![body(move || cpu.charged(|| cpu.busy(100)))],
        vec![actor(1, vec![40], move |_| device.raise(0, device.now_ps(), 5))],
    );
    assert_eq!(took, Ok(130 * PS_PER_CYCLE));
    assert_eq!(*taken.borrow(), [(40, 5)], "in the middle of the work");
    assert_eq!(engine.busy_cycles_by_core(), [130]);
    assert_eq!(engine.account().cycles(), 0);
}

#[test]
fn an_interrupt_comes_to_who_sleeps_or_waits_and_after_a_critical_section() {
    let (engine, platform) = bench(3, 1);
    let taken = note_interrupts(&engine, 1);
    let lock = platform.lock(LockClass::IovaAllocator, ());
    let (sleeper, waiter, holder, device) = (engine.clone(), engine.clone(), engine.clone(), engine.clone());
    let done = Rc::new(Cell::new(false));
    let is_done = done.clone();
    let bodies = vec![
        body(move || sleeper.sleep_until(50 * PS_PER_CYCLE)),
        body(move || waiter.wait_until(Event(1), || is_done.get())),
        body(move || {
            lock.with(|()| holder.busy(60));
            done.set(true);
            holder.notify(Event(1));
        }),
    ];
    let actor = actor(2, vec![10, 20, 30], move |cpu| device.raise(cpu, 0, cpu as u8));
    engine.run_beside(bodies, vec![actor]).expect("all go on");
    let taken = taken.borrow();
    assert_eq!(taken[..2], [(10, 0), (20, 1)]);
    let (at, vector) = taken[2];
    assert!(vector == 2 && at >= 60, "only when the lock was released: {taken:?}");
}

#[test]
fn a_masked_vector_stays_pending_and_others_come() {
    let (engine, _) = bench(1, 0);
    let taken = note_interrupts(&engine, 1);
    let cpu = engine.clone();
    engine.run(vec![body(move || {
        cpu.mask(3);
        cpu.raise(0, 0, 3);
        cpu.raise(0, 0, 3);
        cpu.raise(0, 10 * PS_PER_CYCLE, 4);
        cpu.busy(20);
        cpu.unmask(3);
        cpu.uninterrupted(|| cpu.busy(5));
        cpu.busy(1);
    })]);
    assert_eq!(*taken.borrow(), [(10, 4), (26, 3)], "once, and not while interrupts are disabled");
}

#[test]
fn who_waits_is_woken_by_its_own_event_only() {
    let (engine, _) = bench(2, 1);
    let looks = Rc::new(Cell::new(0));
    let (counted, patient, other, inner) = (looks.clone(), engine.clone(), engine.clone(), engine.clone());
    let bodies = vec![
        body(move || {
            patient.wait_until(Event(1), || {
                counted.set(counted.get() + 1);
                patient.now_ps() >= 100 * PS_PER_CYCLE
            });
        }),
        body(move || {
            for _ in 0..50 {
                other.sleep_until(other.now_ps() + PS_PER_CYCLE);
                other.notify(Event(2));
            }
            other.sleep_until(100 * PS_PER_CYCLE);
            other.notify(Event(1));
        }),
    ];
    let actor = actor(2, vec![7, 1], move |act| {
        // The event comes first, or the time.
        assert!(act > 1 || inner.now_ps() == PS_PER_CYCLE);
    });
    engine.run_beside(bodies, vec![actor]).expect("all go on");
    assert_eq!(looks.get(), 2, "before it waits, and when it is told");
}

#[test]
fn a_run_that_cannot_go_on_says_so() {
    let (engine, _) = bench(2, 1);
    let one = engine.clone();
    let ended = engine.run_beside(
        vec![body(move || one.wait_until(Event(1), || false)), body(|| ())],
        vec![actor(2, Vec::new(), |_| ())],
    );
    let Stuck { is_endless, cores } = ended.expect_err("nothing notifies the event");
    assert_eq!((is_endless, cores.len(), cores[0].core, cores[0].waits_for), (false, 1, 0, Some(1)));
}

/// Planted waits that never end: for a time that is past, and for what never comes, beside a core that goes on.
#[test]
fn a_run_that_gets_nothing_done_ends_with_the_states_of_its_cores() {
    for (until_past, has_timer) in [(true, true), (false, true), (false, false)] {
        let (engine, _) = bench(2, 1);
        let (one, other) = (engine.clone(), engine.clone());
        let endless = body(move || {
            if has_timer {
                one.arm_timer(5_000_000);
            }
            one.uninterrupted(|| {
                loop {
                    one.sleep_until(if until_past { 0 } else { one.now_ps() + 1 });
                }
            });
        });
        let ended = engine.run_beside(vec![body(move || other.busy(100)), endless], Vec::new());
        let stuck = ended.expect_err("one core never ends");
        assert!(stuck.is_endless, "{stuck}");
        let core = stuck.cores.last().expect("the second core");
        assert_eq!((core.core, core.timer_ps, core.is_masked), (1, has_timer.then_some(5_000_000), true));
        let (said, timer) = (stuck.to_string(), if has_timer { ", timer due at 5.000 µs" } else { "" });
        assert!(said.contains("core 1 at ") && said.contains(&format!("µs{timer}, interrupts masked")), "{said}");
    }
}

#[test]
fn an_actor_can_take_a_lock_unless_a_core_holds_it() {
    let (engine, platform) = bench(1, 1);
    let lock = Rc::new(platform.lock(LockClass::InvalidationQueue, ()));
    let (inner, seen) = (engine.clone(), Rc::new(RefCell::new(Vec::new())));
    let log = seen.clone();
    let classes = [LockClass::InvalidationQueue, LockClass::Table];
    let actor = actor(1, vec![50, 500], move |_| {
        log.borrow_mut().push(classes.map(|class| inner.can_take(class)));
    });
    let (inner, held) = (engine.clone(), lock.clone());
    let core = body(move || {
        held.with(|()| {
            // A core would wait for itself. It is an actor that cannot wait at all.
            assert!(inner.can_take(LockClass::InvalidationQueue));
            inner.busy(100);
        });
        inner.sleep_until(1000 * PS_PER_CYCLE);
    });
    engine.run_beside(vec![core], vec![actor]).expect("all go on");
    assert_eq!(*seen.borrow(), [[false, true], [true, true]]);
}
