//! The CPUs that the measuring threads have to themselves.

use std::mem::MaybeUninit;

/// The CPUs that this process may run on.
pub(crate) fn available() -> Vec<usize> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: as many bytes as the set has; zeroes are a set.
    let set = unsafe {
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) != 0 {
            return vec![0];
        }
        set.assume_init()
    };
    // SAFETY: below the number of CPUs that a set holds.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

/// One of `cpus` that is of another core than `cpu`: threads of one core share its first caches. `None` where there is none, or where
/// Linux does not say which CPUs a core has.
pub(crate) fn of_another_core(cpu: usize, cpus: &[usize]) -> Option<usize> {
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let siblings = listed(&std::fs::read_to_string(file).ok()?)?;
    cpus.iter()
        .copied()
        .find(|other| *other != cpu && !siblings.iter().any(|(low, high)| (low..=high).contains(&other)))
}

/// The ranges of a list of CPUs as Linux writes it: `0,4` or `0-1,8`. `None` where it is no such list.
fn listed(list: &str) -> Option<Vec<(usize, usize)>> {
    let range = |range: &str| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        Some((low.parse().ok()?, high.parse().ok()?))
    };
    list.trim().split(',').map(range).collect()
}

/// Has the calling thread run on `cpu` only. Returns whether it does.
pub(crate) fn pin(cpu: usize) -> bool {
    // SAFETY: zeroes are a set; `cpu` came from one; as many bytes as it has.
    unsafe {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
    }
}

/// The calling thread ahead of all that has no real-time priority, until this is dropped. In a sample only: who keeps a CPU for
/// seconds keeps others from what they must do.
pub(crate) struct Undisturbed(bool);

impl Undisturbed {
    /// Not so where the system does not allow it.
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
    // SAFETY: the parameters live as long as the call; the calling thread.
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
