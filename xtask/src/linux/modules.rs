//! The modules of an unpacked kernel, and the modules that each of them needs.

use super::kernel::Kernel;
use crate::failure::Failure;
use lzma_rust2::XzReader;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// The modules of a kernel.
pub(super) struct Library {
    /// The file of each module, by the module's name, with underscores.
    files: BTreeMap<String, PathBuf>,
    /// The modules that are part of the kernel's image.
    built_in: BTreeSet<String>,
    folder: PathBuf,
}

/// A module.
pub(super) struct Module {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

impl Library {
    pub(super) fn read(kernel: &Kernel) -> Result<Self, Failure> {
        let folder = kernel.modules();
        let list = folder.join("modules.builtin");
        let text = fs::read_to_string(&list).map_err(Failure::file(list))?;
        let built_in = text.lines().filter_map(|line| name_of(Path::new(line))).collect();
        let mut files = BTreeMap::new();
        for entry in WalkDir::new(folder.join("kernel")) {
            let path = entry.map_err(io::Error::from).map_err(Failure::file(&folder))?.into_path();
            files.extend(name_of(&path).map(|name| (name, path)));
        }
        Ok(Self { files, built_in, folder })
    }

    /// A module and all modules that it needs, each after the modules that it needs itself. Empty if the module is
    /// built in.
    pub(super) fn with_needs(&self, name: &str) -> Result<Vec<Module>, Failure> {
        let mut order = Vec::new();
        self.add(&name.replace('-', "_"), &mut order)?;
        Ok(order)
    }

    fn add(&self, name: &str, order: &mut Vec<Module>) -> Result<(), Failure> {
        if self.built_in.contains(name) || order.iter().any(|module| module.name == name) {
            return Ok(());
        }
        let Some(path) = self.files.get(name) else {
            return Err(Failure::contents(&self.folder)(format!("has no module {name}")));
        };
        let bytes = unpacked(path)?;
        let (needed, wished) = needs(&bytes).map_err(Failure::contents(path))?;
        // Soft dependencies may be absent.
        let wished = wished.into_iter().filter(|name| self.files.contains_key(name));
        for other in needed.into_iter().chain(wished) {
            self.add(&other, order)?;
        }
        order.push(Module { name: name.to_owned(), bytes });
        Ok(())
    }
}

/// The name of the module in this file.
fn name_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let name = file.strip_suffix(".ko").or_else(|| file.strip_suffix(".ko.xz"))?;
    Some(name.replace('-', "_"))
}

/// The unpacked contents of a module's file.
fn unpacked(path: &Path) -> Result<Vec<u8>, Failure> {
    let packed = fs::read(path).map_err(Failure::file(path))?;
    if path.extension().is_none_or(|extension| extension != "xz") {
        return Ok(packed);
    }
    let mut bytes = Vec::new();
    XzReader::new(&packed[..], false).read_to_end(&mut bytes).map_err(Failure::file(path))?;
    Ok(bytes)
}

/// The modules that a module requires to be loaded before it, and its soft dependencies.
fn needs(module: &[u8]) -> Result<(Vec<String>, Vec<String>), object::Error> {
    let module = ElfFile64::<LittleEndian>::parse(module)?;
    match module.section_by_name(".modinfo") {
        Some(section) => Ok(needs_in(&String::from_utf8_lossy(section.data()?))),
        None => Ok((Vec::new(), Vec::new())),
    }
}

fn needs_in(information: &str) -> (Vec<String>, Vec<String>) {
    let plain = |name: &str| name.replace('-', "_");
    let (mut needed, mut wished) = (Vec::new(), Vec::new());
    for entry in information.split('\0') {
        if let Some(names) = entry.strip_prefix("depends=") {
            needed.extend(names.split(',').filter(|name| !name.is_empty()).map(plain));
        } else if let Some(names) = entry.strip_prefix("softdep=") {
            let before = names.split_whitespace().skip_while(|word| *word != "pre:").skip(1);
            wished.extend(before.take_while(|word| *word != "post:").map(plain));
        }
    }
    (needed, wished)
}

#[cfg(test)]
mod tests {
    use super::{name_of, needs_in};
    use std::path::Path;

    #[test]
    fn needs_are_read_from_what_a_module_says() {
        let text = "license=GPL\0depends=nvme-core,t10_pi\0softdep=pre: crc32c aes-x post: later\0name=nvme\0";
        let (needed, wished) = needs_in(text);
        assert_eq!(needed, ["nvme_core", "t10_pi"]);
        assert_eq!(wished, ["crc32c", "aes_x"]);
        assert_eq!(needs_in("depends=\0softdep=post: later\0"), (Vec::new(), Vec::new()));
    }

    #[test]
    fn names_have_underscores() {
        assert_eq!(name_of(Path::new("kernel/a/nvme-core.ko.xz")).as_deref(), Some("nvme_core"));
        assert_eq!(name_of(Path::new("e1000e.ko")).as_deref(), Some("e1000e"));
        assert_eq!(name_of(Path::new("modules.order")), None);
    }
}
