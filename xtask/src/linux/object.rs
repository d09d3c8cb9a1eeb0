//! Builds the Rust half of the module as one object that a kernel can link.

use super::fitness;
use super::packages::Store;
use super::toolchain;
use crate::failure::Failure;
use crate::process::output;
use crate::stages::succeed;
use crate::workspace::{KERNEL_MODULE, Workspace};
use object::read::archive::ArchiveFile;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of its crate in file names.
const CRATE: &str = "portcullis_linux";
/// A target without an operating system.
const TARGET: &str = "x86_64-unknown-none";
/// The compiler flags. They match those of Debian's kernels, so that objtool reports nothing.
const FLAGS: [&str; 19] = [
    // A module lies in the last 2 GiB of the address space, and its loader supports neither a table of addresses (GOT)
    // nor one of jumps.
    "-Crelocation-model=static",
    "-Ccode-model=kernel",
    "-Zplt=yes",
    // An interrupt writes below the stack pointer.
    "-Cno-redzone=y",
    // objtool makes the unwind tables. It follows the code, and has to see that control does not continue after a call
    // of a function that does not return. A newer objtool knows such functions by mangled names of this kind. For
    // older ones, a trap follows each such call; the compiler leaves that trap out where it generates traps by itself.
    "-Cforce-unwind-tables=n",
    "-Csymbol-mangling-version=v0",
    "-Ztrap-unreachable=no",
    "-Cllvm-args=--trap-unreachable",
    "-Zfunction-sections=no",
    // Only instructions that all machines have, and no more registers than needed.
    "-Ztune-cpu=generic",
    "-Cforce-frame-pointers=n",
    // A register that a function has to save is pushed by each of its calls. A value that only a rare path needs goes
    // to the stack on that path instead, unless a quarter of the calls take it (4000 of 2^14).
    "-Cllvm-args=-regalloc-csr-first-time-cost=4000",
    // In the end all crates, including core, are compiled as one.
    "-Cembed-bitcode=y",
    // Indirect branches lead only to marked targets (IBT).
    "-Zcf-protection=branch",
    "-Cjump-tables=n",
    // Against speculation attacks, returns and indirect branches go through functions of the kernel, which the kernel
    // patches as its processor needs.
    "-Zfunction-return=thunk-extern",
    "-Zretpoline-external-thunk",
    "-Zindirect-branch-cs-prefix",
    // Room before each function, in which the kernel counts the depth of calls.
    "-Zpatchable-function-entry=16,16",
];

/// The longest name of a symbol. A kernel has room for 511 bytes of a name, and objtool puts a prefix before it.
const NAME_BYTES: usize = 480;

/// The Rust half, built.
pub(super) struct Core {
    pub(super) path: PathBuf,
    /// The suffix for its features: empty, or a dash and the names of the features.
    pub(super) flavour: String,
}

/// Builds the Rust half, extracts it from its library, and checks whether a kernel can link it. All flavours have one
/// build folder, because only the last crate has features.
pub(super) fn build(workspace: &Workspace, store: &Store, features: &[&str]) -> Result<Core, Failure> {
    let flavour: String = features.iter().map(|feature| format!("-{feature}")).collect();
    let target = store.folder.join("rust");
    workspace.share_lock(Path::new(KERNEL_MODULE))?;
    let mut cargo = workspace.cargo(&["build", "--release", "-Zbuild-std=core,alloc", "--target", TARGET]);
    cargo.args(features.iter().map(|feature| format!("--features={feature}"))).arg("--target-dir").arg(&target);
    // All clones share `core` and `alloc`, which take longest. A cargo that does not know this variable builds them
    // again.
    cargo.env("CARGO_BUILD_BUILD_DIR", store.cache.join("rust"));
    cargo.arg("--manifest-path").arg(workspace.root.join(KERNEL_MODULE));
    // A stable compiler accepts some of the flags, and builds core, only if this variable is set.
    cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS.join(" ")).env_remove("CARGO_ENCODED_RUSTFLAGS");
    toolchain::apply(workspace, store, &mut cargo)?;
    succeed("Rust half", &mut cargo)?;
    let library = target.join(TARGET).join("release").join(format!("lib{CRATE}.a"));
    let path = target.join(format!("core{flavour}.o"));
    let archive = fs::read(&library).map_err(Failure::file(&library))?;
    let member = member(&archive).map_err(Failure::contents(library))?;
    fs::write(&path, member).map_err(Failure::file(&path))?;
    let names = path.with_extension("names");
    let renamed = shorter(member).map_err(Failure::contents(&path))?;
    fs::write(&names, renamed).map_err(Failure::file(&names))?;
    // Debian's core contains debug info of its own.
    output(
        Command::new("objcopy").arg("--strip-debug").arg(format!("--redefine-syms={}", names.display())).arg(&path),
    )?;
    let object = fs::read(&path).map_err(Failure::file(&path))?;
    let flaws = fitness::flaws(&object).map_err(Failure::contents(&path))?;
    if !flaws.is_empty() {
        let flaws = Vec::from_iter(flaws).join("\n    ");
        return Err(Failure::contents(path)(format!("not fit for a kernel:\n    {flaws}")));
    }
    Ok(Core { path, flavour })
}

/// The symbols with a longer name than [`NAME_BYTES`], each in a line with a shorter one.
fn shorter(object: &[u8]) -> Result<String, object::Error> {
    let object = ElfFile64::<LittleEndian>::parse(object)?;
    let names: BTreeSet<_> = object.symbols().filter_map(|symbol| symbol.name().ok()).collect();
    Ok(names.into_iter().filter_map(|name| Some(format!("{name} {}\n", short(name)?))).collect())
}

/// A shorter name, if this one is too long. Names are mangled, and mangled names are ASCII.
fn short(name: &str) -> Option<String> {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let is_long = name.len() > NAME_BYTES && name.is_ascii();
    is_long.then(|| format!("{}_{:016x}", &name[..NAME_BYTES - 17], hasher.finish()))
}

/// The member of the library in which all crates are linked as one. The other members are functions that the kernel
/// has too.
fn member(archive: &[u8]) -> Result<&[u8], String> {
    let described = |error: object::Error| error.to_string();
    let mut ours = Vec::new();
    for member in ArchiveFile::parse(archive).map_err(described)?.members() {
        let member = member.map_err(described)?;
        if member.name().starts_with(format!("{CRATE}-").as_bytes()) && member.name().ends_with(b".o") {
            ours.push(member.data(archive).map_err(described)?);
        }
    }
    match ours[..] {
        [one] => Ok(one),
        _ => Err(format!(
            "has {} members of {CRATE}, where one is expected: is it linked with `lto = \"fat\"`?",
            ours.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{NAME_BYTES, short};

    #[test]
    fn long_names_are_cut_and_stay_apart() {
        let long = |end: &str| "a".repeat(NAME_BYTES) + end;
        assert_eq!(short(&long("")), None);
        let (one, two) = (short(&long("b")).expect("too long"), short(&long("c")).expect("too long"));
        assert_ne!(one, two);
        assert_eq!((one.len(), short(&one)), (NAME_BYTES, None));
    }
}
