//! `cargo xtask linux test`: the module works in a kernel of the distribution, and refuses to load where it must.

mod list;
mod trace;

use super::kernel::{Kernel, Series};
use super::module::{self, Compiled, Modules};
use super::object;
use super::packages::Store;
use crate::failure::Failure;
use crate::stages::Stages;
use crate::workspace::Workspace;
use list::{FINDER, FURTHER, OLDER, SCENARIOS, SOAK, Scenario, TRACE};
use std::panic;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// The flaw that has to be found: the hardware is not told of unmaps.
const PLANTED: &str = "planted-no-invalidation";
/// The number of machines that run at once: more than small machines have CPUs, because guests also wait.
const AT_ONCE: usize = 3;

/// Runs every test of the module, or only those named in `only`. Returns an error that says so if the distribution has
/// no kernel, or no compiler for it.
pub(super) fn test(workspace: &Workspace, store: &Store, full: bool, only: &[String]) -> Result<(), Failure> {
    let is_meant = |scenario: &Scenario, of_every_run: bool| {
        if only.is_empty() { full || of_every_run } else { only.iter().any(|name| name == scenario.name) }
    };
    if let Some(name) = only.iter().find(|name| !list::names().any(|known| known == name.as_str())) {
        let names = list::names().collect::<Vec<_>>().join(", ");
        return Err(Failure::Other(format!("there is no test `{name}`; the tests are {names}")));
    }
    let scenarios = |all: &[Scenario], of_every_run: bool| -> Vec<Scenario> {
        all.iter().copied().filter(|scenario| is_meant(scenario, of_every_run)).collect()
    };
    let mut stages = Stages::new(workspace, "linux test");
    let (kernel, mut compiled, core) = thread::scope(|scope| -> Result<_, Failure> {
        // The Rust half takes longest. Most of that is one crate, `core`, so there is a CPU for other work.
        let rust = scope.spawn(|| object::build(workspace, store, &[]));
        let kernel =
            stages.stage("kernel", "unpack a 6.12 of the distribution", |_| Kernel::newest(store, Series::Six12))?;
        let compiled = stages.stage("C half", "compile it for that kernel", |workspace| {
            Compiled::new(workspace, store, &kernel.headers)
        })?;
        let core = stages.stage("Rust half", "wait for its compilation, which began with the first stage", |_| {
            rust.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        })?;
        Ok((kernel, compiled, core))
    })?;
    let modules = stages.stage("modules", "link the halves", |_| compiled.link(&core))?;
    let mut jobs: Vec<Job<'_>> = Vec::new();
    if is_meant(&FINDER, true) {
        // It is built beside the first guests.
        let kernel = &kernel;
        let work = move || {
            let flawed = compiled.link(&object::build(workspace, store, &[PLANTED])?)?;
            found(store, kernel, &flawed)
        };
        jobs.push((FINDER.name, Box::new(work)));
    }
    let meant = [scenarios(&SCENARIOS, true), scenarios(&FURTHER, false)].concat();
    // The soak test runs only if it is named.
    let named = Some(SOAK).filter(|scenario| only.iter().any(|name| name == scenario.name));
    jobs.extend(meant.into_iter().chain(named).map(|scenario| job(scenario, store, &kernel, &modules)));
    stages.stage("guests", "run the module, see it refuse, and find the planted flaw", |_| run_all(jobs))?;
    if is_meant(&TRACE, false) {
        stages.stage(TRACE.name, "trace a guest, and read it with `portcullis compare`", |workspace| {
            trace::compared(workspace, store, &kernel, &modules)
        })?;
    }
    let older = scenarios(&OLDER, false);
    if !older.is_empty() {
        let kernel =
            stages.stage("older kernel", "unpack the distribution's 6.1", |_| Kernel::newest(store, Series::Six1))?;
        let modules = stages.stage("older modules", "with the same Rust half", |workspace| {
            module::build(workspace, store, &kernel.headers, &core)
        })?;
        let jobs = older.into_iter().map(|scenario| job(scenario, store, &kernel, &modules)).collect();
        stages.stage("older guests", "run the module", |_| run_all(jobs))?;
    }
    stages.finish();
    Ok(())
}

/// A guest, with what has to be built for it: its name, and what to do.
type Job<'a> = (&'static str, Box<dyn FnOnce() -> Result<(), Failure> + Send + 'a>);

fn job<'a>(scenario: Scenario, store: &'a Store, kernel: &'a Kernel, modules: &'a Modules) -> Job<'a> {
    (scenario.name, Box::new(move || scenario.run(store, kernel, Some(modules)).map(drop)))
}

/// Does jobs, a few at a time, because guests also wait. Does all of them, and reports all that fail.
fn run_all(jobs: Vec<Job<'_>>) -> Result<(), Failure> {
    let (jobs, failures) = (Mutex::new(jobs.into_iter()), Mutex::new(Vec::new()));
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((name, work)) = next() {
            let begun = Instant::now();
            match work() {
                Ok(()) => println!("    {name}: ok, {:.1} s", begun.elapsed().as_secs_f64()),
                Err(failure) => failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure),
            }
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    Failure::all(failures.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The attack must find the flaw, by the name of the rule that it breaks.
fn found(store: &Store, kernel: &Kernel, flawed: &Modules) -> Result<(), Failure> {
    const FOUND: &str = "FAILED S2 strict";
    match FINDER.run(store, kernel, Some(flawed)) {
        Err(Failure::Guest { console, .. }) if console.contains(FOUND) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(Failure::Other(format!("the flaw `{PLANTED}` was planted, but the test passed"))),
    }
}
