//! Running code on virtual CPUs, and what such code calls.

use crate::Access;
use crate::costs::Costs;
use crate::fiber::{Fiber, suspend};
use crate::line::CPUS_MAX;
use crate::machine::{Before, Count, LINE_BYTES, Machine};
use std::cell::RefCell;

/// The machine of this thread, and the CPU that runs.
struct Running {
    machine: Machine,
    cpu: usize,
}

thread_local! {
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
}

/// Calls `with` with the machine and the CPU that runs. `None` if the caller is not on a virtual CPU.
fn here<R>(with: impl FnOnce(&mut Machine, usize) -> R) -> Option<R> {
    RUNNING.with_borrow_mut(|running| running.as_mut().map(|running| with(&mut running.machine, running.cpu)))
}

/// Runs `body`, which gets its number, on each of `cpus` virtual CPUs at once. Returns when all have ended.
///
/// # Panics
/// If there are no CPUs or more than [`CPUS_MAX`], on a virtual CPU, and if `body` panics.
pub fn run(costs: Costs, cpus: usize, body: impl Fn(usize) + Clone + 'static) {
    /// After a panic, the fibers that are left must not find a machine when their stacks are unwound.
    struct Stop;
    impl Drop for Stop {
        fn drop(&mut self) {
            RUNNING.set(None);
        }
    }
    assert!((1..=CPUS_MAX).contains(&cpus), "{cpus} CPUs");
    assert!(here(|_, _| ()).is_none(), "a virtual CPU runs no others");
    let fiber = |cpu| {
        let body = body.clone();
        Fiber::new(move || body(cpu))
    };
    let mut fibers: Vec<Fiber> = (0..cpus).map(fiber).collect();
    let _stop = Stop;
    RUNNING.set(Some(Running { machine: Machine::new(costs, cpus), cpu: 0 }));
    let next = || {
        RUNNING.with_borrow_mut(|running| {
            let running = running.as_mut().expect("it runs until the last CPU has ended");
            running.cpu = running.machine.next()?;
            Some(running.cpu)
        })
    };
    while let Some(cpu) = next() {
        // A CPU that has not ended has put itself among those that wait.
        fibers[cpu].resume();
    }
}

/// Lets CPUs whose clocks are behind run first, and devices whose time has come act.
fn take_turn() {
    loop {
        match here(Machine::before) {
            None | Some(Before::Nothing) => return,
            Some(Before::Device(act)) => act(),
            Some(Before::Cpus) => {
                here(Machine::wait);
                suspend();
            }
        }
    }
}

/// An access to the line of `address`. Not on a virtual CPU, it does nothing.
pub(crate) fn access(address: usize, access: Access) {
    take_turn();
    here(|machine, cpu| machine.access(cpu, address, access));
}

/// The number of the CPU that runs; 0 if the caller is not on a virtual CPU.
pub fn cpu() -> usize {
    here(|_, cpu| cpu).unwrap_or(0)
}

/// The clock of the CPU that runs, in cycles.
pub fn now() -> u64 {
    here(|machine, cpu| machine.now(cpu)).unwrap_or(0)
}

/// What has happened so far, on all CPUs.
pub fn count() -> Count {
    here(|machine, _| machine.count).unwrap_or_default()
}

/// Passes `cycles` on the CPU that runs: work that uses no shared memory.
pub fn work(cycles: u64) {
    here(|machine, cpu| machine.work(cpu, cycles));
}

/// Runs `act`. Its loads do not depend on each other, so a processor has many of them under way at once.
pub fn beside<R>(act: impl FnOnce() -> R) -> R {
    here(|machine, cpu| machine.beside(cpu, true));
    let result = act();
    here(|machine, cpu| machine.beside(cpu, false));
    result
}

/// An iteration of a spin loop.
pub fn pause() {
    here(Machine::pause);
    take_turn();
}

/// A full fence.
pub(crate) fn fence() {
    take_turn();
    here(Machine::fence);
}

/// Accesses to plain memory: each line of `value` is read, or written if `is_written` is set.
pub fn plain<T: ?Sized>(value: &T, is_written: bool) {
    let first = (&raw const *value).addr();
    let kind = if is_written { Access::Store } else { Access::Load };
    for line in first / LINE_BYTES..(first + size_of_val(value)).div_ceil(LINE_BYTES) {
        access(line * LINE_BYTES, kind);
    }
}

/// An uncached write to a device, which is posted. Returns when it arrives there.
pub fn write_to_device() -> u64 {
    take_turn();
    here(Machine::write_to_device).unwrap_or(0)
}

/// Calls `act` when all clocks have passed `time`: what a device does then. Not on a virtual CPU, it calls it at once.
pub fn at(time: u64, act: impl FnOnce() + 'static) {
    if here(|_, _| ()).is_none() {
        return act();
    }
    here(|machine, _| machine.at(time, Box::new(act)));
}

/// A device writes to the line of `address`, which leaves all caches.
pub fn device_write(address: usize) {
    here(|machine, _| machine.device_write(address));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::{AtomicU64, Ordering};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Arc;

    /// Runs `body` on `cpus` CPUs. Returns what was counted, and the latest clock.
    fn measured(cpus: usize, body: impl Fn(usize) + Clone + 'static) -> (Count, u64) {
        let last = Rc::new(Cell::new((Count::default(), 0)));
        let inner = last.clone();
        run(Costs::XEON, cpus, move |cpu| {
            body(cpu);
            inner.set((count(), inner.get().1.max(now())));
        });
        last.get()
    }

    /// Loads beside each other come a gap apart, and the code behind waits for the last one.
    #[test]
    fn loads_beside_each_other_do_not_wait_for_each_other() {
        let lines: [Arc<[AtomicU64; 32]>; 2] = [(); 2].map(|()| Arc::new(std::array::from_fn(|_| AtomicU64::new(0))));
        let read = |lines: &[AtomicU64; 32]| lines.iter().step_by(8).for_each(|word| _ = word.load(Ordering::Relaxed));
        let times = Rc::new(Cell::new((0, 0)));
        let inner = times.clone();
        run(Costs::XEON, 1, move |_| {
            let begun = now();
            read(&lines[0]);
            let middle = now();
            beside(|| read(&lines[1]));
            inner.set((middle - begun, now() - middle));
        });
        let (in_turn, at_once) = times.get();
        // An array may begin within a line.
        assert!((4 * Costs::XEON.clean..=5 * Costs::XEON.clean).contains(&in_turn), "{in_turn}");
        let gaps = Costs::XEON.clean + 3 * Costs::XEON.gap;
        assert!((gaps..=gaps + 8).contains(&at_once), "{at_once}");
    }

    #[test]
    fn a_line_that_all_write_moves_each_time() {
        let shared = Arc::new(AtomicU64::new(0));
        let adds = |to: &Arc<AtomicU64>| {
            let to = to.clone();
            move |_| {
                for _ in 0..100 {
                    to.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let (alone, alone_cycles) = measured(1, adds(&shared));
        assert_eq!((alone.transfers, alone.locked), (0, 100));
        let (count, cycles) = measured(4, adds(&shared));
        assert_eq!((shared.load(Ordering::Relaxed), count.locked), (500, 400));
        assert!(count.transfers > 390, "{count:?}");
        // 400 transfers one after the other.
        assert!(cycles > 400 * Costs::XEON.modified && alone_cycles < 100 * 20, "{alone_cycles} and {cycles}");
    }

    #[test]
    fn lines_of_their_own_stay() {
        #[repr(align(64))]
        struct Own(AtomicU64);
        let words: Arc<[Own]> = (0..4).map(|_| Own(AtomicU64::new(0))).collect();
        let (count, _) = measured(4, move |cpu| {
            for _ in 0..100 {
                words[cpu].0.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!((count.transfers, count.from_memory), (0, 4));
    }

    #[test]
    fn stores_overlap_and_a_fence_waits_for_them() {
        let words: Arc<[[AtomicU64; 8]]> = (0..16).map(|_| Default::default()).collect();
        let (count, cycles) = measured(1, move |_| {
            let begin = now();
            words.iter().for_each(|line| line[0].store(1, Ordering::Relaxed));
            assert_eq!(now() - begin, 16 * Costs::XEON.hit);
            fence();
        });
        assert_eq!(count.locked, 1);
        assert!((15 * 12 + 70..16 * 70).contains(&cycles), "{cycles}");
    }

    /// Each CPU waits for the one before it.
    #[test]
    fn a_run_is_the_same_each_time() {
        let chain = || {
            let turn = Arc::new(AtomicU64::new(0));
            measured(8, move |cpu| {
                for round in 0..20 {
                    while turn.load(Ordering::Acquire) != round * 8 + cpu as u64 {
                        pause();
                    }
                    turn.fetch_add(1, Ordering::Release);
                }
            })
        };
        let first = chain();
        assert!(first.0.pauses > 0 && first.0.transfers >= 160);
        assert_eq!(chain(), first);
    }

    #[test]
    fn a_device_acts_when_its_time_has_come() {
        let status = Arc::new(AtomicU64::new(0));
        let seen = status.clone();
        let (count, cycles) = measured(1, move |_| {
            let arrives = write_to_device();
            let address = (&raw const *seen).addr();
            let written = seen.clone();
            at(arrives + 1000, move || {
                device_write(address);
                written.store(7, Ordering::Relaxed);
            });
            while seen.load(Ordering::Acquire) == 0 {
                pause();
            }
        });
        assert_eq!((count.device_writes, count.from_memory), (1, 2), "the device took the line away");
        assert!((1250..1500).contains(&cycles), "{cycles}");
    }

    #[test]
    #[should_panic(expected = "the second CPU")]
    fn a_panic_on_a_virtual_cpu_is_passed_on() {
        run(Costs::XEON, 3, |cpu| {
            pause();
            assert!(cpu != 1, "the second CPU");
        });
    }
}
