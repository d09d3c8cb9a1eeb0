//! The CPUs on which the measuring threads run.

use std::mem::MaybeUninit;

/// The CPUs that this process may run on.
pub(crate) fn available() -> Vec<usize> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: the length is that of the set, and zeroes are a valid set.
    let set = unsafe {
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) != 0 {
            return vec![0];
        }
        set.assume_init()
    };
    // SAFETY: the number is below the number of CPUs in a set.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

/// One of `cpus` that belongs to another core than `cpu`, because threads of one core share its first caches. `None`
/// if there is none, or if Linux does not report which CPUs a core has.
pub(crate) fn of_another_core(cpu: usize, cpus: &[usize]) -> Option<usize> {
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let siblings = listed(&std::fs::read_to_string(file).ok()?)?;
    cpus.iter()
        .copied()
        .find(|other| *other != cpu && !siblings.iter().any(|(low, high)| (low..=high).contains(&other)))
}

/// The ranges of a list of CPUs in Linux's format: `0,4` or `0-1,8`. `None` if the text is not such a list.
fn listed(list: &str) -> Option<Vec<(usize, usize)>> {
    let range = |range: &str| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        Some((low.parse().ok()?, high.parse().ok()?))
    };
    list.trim().split(',').map(range).collect()
}

/// Pins the calling thread to `cpu`. Returns whether that worked.
pub(crate) fn pin(cpu: usize) -> bool {
    // SAFETY: zeroes are a valid set, `cpu` came from a set, and the length is that of the set.
    unsafe {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
    }
}

/// Gives the calling thread priority over all threads without real-time priority, until this is dropped. It is used
/// only during a sample: a thread that keeps a CPU for seconds delays necessary work of others.
pub(crate) struct Undisturbed(bool);

impl Undisturbed {
    /// Without effect if the system does not allow it.
    pub(crate) fn new() -> Self {
        Self(schedule(libc::SCHED_FIFO, 1))
    }

    pub(crate) const fn is_so(&self) -> bool {
        self.0
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        if self.0 {
            schedule(libc::SCHED_OTHER, 0);
        }
    }
}

fn schedule(policy: libc::c_int, priority: libc::c_int) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters live as long as the call, which concerns the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
}

#[cfg(test)]
mod tests {
    use super::{listed, of_another_core};

    #[test]
    fn lists_of_cpus() {
        assert_eq!(listed("0\n"), Some(vec![(0, 0)]));
        assert_eq!(listed("0,4\n"), Some(vec![(0, 0), (4, 4)]));
        assert_eq!(listed("0-1,8-11\n"), Some(vec![(0, 1), (8, 11)]));
        for no_list in ["", "\n", "0,", "a", "0-", "-1"] {
            assert_eq!(listed(no_list), None, "{no_list}");
        }
    }

    #[test]
    fn a_cpu_is_of_no_other_core_than_itself() {
        assert_eq!(of_another_core(0, &[0]), None);
        assert_eq!(of_another_core(usize::MAX, &[0, 1]), None, "there is no such CPU");
    }
}
