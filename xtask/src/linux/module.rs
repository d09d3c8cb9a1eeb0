//! The kernel modules: the C half, compiled and linked with the Rust half by the kernel's own makefiles.

use super::command::{line, run};
use super::kernel::Headers;
use super::object::Core;
use super::packages::{Store, files, remake};
use crate::failure::Failure;
use crate::failure::linux::{Error, tail};
use crate::workspace::Workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The C half.
const SOURCE: &str = "crates/portcullis-linux/module";
/// The beginning of a warning that does not concern the module: this machine's compiler is newer than the kernel's.
const NOT_OURS: &str = "warning: the compiler differs from the one used to build the kernel";

/// Modules for one kernel.
pub(crate) struct Modules {
    /// `portcullis.ko`.
    pub(crate) portcullis: PathBuf,
    /// `portcullis_test.ko`, which tests it in the kernel.
    pub(crate) test: PathBuf,
}

impl Modules {
    /// The modules that were built for a kernel, if there are any.
    pub(super) fn built(store: &Store, headers: &Headers) -> Option<Self> {
        let folder = store.folder.join(&headers.version);
        let modules = Self { portcullis: folder.join("portcullis.ko"), test: folder.join("portcullis_test.ko") };
        (modules.portcullis.is_file() && modules.test.is_file()).then_some(modules)
    }

    /// The modules with their paths in a guest, for `load`.
    pub(crate) fn files(&self) -> Vec<(&'static str, &Path)> {
        vec![("modules/portcullis.ko", &self.portcullis), ("modules/portcullis_test.ko", &self.test)]
    }
}

/// Builds the modules for a kernel. The folder is recreated, because kbuild does not notice changes of core.o_shipped.
pub(super) fn build(workspace: &Workspace, store: &Store, headers: &Headers, core: &Core) -> Result<Modules, Failure> {
    let name = format!("{}{}", headers.version, core.flavour);
    let folder = store.folder.join(format!("module-{name}"));
    lay_out(workspace, core, &folder, |_| true)?;
    make(headers, &folder)?;
    let built = store.folder.join(name);
    fs::create_dir_all(&built).map_err(Failure::file(&built))?;
    let module = |name: &str| copy_into(&built, &folder.join(name));
    Ok(Modules { portcullis: module("portcullis.ko")?, test: module("portcullis_test.ko")? })
}

/// Makes a folder from which DKMS builds the module for any kernel. It does not contain the test module.
pub(super) fn dkms(workspace: &Workspace, store: &Store, core: &Core) -> Result<PathBuf, Failure> {
    let folder = store.folder.join("dkms");
    lay_out(workspace, core, &folder, |name| !name.starts_with("test"))?;
    Ok(folder)
}

/// Copies the Rust half, and the files of the C half whose names `is_wanted` accepts, into `folder`.
fn lay_out(workspace: &Workspace, core: &Core, folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<(), Failure> {
    remake(folder)?;
    for file in files(&workspace.root.join(SOURCE))? {
        if is_wanted(&file.file_name().unwrap_or_default().to_string_lossy()) {
            copy_into(folder, &file)?;
        }
    }
    // The suffix tells kbuild that the object is complete and need not be compiled.
    let shipped = folder.join("core.o_shipped");
    fs::copy(&core.path, &shipped).map_err(Failure::file(shipped))?;
    Ok(())
}

fn copy_into(folder: &Path, file: &Path) -> Result<PathBuf, Failure> {
    let copy = folder.join(file.file_name().unwrap_or_default());
    fs::copy(file, &copy).map_err(Failure::file(file))?;
    Ok(copy)
}

/// Runs the kernel's makefiles. A warning of the compiler, of objtool or of modpost is an error.
fn make(headers: &Headers, folder: &Path) -> Result<(), Failure> {
    let mut command = Command::new("make");
    command.arg("-C").arg(&headers.folder).arg(format!("M={}", folder.display()));
    // BTF needs pahole, which few machines have.
    command.args(["CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]);
    let output = run(&mut command)?;
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if !output.status.success() {
        return Err(Error::Command { command: line(&command), output: tail(&printed) }.into());
    }
    match warning(&printed) {
        Some(line) => Err(Error::Warning { version: headers.version.clone(), line: line.to_owned() }.into()),
        None => Ok(()),
    }
}

/// The first line that is a warning about the module.
fn warning(printed: &str) -> Option<&str> {
    let is_warning = |line: &&str| line.to_ascii_lowercase().contains("warning:");
    printed.lines().map(str::trim).find(|line| is_warning(line) && !line.starts_with(NOT_OURS))
}

#[cfg(test)]
mod tests {
    use super::warning;

    #[test]
    fn a_warning_is_found_whoever_has_it() {
        let quiet = "warning: the compiler differs from the one used to build the kernel\n  CC [M]  shim.o\n  LD [M]  warnings.ko\n";
        assert_eq!(warning(quiet), None);
        for line in [
            "core.o: warning: objtool: f+0x3: unreachable instruction",
            "shim.c:3:5: warning: unused variable 'x' [-Wunused-variable]",
            "WARNING: modpost: missing MODULE_DESCRIPTION() in portcullis.o",
        ] {
            assert_eq!(warning(&format!("{quiet}{line}\n")), Some(line));
        }
    }
}
