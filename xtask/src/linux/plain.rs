//! The files of the module's C half that need no kernel, compiled for this machine, with what tests them.

use crate::process::{output, run};
use crate::workspace::Workspace;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A program of `crates/portcullis-linux/tests/plain`, with the file of the module that has its name.
struct Program {
    path: PathBuf,
    _folder: TempDir,
}

impl Program {
    fn new(name: &str) -> Self {
        let root = Workspace::read().expect("a workspace").root.join("crates/portcullis-linux");
        let folder = tempfile::tempdir().expect("a new folder");
        let path = folder.path().join(name);
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(root.join("module"));
        command.arg(root.join(format!("tests/plain/{name}.c"))).arg(root.join(format!("module/{name}.c")));
        if let Err(failure) = output(command.arg("-o").arg(&path)) {
            panic!("`cc`, which the kernel module needs too, does not compile {name}.c: {failure}");
        }
        Self { path, _folder: folder }
    }

    fn passes(&self, case: &str) {
        let ended = run(Command::new(&self.path).arg(case)).expect("our program");
        assert!(ended.status.success(), "{case}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

#[test]
fn a_port_by_the_standard_keeps_devices_apart_once_it_was_told_to() {
    Program::new("acs").passes("standard");
}

#[test]
fn a_port_that_firmware_has_locked_keeps_apart_only_what_it_says_it_does() {
    Program::new("acs").passes("locked");
}

#[test]
fn ports_with_registers_of_four_bytes_are_told_where_their_register_is() {
    Program::new("acs").passes("wide");
}

#[test]
fn a_port_that_answers_nothing_keeps_nothing_apart() {
    Program::new("acs").passes("absent");
}

#[test]
fn a_port_has_no_short_cuts_past_the_iommu_that_firmware_has_set() {
    Program::new("acs").passes("short-cuts");
}

#[test]
fn a_port_without_the_capability_keeps_nothing_apart() {
    Program::new("acs").passes("without");
}

#[test]
fn a_port_that_has_lost_its_state_is_told_again() {
    Program::new("acs").passes("forgetful");
}

#[test]
fn a_device_that_floods_hides_no_fault_of_another() {
    Program::new("faults").passes("flood");
}

#[test]
fn a_device_that_uses_many_ids_hides_no_fault_of_a_device_on_another_bus() {
    Program::new("faults").passes("many-ids");
}

#[test]
fn faults_that_have_no_place_are_counted() {
    Program::new("faults").passes("every-id");
}
