//! How busy other programs keep this host's processors while steps are timed.

use std::fs;
use std::path::Path;

/// Processor time since the start of the system, in ticks of the kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Ticks {
    /// Of all processors together.
    all: u64,
    /// When they did not idle. What a hypervisor gave to other machines counts as well.
    busy: u64,
    /// Of this program.
    own: u64,
}

impl Ticks {
    /// The ticks until now; `None` if `proc`, the folder `/proc`, does not show them.
    pub(super) fn now(proc: &Path) -> Option<Self> {
        let read = |file| fs::read_to_string(proc.join(file)).ok();
        let (stat, own) = (read("stat")?, read("self/stat")?);
        // user, nice, system, idle, iowait, irq, softirq and steal. Two more follow, which user and nice include.
        let of_cpus: Vec<u64> = numbers(stat.lines().next()?.strip_prefix("cpu ")?).take(8).collect();
        let [_, _, _, idle, iowait, _, _, _] = of_cpus[..] else { return None };
        let all = of_cpus.iter().sum();
        // The name of the program is in parentheses, and may hold anything. The 11th and 12th number behind its state
        // are the times in user space and in the kernel.
        let (_, behind) = own.rsplit_once(')')?;
        let own: Vec<u64> = numbers(behind.trim_start().get(1..)?).skip(10).take(2).collect();
        let [user, kernel] = own[..] else { return None };
        Some(Self { all, busy: all - idle - iowait, own: user + kernel })
    }

    /// The share of the time of all processors that other programs took since `earlier`.
    pub(super) fn of_others_since(self, earlier: Self) -> f64 {
        let others = (self.busy.saturating_sub(earlier.busy)).saturating_sub(self.own.saturating_sub(earlier.own));
        others as f64 / self.all.saturating_sub(earlier.all).max(1) as f64
    }
}

/// The numbers in `text`, up to the first word that is none. Negative ones count as 0.
fn numbers(text: &str) -> impl Iterator<Item = u64> {
    text.split_whitespace().map_while(|word| word.parse::<i64>().ok()).map(|number| number.max(0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str, stat: &str, own: &str) -> Option<Ticks> {
        let root = std::env::temp_dir().join(format!("portcullis-load-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("self")).expect("a folder");
        fs::write(root.join("stat"), stat).expect("written");
        fs::write(root.join("self/stat"), own).expect("written");
        let ticks = Ticks::now(&root);
        fs::remove_dir_all(&root).expect("removed");
        ticks
    }

    #[test]
    fn what_this_program_takes_is_not_of_others() {
        let own = |user, kernel| format!("7 (a (b) 1 2) R 1 7 7 0 -1 4194560 100 0 0 0 {user} {kernel} 0 0 20 0 3 0\n");
        let before = at("before", "cpu  100 0 50 800 30 5 10 5 0 0\ncpu0 1 2\n", &own(3, 1)).expect("ticks");
        assert_eq!(before, Ticks { all: 1000, busy: 170, own: 4 });
        let after = at("after", "cpu  300 0 100 900 30 5 10 55 0 0\n", &own(93, 11)).expect("ticks");
        // Of 400 ticks 300 were busy, and 100 of these were its own.
        assert_eq!(after.of_others_since(before), 0.5);
        assert_eq!(before.of_others_since(before), 0.0);
    }

    #[test]
    fn what_is_not_understood_is_not_known() {
        assert_eq!(at("short", "cpu  1 2 3\n", "7 (a) R 1\n"), None);
        assert_eq!(at("short-own", "cpu  1 2 3 4 5 6 7 8\n", "7 (a) R 1\n"), None);
        assert_eq!(at("odd", "cpux 1 2 3 4 5 6 7 8\n", "7 (a) R 1\n"), None);
        assert_eq!(Ticks::now(Path::new("/nowhere")), None);
    }
}
