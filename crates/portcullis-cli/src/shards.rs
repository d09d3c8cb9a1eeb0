//! `figures --shard` and `figures --merge`: a share of the runs as lines of JSON, and all shares joined.
//!
//! The first line of a shard says which program made it, for which figures, and which share it is. Each other line is
//! a run with its result. What does not fit together is refused.

use crate::Failure;
use crate::share::Share;
use portcullis_sim::figures::{Outcome, Piece, Plan};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::{env, fs};

const SCHEMA: &str = "portcullis.figures-shard/1";

/// The first line of a shard.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    schema: String,
    version: String,
    build: String,
    figures: Vec<String>,
    full: bool,
    shard: Share,
    runs: usize,
}

/// A run and its result.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    run: usize,
    piece: Piece,
    result: Outcome,
}

/// All runs of a whole, joined.
pub(crate) struct Merged {
    pub(crate) figures: Vec<String>,
    pub(crate) plan: Plan,
    pub(crate) outcomes: Vec<Outcome>,
}

/// Prints a share of the runs: `places` of the plan, with their outcomes.
pub(crate) fn print(
    out: &mut impl Write,
    figures: &[String],
    plan: &Plan,
    share: Share,
    outcomes: Vec<Outcome>,
) -> Result<(), Failure> {
    let runs = plan.pieces().len();
    let header = Header {
        schema: SCHEMA.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        build: build().map_err(Failure::input)?,
        figures: figures.to_vec(),
        full: plan.is_full(),
        shard: share,
        runs,
    };
    print_line(out, &header)?;
    for (run, result) in share.of(runs).into_iter().zip(outcomes) {
        print_line(out, &Line { run, piece: plan.pieces()[run].clone(), result })?;
    }
    Ok(())
}

fn print_line(out: &mut impl Write, line: &impl Serialize) -> Result<(), Failure> {
    Ok(writeln!(out, "{}", serde_json::to_string(line).map_err(Failure::input)?)?)
}

/// The program file as a number, which is different for each build.
fn build() -> io::Result<String> {
    // FNV-1a, 64 bits.
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let program = fs::read(env::current_exe()?)?;
    Ok(format!("{:016x}", program.iter().fold(0xcbf2_9ce4_8422_2325, fold)))
}

/// A file with its lines.
struct Shard<'p> {
    path: &'p Path,
    header: Header,
    lines: Vec<Line>,
}

/// Joins shards to a whole. `plan` makes the plan of figures by their ids, of long runs or not.
pub(crate) fn merge(
    paths: &[PathBuf],
    plan: impl FnOnce(&[String], bool) -> Result<Plan, Failure>,
) -> Result<Merged, Failure> {
    let build = build().map_err(Failure::input)?;
    let shards = paths.iter().map(|path| Shard::read(path, &build)).collect::<Result<Vec<_>, _>>()?;
    let first = &shards[0];
    let Header { figures, full, shard: Share { count, .. }, .. } = &first.header;
    for shard in &shards {
        let Header { figures: others, full: other, shard: share, .. } = &shard.header;
        if (others, other, share.count) != (figures, full, *count) {
            let first = first.path.display();
            return Err(shard.refused(1, format_args!("a shard of other figures than {first}, or of another whole")));
        }
    }
    for number in 1..=*count {
        let mut found = shards.iter().filter(|shard| shard.header.shard.number == number);
        match (found.next(), found.next()) {
            (None, _) => return Err(Failure::Input(format!("--merge: the shard {number}/{count} is missing"))),
            (Some(one), Some(other)) => {
                let (one, other) = (one.path.display(), other.path.display());
                return Err(Failure::Input(format!("--merge: {one} and {other} are both the shard {number}/{count}")));
            }
            (Some(_), None) => {}
        }
    }
    let plan = plan(figures, *full)?;
    let mut outcomes: Vec<Option<Outcome>> = plan.pieces().iter().map(|_| None).collect();
    let figures = figures.clone();
    for shard in shards {
        shard.put(&plan, &mut outcomes)?;
    }
    let outcomes = outcomes.into_iter().map(|outcome| outcome.expect("each shard has its runs")).collect();
    Ok(Merged { figures, plan, outcomes })
}

impl<'p> Shard<'p> {
    fn read(path: &'p Path, build: &str) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
        let header: Value = lines.next().and_then(|(_, line)| serde_json::from_str(line).ok()).unwrap_or_default();
        if header["schema"] != SCHEMA {
            return Err(refused(path, 1, format_args!("expected the first line of a shard, with the schema {SCHEMA}")));
        }
        let version = env!("CARGO_PKG_VERSION");
        if header["version"] != version {
            return Err(refused(path, 1, format_args!("made by version {}, and this is {version}", header["version"])));
        }
        if header["build"] != build {
            return Err(refused(path, 1, format_args!("made by another build of version {version}")));
        }
        let header: Header = serde_json::from_value(header).map_err(|error| refused(path, 1, error))?;
        if !header.shard.is_sound() {
            return Err(refused(path, 1, format_args!("there is no shard {}", header.shard)));
        }
        let line = |(number, line)| {
            let error = |error| refused(path, number, format_args!("expected a run in JSON, not cut off: {error}"));
            serde_json::from_str(line).map_err(error)
        };
        let lines = lines.map(line).collect::<Result<_, _>>()?;
        Ok(Self { path, header, lines })
    }

    fn refused(&self, line: usize, reason: impl Display) -> Failure {
        refused(self.path, line, reason)
    }

    /// Puts the results of this shard where they belong. It must have its runs, each once, and no others.
    fn put(self, plan: &Plan, outcomes: &mut [Option<Outcome>]) -> Result<(), Failure> {
        let Header { shard: share, runs, .. } = self.header;
        if runs != outcomes.len() {
            return Err(self.refused(1, "expected a share of the runs of these figures"));
        }
        let path = self.path;
        for (number, Line { run, piece, result }) in (2..).zip(self.lines) {
            if !share.has(run) || plan.pieces().get(run) != Some(&piece) || !result.is_of(&piece) {
                return Err(refused(path, number, format_args!("expected a run of the shard {share} and its result")));
            }
            if outcomes[run].replace(result).is_some() {
                return Err(refused(path, number, format_args!("the run {run} is there twice")));
            }
        }
        match share.of(runs).into_iter().find(|run| outcomes[*run].is_none()) {
            Some(run) => Err(Failure::Input(format!("{}: the run {run} is missing", path.display()))),
            None => Ok(()),
        }
    }
}

fn refused(path: &Path, line: usize, reason: impl Display) -> Failure {
    Failure::Input(format!("{}:{line}: {reason}", path.display()))
}
