//! The machines that the tests boot, and their jobs, from the folder of the module's tests.

use crate::failure::Failure;
use crate::linux::scenario::Scenario;
use crate::workspace::Workspace;
use serde::Deserialize;
use std::fs;

const TESTS: &str = "crates/portcullis-linux/tests";

#[derive(Deserialize)]
struct Machines {
    machine: Vec<Scenario>,
}

/// All machines, in the order of the file, each behind the one with interrupt remapping.
pub(in crate::linux) fn machines(workspace: &Workspace) -> Result<Vec<Scenario>, Failure> {
    let path = workspace.root.join(TESTS).join("machines.toml");
    let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
    let Machines { mut machine } = toml::from_str(&text).map_err(Failure::contents(path))?;
    for scenario in &mut machine {
        let name = if scenario.job.is_empty() { &scenario.name } else { &scenario.job };
        let job = workspace.root.join(TESTS).join(format!("jobs/{name}.sh"));
        scenario.job = fs::read_to_string(&job).map_err(Failure::file(job))?;
    }
    Ok(machine.into_iter().flat_map(|machine| [machine.with_remapping(), Some(machine)]).flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::machines;
    use crate::workspace::Workspace;
    use std::collections::BTreeSet;

    #[test]
    fn every_machine_has_a_name_of_its_own_and_a_job() {
        let machines = machines(&Workspace::read().expect("a workspace")).expect("ours");
        assert_eq!(machines.iter().map(|machine| &machine.name).collect::<BTreeSet<_>>().len(), machines.len());
        assert!(machines.iter().all(|machine| !machine.name.is_empty() && !machine.job.is_empty()));
    }
}
