//! Builds the program with which a guest starts another kernel, because busybox has none.

use super::scratch::Scratch;
use crate::failure::Failure;
use crate::process::output;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = include_str!("../../../crates/portcullis-linux/tests/guest/kexec.c");

/// The program, which needs no libraries.
pub(super) fn program(scratch: &Scratch) -> Result<PathBuf, Failure> {
    let source = scratch.file("kexec.c", SOURCE.as_bytes())?;
    let program = source.with_extension("");
    output(Command::new("gcc").args(["-static", "-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(&source))?;
    Ok(program)
}
