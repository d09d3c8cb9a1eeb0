//! What must not compile, and for what reason: nothing goes back without a proof, and no proof is made but by the hardware's word
//! or for a reason that has a name. Each program has a twin that differs by one line and compiles.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program, with the line that is wrong and what it should say.
struct Case {
    name: &'static str,
    /// The program, with `@` for the line.
    program: &'static str,
    wrong: &'static str,
    right: &'static str,
    /// The compiler's reason: the number of the error, and words of its message.
    code: &'static str,
    says: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "an address goes back without a proof",
        program: "pub fn free<P: Platform, A: IovaAllocator<P>>(allocator: &A, host: &P, range: IovaRange, proof: &Proof) {
            let _ = proof;
            @
        }",
        wrong: "allocator.free(host, range);",
        right: "allocator.free(host, range, proof);",
        code: "E0061",
        says: "argument #3 of type `&Proof`",
    },
    Case {
        name: "a proof is made of nothing",
        program: "pub fn make(proof: Proof) -> Proof { @ }",
        wrong: "let _ = proof; Proof(())",
        right: "proof",
        code: "E0423",
        says: "private field",
    },
    Case {
        name: "a proof is copied",
        program: "pub fn twice(proof: Proof) -> (Proof, Option<Proof>) { @ }",
        wrong: "(proof, Some(proof))",
        right: "(proof, None)",
        code: "E0382",
        says: "use of moved value: `proof`",
    },
    Case {
        name: "a reason is claimed from outside",
        program: "pub fn claim(proof: Proof) -> Proof { @ }",
        wrong: "let _ = proof; Proof::never_visible()",
        right: "proof",
        code: "E0624",
        says: "associated function `never_visible` is private",
    },
    Case {
        name: "a commit says without a proof that the device has lost the buffers",
        program: "pub fn commit(proof: Proof) -> Committed { @ }",
        wrong: "let _ = proof; Committed::Lost(())",
        right: "Committed::Lost(proof)",
        code: "E0308",
        says: "expected `Proof`, found `()`",
    },
    Case {
        name: "an invalidation that is submitted and not waited for is taken for a proof",
        program: "pub fn told<I: Iommu>(iommu: &I, space: &AddressSpace<impl Platform, I>) -> Result<Proof, QueueError> {
            let _ = iommu;
            @
        }",
        wrong: "iommu.submit(&[])",
        right: "space.invalidate(&[])",
        code: "E0308",
        says: "mismatched types",
    },
    Case {
        name: "table pages go back without their domain",
        program: "pub fn release<P: Platform, I: Iommu>(space: &AddressSpace<P, I>, pages: FreedTables, proof: &Proof) {
            let _ = (space, proof);
            @
        }",
        wrong: "space.release(pages, proof);",
        right: "drop(pages);",
        code: "E0624",
        says: "method `release` is private",
    },
    Case {
        name: "a buffer is taken out of its mapping",
        program: "pub fn take<B: DmaBuffer>(mapping: Mapping<B>) -> Option<B> { @ }",
        wrong: "mapping.into_lent().give_back()",
        right: "drop(mapping); None",
        code: "E0624",
        says: "method `into_lent` is private",
    },
    Case {
        name: "a buffer is used while it is mapped",
        program: "pub fn keep<D: Design<P, I>, P: Platform, I: Iommu, B: DmaBuffer>(domain: &Domain<D, P, I>, buffer: B) -> usize {
            let mapped = domain.map(buffer, Access::DeviceReads);
            @
        }",
        wrong: "let _ = mapped; buffer.segments().len()",
        right: "mapped.map_or(0, |mapping| mapping.range().pages() as usize)",
        code: "E0382",
        says: "borrow of moved value: `buffer`",
    },
];

const USES: &str = "#![allow(unused_imports)]
    use portcullis::design::Design;
    use portcullis::domain::{DmaBuffer, Mapping};
    use portcullis::iova::IovaAllocator;
    use portcullis::proof::{Committed, Proof};
    use portcullis::table::FreedTables;
    use portcullis::{Access, AddressSpace, Domain, Iommu, IovaRange, Platform, QueueError};
";

/// The folder with what cargo has built for this test.
fn built() -> PathBuf {
    env::current_exe().expect("a test is a program").parent().expect("in a folder").to_owned()
}

/// What the compiler says of `source`, for a library called `name` that uses the one at `library`. Empty where it compiles.
fn compile(library: &Path, name: &str, source: &str) -> String {
    let folder = env::temp_dir().join(format!("portcullis-compile-fail-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a new folder");
    let (file, output) = (folder.join(format!("{name}.rs")), folder.join(format!("{name}.rmeta")));
    fs::write(&file, source).expect("a new file");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut library_as = OsString::from("portcullis=");
    library_as.push(library);
    let mut dependencies = OsString::from("dependency=");
    dependencies.push(built());
    let said = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "--extern"])
        .arg(library_as)
        .arg("-L")
        .arg(dependencies)
        .arg("-o")
        .args([output, file])
        .output()
        .expect("the compiler that built this");
    if said.status.success() { String::new() } else { String::from_utf8_lossy(&said.stderr).into_owned() }
}

/// The library as it was built for this test: the one that the programs that are right compile with.
fn library() -> PathBuf {
    let right = format!("{USES}{}", CASES[0].program.replace('@', CASES[0].right));
    let entries = fs::read_dir(built()).expect("the folder of this test").filter_map(Result::ok);
    let mut libraries: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_library(path)).collect();
    // The newest first: others may be there from builds before.
    libraries.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).and_then(|file| file.modified()).ok()));
    let found = libraries.iter().find(|library| compile(library, "library", &right).is_empty());
    found.unwrap_or_else(|| panic!("none of {libraries:?} is the library under test")).clone()
}

fn is_library(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("libportcullis-") && name.ends_with(".rlib")
}

#[test]
fn what_goes_back_without_a_proof_does_not_compile() {
    let library = library();
    for (number, Case { name, program, wrong, right, code, says }) in CASES.iter().enumerate() {
        let with = |line| format!("{USES}{}", program.replace('@', line));
        let said = compile(&library, &format!("right_{number}"), &with(right));
        assert!(said.is_empty(), "{name}: the twin that is right does not compile:\n{said}");
        let said = compile(&library, &format!("wrong_{number}"), &with(wrong));
        assert!(said.contains(&format!("error[{code}]")), "{name}: expected {code}:\n{said}");
        assert!(said.contains(says), "{name}: expected `{says}`:\n{said}");
    }
}
