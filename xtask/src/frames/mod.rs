//! `cargo xtask frames`: finds how much stack the operations of each design take, and whether any of them panics on
//! a failed allocation. It reads the linked object of a `no_std` build.

mod graph;
mod image;
#[cfg(test)]
mod tests;
mod walk;

use crate::failure::Failure;
use crate::stages::succeed;
use crate::workspace::{NO_STD_PROOF, Workspace};
use clap::Args;
use graph::Graph;
use image::{Image, Place};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The largest number of bytes that the deepest path of map, unmap, commit and tick of [`FAST_DESIGN`] may take.
pub(crate) const FAST_BYTES_MAX: u64 = 1280;
/// The largest number of bytes for all other operations.
pub(crate) const BYTES_MAX: u64 = 2048;
/// The design with the smaller limit.
pub(crate) const FAST_DESIGN: &str = "portcullis";
/// The size of the large frame that is planted in a design, and must be found.
const PLANTED_BYTES: u64 = 4096;
/// The target of the build: the driver is for these machines only.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Kernels are built without a red zone and without jump tables. With these flags the analysis need not follow
/// indirect jumps within functions or data below the stack pointer.
const FLAGS: &str = "-C no-redzone=y -C relocation-model=static -C jump-tables=no -C symbol-mangling-version=v0";

/// An operation.
#[derive(Clone)]
struct Root {
    design: String,
    operation: String,
    is_fast: bool,
    function: usize,
    /// The vtable through which it calls its mapper.
    mapper: Option<Place>,
}

impl Root {
    fn bytes_max(&self) -> u64 {
        if self.is_fast && self.design == FAST_DESIGN { FAST_BYTES_MAX } else { BYTES_MAX }
    }
}

#[derive(Default, Args)]
pub(crate) struct Options {
    /// Print the functions on each path, with the stack that each of them takes.
    #[arg(long)]
    path: bool,
    /// Check only the operations of this design.
    #[arg(long)]
    design: Option<String>,
}

pub(crate) fn frames(workspace: &Workspace, options: &Options) -> Result<(), Failure> {
    let (path, object) = build(workspace)?;
    check(&object, options).map_err(Failure::contents(path))
}

/// Builds the static library, and links all of it as one object. Returns the path and the contents of that.
fn build(workspace: &Workspace) -> Result<(PathBuf, Vec<u8>), Failure> {
    workspace.share_lock(Path::new(NO_STD_PROOF))?;
    let target = workspace.target_beside("frames");
    let mut cargo = workspace.cargo(&["build", "--release", "--manifest-path", NO_STD_PROOF]);
    cargo.args(["--target", TARGET, "--target-dir", &target]).env("RUSTFLAGS", FLAGS);
    succeed("frames", &mut cargo)?;
    let folder = workspace.root.join(&target).join(TARGET).join("release");
    let path = folder.join("linked.o");
    let mut link = Command::new("ld");
    link.args(["--relocatable", "--whole-archive"]).arg(folder.join("libno_std_proof.a"));
    succeed("frames", link.arg("-o").arg(&path))?;
    let object = fs::read(&path).map_err(Failure::file(&path))?;
    Ok((path, object))
}

/// Prints what every operation takes, and fails if some take too much.
fn check(object: &[u8], options: &Options) -> Result<(), String> {
    let image = Image::read(object).map_err(|error| error.to_string())?;
    let graph = Graph::new(&image);
    let mut wrong = Vec::new();
    let roots = [roots(&image, "FRAME_ROOTS")?, roots(&image, "FRAME_UNIT")?].concat();
    let is_wanted = |root: &&Root| options.design.as_ref().is_none_or(|design| *design == root.design);
    for root in roots.iter().filter(is_wanted) {
        let Root { design, operation, .. } = root;
        let limit = root.bytes_max();
        let (found, is_wrong, path) = match graph.deepest(root.function, root.mapper) {
            Ok((bytes, path)) if bytes > limit => (format!("{bytes:>6} of {limit:>5}  too deep"), true, path),
            Ok((bytes, path)) => (format!("{bytes:>6} of {limit:>5}"), false, path),
            Err(error) => (error, true, Vec::new()),
        };
        println!("{design:<14} {operation:<22} {found}");
        if is_wrong {
            wrong.push(format!("{design}, {operation}: {}", found.trim()));
        }
        match graph.forbidden(root.function, root.mapper) {
            Ok(callers) => wrong.extend(callers.iter().map(|(caller, _)| {
                let caller = &image.functions[*caller].name;
                format!("{design}, {operation}: panics on a failed allocation, in {caller}")
            })),
            Err(error) => wrong.push(format!("{design}, {operation}: {error}")),
        }
        if options.path {
            path.iter().for_each(|step| println!("    {:>6}  {}", step.bytes, image.functions[step.function].name));
        }
    }
    wrong.extend(plants(&image, &graph).err());
    if wrong.is_empty() { Ok(()) } else { Err(format!("{} wrong:\n{}", wrong.len(), wrong.join("\n"))) }
}

/// Checks that the two flaws planted in a design, a large frame and a list that grows, are found there and not in
/// its twin.
fn plants(image: &Image, graph: &Graph<'_>) -> Result<(), String> {
    let mut found = BTreeMap::new();
    for root in roots(image, "FRAME_PLANTS")?.iter().filter(|root| root.operation == "map") {
        let (deepest, path) = graph.deepest(root.function, root.mapper)?;
        let has_frame = path.iter().any(|step| {
            step.bytes >= PLANTED_BYTES && image.functions[step.function].name.contains("::map_behind_words")
        });
        let grows = !graph.forbidden(root.function, root.mapper)?.is_empty();
        found.insert(root.design.clone(), (deepest, has_frame, grows));
    }
    match (found.get("planted"), found.get("twin")) {
        (Some((planted, true, true)), Some((twin, false, false)))
            if *planted > BYTES_MAX && *twin + PLANTED_BYTES <= *planted + 64 =>
        {
            Ok(())
        }
        _ => Err(format!("the flaws that were planted in a map are not found: {found:?}")),
    }
}

/// The operations in a table of the object. Its layout is that of `Root` in `crates/no-std-proof/src/frames`.
fn roots(image: &Image, table: &str) -> Result<Vec<Root>, String> {
    const WORDS: u64 = 8;
    let (table, size) = image.symbol(table)?;
    let mut roots = Vec::new();
    for number in 0..size / (WORDS * 8) {
        let at = |word: u64| Place { offset: table.offset + (number * WORDS + word) * 8, ..table };
        let operation = image.text(at(2))?;
        let function = image.pointer(at(4)).and_then(|place| image.function_at(place));
        let function = function.ok_or_else(|| format!("`{operation}` does not lead to a function"))?;
        let (design, is_fast, mapper) = (image.text(at(0))?, image.word(at(7))? != 0, image.pointer(at(6)));
        roots.push(Root { design, operation, is_fast, function, mapper });
    }
    Ok(roots)
}
