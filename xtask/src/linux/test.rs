//! `cargo xtask linux test`: the module works in a kernel of the distribution, and refuses to load where it must.

pub(super) mod list;
mod trace;

use super::kernel::{Kernel, Series};
use super::module::{Compiled, Modules};
use super::object::{self, Core};
use super::packages::Store;
use super::scenario::{Runs, Scenario};
use crate::failure::Failure;
use crate::stages::Stages;
use crate::workspace::Workspace;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;
use std::{env, panic};

/// The number of machines that run at once: more than small machines have CPUs, because guests also wait.
const AT_ONCE: usize = 3;
/// The test whose output is read.
const TRACE: &str = "trace";

/// Runs every test of the module, or only those named in `only`. Returns an error that says so if the distribution has
/// no kernel, or no compiler for it.
pub(super) fn test(workspace: &Workspace, store: &Store, full: bool, only: &[String]) -> Result<(), Failure> {
    let machines = list::machines(workspace)?;
    if let Some(name) = only.iter().find(|name| machines.iter().all(|machine| machine.name != **name)) {
        let names = machines.iter().map(|machine| machine.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Failure::Other(format!("there is no test `{name}`; the tests are {names}")));
    }
    let is_meant = |machine: &&Scenario| match machine.runs {
        _ if !only.is_empty() => only.contains(&machine.name),
        Runs::Always => true,
        Runs::Full => full,
        Runs::Named | Runs::Never => false,
    };
    let of = |series| machines.iter().filter(is_meant).filter(move |machine| machine.series == series);
    let mut stages = Stages::new(workspace, "linux test");
    let what = "unpack a 6.12 of the distribution";
    let (tested, core) = build(&mut stages, workspace, store, &[], what, || Kernel::newest(store, Series::Six12))?;
    stages.stage("guests", "run the module, see it refuse, and find the planted flaw", |_| {
        tested.run_all(of(Series::Six12).collect())
    })?;
    let mut not_run = Vec::new();
    for (series, name) in [(Series::Six1, "older"), (Series::Newest, "newest")] {
        let machines: Vec<&Scenario> = of(series).collect();
        if machines.is_empty() {
            continue;
        }
        let kernel = match stages.stage(&format!("{name} kernel"), "unpack it", |_| Kernel::newest(store, series)) {
            Err(error) if series == Series::Newest && only.is_empty() && error.is_absence(tests_for_others()) => {
                println!("==> {name} kernel: not run: {error}");
                not_run.push(name);
                continue;
            }
            kernel => kernel?,
        };
        let tested = stages.stage(&format!("{name} modules"), "with the same Rust half", |_| {
            let compiled = Compiled::new(workspace, store, &kernel.headers)?;
            Tested::new(workspace, store, kernel, compiled, &core)
        })?;
        stages.stage(&format!("{name} guests"), "run the module", |_| tested.run_all(machines))?;
    }
    stages.finish();
    if !not_run.is_empty() {
        println!("not run: the {} kernel", not_run.join(", "));
    }
    Ok(())
}

/// Whether this run tests for others, as in CI. Then what cannot be downloaded is an error.
pub(super) fn tests_for_others() -> bool {
    env::var("CI").is_ok_and(|value| value == "true")
}

/// Builds the module for the kernel that `kernel` brings, with these features of the Rust half.
pub(super) fn build<'a>(
    stages: &mut Stages<'_>,
    workspace: &'a Workspace,
    store: &'a Store,
    features: &[&str],
    what: &str,
    kernel: impl FnOnce() -> Result<Kernel, Failure>,
) -> Result<(Tested<'a>, Core), Failure> {
    let (kernel, compiled, core) = thread::scope(|scope| -> Result<_, Failure> {
        // The Rust half takes longest. Most of that is one crate, `core`, so there is a CPU for other work.
        let rust = scope.spawn(|| object::build(workspace, store, features));
        let kernel = stages.stage("kernel", what, |_| kernel())?;
        let compiled = stages.stage("C half", "compile it for that kernel", |workspace| {
            Compiled::new(workspace, store, &kernel.headers)
        })?;
        let core = stages.stage("Rust half", "wait for its compilation, which began with the first stage", |_| {
            rust.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        })?;
        Ok((kernel, compiled, core))
    })?;
    let tested =
        stages.stage("modules", "link the halves", |_| Tested::new(workspace, store, kernel, compiled, &core))?;
    Ok((tested, core))
}

/// A kernel with the modules for it.
pub(super) struct Tested<'a> {
    workspace: &'a Workspace,
    store: &'a Store,
    kernel: Kernel,
    modules: Modules,
    /// What links further modules, and those with a planted flaw, by its name. The first test that needs them builds
    /// them, beside the guests of others.
    flawed: Mutex<(Compiled<'a>, BTreeMap<String, Modules>)>,
}

impl<'a> Tested<'a> {
    fn new(
        workspace: &'a Workspace,
        store: &'a Store,
        kernel: Kernel,
        mut compiled: Compiled<'a>,
        core: &Core,
    ) -> Result<Self, Failure> {
        let modules = compiled.link(core)?;
        Ok(Self { workspace, store, kernel, modules, flawed: Mutex::new((compiled, BTreeMap::new())) })
    }

    fn modules(&self, planted: &str) -> Result<Modules, Failure> {
        if planted.is_empty() {
            return Ok(self.modules.clone());
        }
        let mut flawed = self.flawed.lock().unwrap_or_else(PoisonError::into_inner);
        let (compiled, built) = &mut *flawed;
        if !built.contains_key(planted) {
            let modules = compiled.link(&object::build(self.workspace, self.store, &[planted])?)?;
            built.insert(planted.to_owned(), modules);
        }
        Ok(built[planted].clone())
    }

    /// Boots machines, a few at a time, because guests also wait. Boots all of them, and reports all that fail.
    pub(super) fn run_all(&self, machines: Vec<&Scenario>) -> Result<(), Failure> {
        let (machines, failures) = (Mutex::new(machines.into_iter()), Mutex::new(Vec::new()));
        let next = || machines.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some(machine) = next() {
                let begun = Instant::now();
                match self.run(machine) {
                    Ok(()) => println!("    {}: ok, {:.1} s", machine.name, begun.elapsed().as_secs_f64()),
                    Err(failure) => failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure),
                }
            }
        };
        thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
        Failure::all(failures.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// A planted flaw must be found, by the name of the rule that it breaks.
    fn run(&self, machine: &Scenario) -> Result<(), Failure> {
        let Scenario { name, planted, finds, .. } = machine;
        let ended = machine.run(self.store, &self.kernel, Some(&self.modules(planted)?));
        match ended {
            Err(Failure::Guest { console, .. }) if !finds.is_empty() && console.contains(finds) => Ok(()),
            Ok(_) if !finds.is_empty() => {
                Err(Failure::Other(format!("the flaw `{planted}` was planted, but the test passed")))
            }
            Ok(transcript) if name == TRACE => trace::compared(self.workspace, self.store, &transcript),
            ended => ended.map(drop),
        }
    }
}
