//! `cargo xtask linux test`: the module works in a kernel of the distribution, and refuses to load where it must.

mod list;
mod scenario;
mod trace;

use super::kernel::{Kernel, Series};
use super::module::{self, Modules};
use super::object;
use super::packages::Store;
use crate::failure::Failure;
use crate::failure::linux::Error;
use crate::stages::Stages;
use crate::workspace::Workspace;
use list::{FINDER, FURTHER, OLDER, SCENARIOS, SOAK, TRACE};
use scenario::Scenario;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The flaw that has to be found: the hardware is not told of unmaps.
const PLANTED: &str = "planted-no-invalidation";
/// The number of machines that run at once.
const AT_ONCE: usize = 2;

/// Runs every test of the module, or only those named in `only`. Returns an error that says so if the distribution has
/// no kernel, or no compiler for it.
pub(super) fn test(workspace: &Workspace, store: &Store, full: bool, only: &[String]) -> Result<(), Failure> {
    let is_meant = |scenario: &Scenario, of_every_run: bool| {
        if only.is_empty() { full || of_every_run } else { only.iter().any(|name| name == scenario.name) }
    };
    if let Some(unknown) = only.iter().find(|name| !list::names().any(|known| known == name.as_str())) {
        return Err(
            Error::NoSuchTest { name: unknown.clone(), names: list::names().collect::<Vec<_>>().join(", ") }.into()
        );
    }
    let mut stages = Stages::new(workspace, "linux test");
    let kernel =
        stages.stage("kernel", "unpack a 6.12 of the distribution", |_| Kernel::newest(store, Series::Six12))?;
    let build = |workspace: &Workspace, kernel: &Kernel, features: &[&str]| {
        module::build(workspace, store, &kernel.headers, &object::build(workspace, store, features)?)
    };
    let modules = stages.stage("modules", "build them for it", |workspace| build(workspace, &kernel, &[]))?;
    if is_meant(&FINDER, true) {
        stages.stage(FINDER.name, "find a module that does not tell the hardware of unmaps", |workspace| {
            found(store, &kernel, &build(workspace, &kernel, &[PLANTED])?)
        })?;
    }
    let named = Some(SOAK).filter(|scenario| only.iter().any(|name| name == scenario.name));
    let further = FURTHER.into_iter().filter(|scenario| is_meant(scenario, false)).chain(named);
    let meant: Vec<Scenario> =
        SCENARIOS.into_iter().filter(|scenario| is_meant(scenario, true)).chain(further).collect();
    stages.stage("guests", "run the module, and see it refuse", |_| run_all(store, &kernel, &modules, &meant))?;
    if is_meant(&TRACE, false) {
        stages.stage(TRACE.name, "trace a guest, and read it with `portcullis compare`", |workspace| {
            trace::compared(workspace, store, &kernel, &modules)
        })?;
    }
    let older: Vec<Scenario> = OLDER.into_iter().filter(|scenario| is_meant(scenario, false)).collect();
    if !older.is_empty() {
        let kernel =
            stages.stage("older kernel", "unpack the distribution's 6.1", |_| Kernel::newest(store, Series::Six1))?;
        let modules =
            stages.stage("older modules", "with the same Rust half", |workspace| build(workspace, &kernel, &[]))?;
        stages.stage("older guests", "run the module", |_| run_all(store, &kernel, &modules, &older))?;
    }
    stages.finish();
    Ok(())
}

/// Runs machines, a few at a time, because they mostly wait. Runs all of them, and reports all that fail.
fn run_all(store: &Store, kernel: &Kernel, modules: &Modules, scenarios: &[Scenario]) -> Result<(), Failure> {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(scenario) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
            match scenario.run(store, kernel, modules) {
                Ok(transcript) => println!("    {}: ok, {:.1} s", scenario.name, transcript.elapsed.as_secs_f64()),
                Err(failure) => failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure),
            }
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let mut failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failures.pop() {
        None => Ok(()),
        Some(only) if failures.is_empty() => Err(only),
        Some(last) => Err(Failure::Several(failures.into_iter().chain([last]).collect())),
    }
}

/// The attack must find the flaw, by the name of the rule that it breaks.
fn found(store: &Store, kernel: &Kernel, flawed: &Modules) -> Result<(), Failure> {
    const FOUND: &str = "FAILED S2 strict";
    match FINDER.run(store, kernel, flawed) {
        Err(Failure::Linux(Error::Guest { console, .. })) if console.contains(FOUND) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(Error::NotFound { flaw: PLANTED.to_owned() }.into()),
    }
}
