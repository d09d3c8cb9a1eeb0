//! The kernel modules: the C half, compiled and linked with the Rust half by the kernel's own makefiles.

use super::kernel::Headers;
use super::object::Core;
use super::packages::{Store, files, remake};
use crate::failure::{Failure, tail};
use crate::house::files::replace;
use crate::process::{line, run};
use crate::workspace::Workspace;
use std::borrow::Cow;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The C half.
const SOURCE: &str = "crates/portcullis-linux/module";
/// A file in the folder of a build that has ended without a warning.
const STAMP: &str = ".ended-without-a-warning";
/// The beginning of a warning that does not concern the module: this machine's compiler is newer than the kernel's.
const NOT_OURS: &str = "warning: the compiler differs from the one used to build the kernel";

/// Modules for one kernel.
#[derive(Clone)]
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
    pub(crate) fn files(&self) -> [(&'static str, PathBuf); 2] {
        let Self { portcullis, test } = self;
        [("modules/portcullis.ko", portcullis.clone()), ("modules/portcullis_test.ko", test.clone())]
    }
}

/// The C half, compiled for a kernel.
pub(super) struct Compiled<'a> {
    store: &'a Store,
    headers: Headers,
    folder: PathBuf,
}

impl<'a> Compiled<'a> {
    /// Compiles what has changed since the last build. This needs no Rust half.
    pub(super) fn new(workspace: &Workspace, store: &'a Store, headers: &Headers) -> Result<Self, Failure> {
        let headers = headers.clone();
        let compiled = Self { store, folder: store.folder.join(format!("module-{}", headers.version)), headers };
        let sources = files(&workspace.root.join(SOURCE))?;
        compiled.make(|folder| {
            lay_out(&sources, folder)?;
            let sources = sources.iter().filter(|file| file.extension().is_some_and(|extension| extension == "c"));
            let objects = sources.filter_map(|file| Some(file.with_extension("o").file_name()?.to_owned()));
            Ok(objects.collect())
        })?;
        Ok(compiled)
    }

    /// Links the modules with a Rust half. They are copied out of the folder, so that it can serve for another one.
    pub(super) fn link(&mut self, core: &Core) -> Result<Modules, Failure> {
        self.make(|folder| ship(core, folder).map(|()| vec!["modules".into()]))?;
        let built = self.store.folder.join(format!("{}{}", self.headers.version, core.flavour));
        fs::create_dir_all(&built).map_err(Failure::file(&built))?;
        let module = |name: &str| {
            let (module, copy) = (self.folder.join(name), built.join(name));
            fs::copy(&module, &copy).map_err(Failure::file(module)).map(|_| copy)
        };
        Ok(Modules { portcullis: module("portcullis.ko")?, test: module("portcullis_test.ko")? })
    }

    /// Lets the kernel's makefiles make the targets that `prepare` returns. A warning of the compiler, of objtool or of
    /// modpost is an error. The makefiles report it once, and not again for an object that is there. So after a build
    /// that has not ended well, the folder is emptied.
    fn make(&self, prepare: impl FnOnce(&Path) -> Result<Vec<OsString>, Failure>) -> Result<(), Failure> {
        let Self { store, headers, folder } = self;
        let stamp = folder.join(STAMP);
        match fs::remove_file(&stamp) {
            Ok(()) => (),
            Err(error) if error.kind() == ErrorKind::NotFound => remake(folder)?,
            Err(error) => return Err(Failure::file(stamp)(error)),
        }
        let mut command = headers.make(store);
        command.arg(format!("M={}", folder.display()));
        // BTF needs pahole, which few machines have.
        command.arg("CONFIG_DEBUG_INFO_BTF_MODULES=").args(prepare(folder)?);
        let output = run(&mut command)?;
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if !output.status.success() {
            return Err(Failure::Command { command: line(&command), output: tail(&printed) });
        }
        if let Some(line) = warning(&printed) {
            let what = format!("the build of the module for {} has a warning:\n    {line}", headers.version);
            return Err(Failure::Other(what));
        }
        fs::write(&stamp, "").map_err(Failure::file(stamp))
    }
}

/// Builds the modules for a kernel.
pub(super) fn build(workspace: &Workspace, store: &Store, headers: &Headers, core: &Core) -> Result<Modules, Failure> {
    Compiled::new(workspace, store, headers)?.link(core)
}

/// Makes a folder from which DKMS builds the module for any kernel. It does not contain the test module.
pub(super) fn dkms(workspace: &Workspace, store: &Store, core: &Core) -> Result<PathBuf, Failure> {
    let folder = store.folder.join("dkms");
    remake(&folder)?;
    let mut sources = files(&workspace.root.join(SOURCE))?;
    sources.retain(|file| !name_of(file).starts_with("test"));
    lay_out(&sources, &folder)?;
    ship(core, &folder)?;
    Ok(folder)
}

/// Copies the files of the C half into `folder`. If it has a source that is none of them, it is emptied.
fn lay_out(sources: &[PathBuf], folder: &Path) -> Result<(), Failure> {
    let is_source = |name: &str| (name.ends_with(".c") && !name.ends_with(".mod.c")) || name.ends_with(".h");
    let is_gone = |file: &PathBuf| {
        let name = name_of(file);
        is_source(&name) && !sources.iter().any(|source| name_of(source) == name)
    };
    if files(folder)?.iter().any(is_gone) {
        remake(folder)?;
    }
    sources.iter().try_for_each(|file| replace(file, &folder.join(name_of(file).as_ref())))
}

/// Copies the Rust half into `folder`. The suffix tells kbuild that the object is complete and need not be compiled.
fn ship(core: &Core, folder: &Path) -> Result<(), Failure> {
    replace(&core.path, &folder.join("core.o_shipped"))
}

fn name_of(file: &Path) -> Cow<'_, str> {
    file.file_name().unwrap_or_default().to_string_lossy()
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
