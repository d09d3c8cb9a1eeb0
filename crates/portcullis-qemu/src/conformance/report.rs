//! Runs the suite on both sides and reports the verdicts as a list.

use super::{Check, Side, Straight, Verdict, Wiring, checks};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The verdicts on a check on both sides.
pub struct Line {
    /// The check.
    pub check: Check,
    /// The verdict on the model.
    pub model: Verdict,
    /// The verdict on QEMU.
    pub qemu: Verdict,
}

impl Line {
    /// Whether the check failed on either side.
    pub fn failed(&self) -> bool {
        [&self.model, &self.qemu].iter().any(|verdict| matches!(verdict, Verdict::Fail(_)))
    }
}

/// The result of the suite.
pub struct Report {
    /// One line for each check, in the order of the checks.
    pub lines: Vec<Line>,
}

impl Report {
    /// Runs every check on both sides, several at a time.
    pub fn make() -> Self {
        let checks = checks();
        let next = AtomicUsize::new(0);
        let lines = Mutex::new(Vec::new());
        let wiring: Arc<dyn Wiring> = Arc::new(Straight);
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    // Relaxed: it only matters that each check is taken once.
                    while let Some(check) = checks.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let [model, qemu] = [Side::Model, Side::Qemu].map(|side| check.run(side, &wiring));
                        let line = Line { check: *check, model, qemu };
                        lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                    }
                });
            }
        });
        let mut lines = lines.into_inner().unwrap_or_else(PoisonError::into_inner);
        lines.sort_by_key(|line| checks.iter().position(|check| check.name == line.check.name));
        Self { lines }
    }

    /// The number of checks that failed on either side.
    pub fn failures(&self) -> usize {
        self.lines.iter().filter(|line| line.failed()).count()
    }

    /// The number of checks by verdict: `3 pass, 1 differs, 0 fail`.
    fn counts(&self, side: fn(&Line) -> &Verdict) -> String {
        let count = |kind: fn(&Verdict) -> bool| self.lines.iter().filter(|line| kind(side(line))).count();
        let pass = count(|verdict| matches!(verdict, Verdict::Pass));
        let differs = count(|verdict| matches!(verdict, Verdict::Differs(_)));
        let fail = count(|verdict| matches!(verdict, Verdict::Fail(_)));
        format!("{pass} pass, {differs} differs, {fail} fail")
    }
}

/// One line for each check: its name, and its verdicts on the model and on QEMU. Then the counts.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.lines.iter().map(|line| line.check.name.len()).max().unwrap_or(0);
        for Line { check, model, qemu } in &self.lines {
            writeln!(f, "{:width$}  {:4}  {qemu}", check.name, model.to_string())?;
        }
        let (model, qemu) = (self.counts(|line| &line.model), self.counts(|line| &line.qemu));
        write!(f, "{} checks; model: {model}; QEMU: {qemu}", self.lines.len())
    }
}
