//! `cargo xtask mutants --sample N --seed S`: checks whether the tests notice flaws that were not foreseen. It
//! plants `N` mutants of the files that safety depends on, one at a time, in a copy of the tree. docs/mutants.md
//! explains the output.

mod equivalent;
mod journal;
mod mutant;
mod score;
mod stage;
mod watched;

use crate::failure::Failure;
use crate::workspace::Workspace;
use journal::{Entry, Journal, Verdict};
use mutant::Mutant;
use rustix::fs::{FlockOperation, flock};
use score::Score;
use stage::{Bench, Stage, stages};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;
use watched::{Ended, Times};

/// The time limit of a stage without a mutant.
const SOUND_MAX: Duration = Duration::from_secs(3600);
/// With a mutant, a stage may take this many times as long as without it, and at least a minute, because other load
/// may slow it down.
const SLOWER_MAX: u32 = 5;
const LIMIT_MIN: Duration = Duration::from_secs(60);

/// Tests the `size` mutants that `seed` selects, except those that already have a verdict. Fails if the tests catch
/// too few.
pub(crate) fn sample(workspace: &Workspace, size: usize, seed: u64) -> Result<(), Failure> {
    let folder = workspace.root.join(workspace.target_beside("mutants"));
    let bench = Bench {
        tree: folder.join("sample-tree"),
        target: folder.join("sample-target"),
        scratch: folder.join("sample-scratch"),
    };
    let _alone = alone(&folder)?;
    super::copy(workspace, &bench.tree)?;
    let mutants = mutant::all(&bench.tree)?;
    let equivalent = equivalent::listed(&bench.tree, &mutants)?;
    let mut journal = Journal::open(&folder.join(format!("sample-{seed}.jsonl")), &journal::fingerprint(&bench.tree)?)?;
    let there = mutants.len();
    let drawn = mutant::draw(mutants, size, seed);
    let open = open(&drawn, &journal);
    println!("{} of {there} mutants are drawn, {} of them have no verdict yet", drawn.len(), open.len());
    let limits = limits(&bench, &open)?;
    for (index, mutant) in open.iter().enumerate() {
        let entry = test(&bench, mutant, &limits)?;
        let times = format!("build {:.1} s, run {:.1} s", entry.build, entry.run);
        println!("{:>4}/{} {:<9} {} ({times}) {}", index + 1, open.len(), word(entry.verdict), entry.mutant, entry.by);
        journal.append(entry)?;
    }
    Score::of(&drawn, &journal, &equivalent).report()
}

/// Keeps other runs out as long as the file is open: two runs at once would plant mutants in the same tree.
fn alone(folder: &Path) -> Result<File, Failure> {
    fs::create_dir_all(folder).map_err(Failure::file(folder))?;
    let path = folder.join("sample.lock");
    let file = File::create(&path).map_err(Failure::file(&path))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        let reason = "another sample is running".to_owned();
        Failure::Contents { path, reason }
    })?;
    Ok(file)
}

/// The mutants without a verdict.
fn open<'m>(drawn: &'m [Mutant], journal: &Journal) -> Vec<&'m Mutant> {
    drawn.iter().filter(|mutant| journal.entry(&mutant.name).is_none()).collect()
}

/// Runs every stage that the mutants need, without a mutant, and returns how long each may take with one.
fn limits(bench: &Bench, open: &[&Mutant]) -> Result<BTreeMap<&'static str, Times>, Failure> {
    let mut limits = BTreeMap::new();
    for stage in open.iter().flat_map(|mutant| stages(mutant)) {
        if limits.contains_key(stage.name) {
            continue;
        }
        let outcome = bench.run(stage, Times { run: SOUND_MAX, silence: SOUND_MAX })?;
        let (build, run) = (outcome.build.as_secs_f64(), outcome.run.run.as_secs_f64());
        println!("without a mutant: {} (build {build:.1} s, run {run:.1} s)", stage.name);
        if outcome.ended != Some(Ended::Passed) {
            return Err(Failure::MutantTest(stage.name.to_owned()));
        }
        let Times { run, silence } = outcome.run;
        limits.insert(stage.name, Times { run: limit(run), silence: limit(silence) });
    }
    Ok(limits)
}

/// The time limit for something that takes `sound` without a mutant.
fn limit(sound: Duration) -> Duration {
    (sound * SLOWER_MAX).max(LIMIT_MIN)
}

/// Plants a mutant, tests it, and removes it.
fn test(bench: &Bench, mutant: &Mutant, limits: &BTreeMap<&'static str, Times>) -> Result<Entry, Failure> {
    let path = bench.tree.join(&mutant.file);
    let sound = fs::read_to_string(&path).map_err(Failure::file(&path))?;
    let planted = mutant.planted(&sound).ok_or_else(|| {
        let reason = format!("it has no place for the mutant `{}`", mutant.name);
        Failure::Contents { path: path.clone(), reason }
    })?;
    fs::write(&path, planted).map_err(Failure::file(&path))?;
    let entry = past(mutant, stages(mutant), |stage| bench.run(stage, limits[stage.name]));
    fs::write(&path, sound).map_err(Failure::file(&path))?;
    entry
}

/// Runs the stages until one does not pass, which gives the verdict.
fn past(
    mutant: &Mutant,
    stages: &[Stage],
    mut run: impl FnMut(&Stage) -> Result<stage::Outcome, Failure>,
) -> Result<Entry, Failure> {
    let (verdict, by) = (Verdict::Missed, String::new());
    let mut entry = Entry { mutant: mutant.name.clone(), verdict, by, build: 0.0, run: 0.0 };
    for stage in stages {
        let outcome = run(stage)?;
        entry.build += outcome.build.as_secs_f64();
        entry.run += outcome.run.run.as_secs_f64();
        let test = match outcome.ended {
            Some(Ended::Passed) => continue,
            Some(Ended::Failed(test)) => {
                entry.verdict = Verdict::Caught;
                test.map_or_else(String::new, |test| format!(": {test}"))
            }
            Some(Ended::TimedOut) => {
                entry.verdict = Verdict::Timeout;
                String::new()
            }
            None => {
                entry.verdict = Verdict::Unviable;
                String::new()
            }
        };
        entry.by = format!("{}{test}", stage.name);
        break;
    }
    Ok(entry)
}

/// A verdict in its printed form.
fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Caught => "caught",
        Verdict::Timeout => "timeout",
        Verdict::Unviable => "unviable",
        Verdict::Missed => "MISSED",
    }
}

#[cfg(test)]
mod tests {
    use super::journal::{Entry, Journal, Verdict};
    use super::mutant::tests::mutant;
    use super::stage::{Outcome, stages};
    use super::watched::Ended;
    use super::{Times, alone, limit, open, past};
    use std::time::Duration;

    /// The verdict on a mutant whose stages end like this, and the number of stages that are run.
    fn verdict(ends: [Option<Ended>; 3]) -> (Verdict, String, f64, usize) {
        let (mutant, mut ends, mut ran) = (mutant((1, 1), (1, 2), ""), ends.into_iter(), 0);
        let second = Duration::from_secs(1);
        let entry = past(&mutant, stages(&mutant), |_| {
            ran += 1;
            Ok(Outcome {
                ended: ends.next().expect("three stages"),
                build: second,
                run: Times { run: 2 * second, silence: second },
            })
        });
        let entry = entry.expect("nothing went wrong");
        (entry.verdict, entry.by, entry.build + entry.run, ran)
    }

    #[test]
    fn the_first_stage_that_does_not_pass_gives_the_verdict() {
        let (passed, failed) = (|| Some(Ended::Passed), |name: &str| Some(Ended::Failed(Some(name.to_owned()))));
        let caught = verdict([failed("a"), passed(), passed()]);
        assert_eq!(caught, (Verdict::Caught, "portcullis suite: a".to_owned(), 3.0, 1));
        let caught = verdict([passed(), Some(Ended::Failed(None)), passed()]);
        assert_eq!(caught, (Verdict::Caught, "portcullis-vtd".to_owned(), 6.0, 2));
        let late = verdict([passed(), passed(), Some(Ended::TimedOut)]);
        assert_eq!(late, (Verdict::Timeout, "portcullis loom".to_owned(), 9.0, 3));
        assert_eq!(verdict([None, passed(), passed()]).0, Verdict::Unviable);
        assert_eq!(verdict([passed(), passed(), passed()]), (Verdict::Missed, String::new(), 9.0, 3));
    }

    #[test]
    fn what_has_a_verdict_is_not_tested_again() {
        let path = std::env::temp_dir().join(format!("portcullis-sample-{}.jsonl", std::process::id()));
        let drawn = [mutant((1, 1), (1, 2), ""), mutant((2, 1), (2, 2), ""), mutant((3, 1), (3, 2), "")];
        let name = drawn[1].name.clone();
        let mut journal = Journal::open(&path, "aa").expect("a journal");
        let before = open(&drawn, &journal).len();
        let entry = Entry { mutant: name, verdict: Verdict::Caught, by: String::new(), build: 0.0, run: 0.0 };
        journal.append(entry).expect("it can be written");
        let journal = Journal::open(&path, "aa").expect("a journal");
        let after: Vec<&str> = open(&drawn, &journal).iter().map(|mutant| mutant.name.as_str()).collect();
        std::fs::remove_file(&path).expect("ours");
        assert_eq!(before, 3);
        assert_eq!(after, [&drawn[0].name, &drawn[2].name]);
    }

    #[test]
    fn one_sample_keeps_another_out_until_it_ends() {
        let folder = std::env::temp_dir().join(format!("portcullis-alone-{}", std::process::id()));
        let first = alone(&folder).expect("the only one");
        let second = alone(&folder).is_err();
        drop(first);
        let third = alone(&folder).is_ok();
        std::fs::remove_dir_all(&folder).expect("ours");
        assert!(second && third);
    }

    #[test]
    fn a_stage_may_take_longer_than_without_a_mutant() {
        assert_eq!(limit(Duration::from_secs(2)), Duration::from_secs(60));
        assert_eq!(limit(Duration::from_secs(20)), Duration::from_secs(100));
    }
}
