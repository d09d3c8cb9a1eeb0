//! The examples in the README of the repository compile and run. The package cannot include that file, which is outside
//! of it. So each example is also in the README of the package, whose examples are documentation tests. The poll loop
//! of the porting guide is in the documentation of the type that it is about.

/// The Rust code of a document, block by block.
fn examples(document: &str) -> Vec<&str> {
    let blocks = document.split("```rust").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or(block)).collect()
}

#[test]
fn the_examples_of_the_readme_are_those_of_the_package() {
    let of_repository = examples(include_str!("../../../../README.md"));
    let of_package = examples(include_str!("../../../portcullis/README.md"));
    assert!(!of_repository.is_empty(), "the README has an example");
    for example in of_repository {
        assert!(of_package.contains(&example), "no documentation test of the package runs this:\n{example}");
    }
}

#[test]
fn the_poll_loop_of_the_guide_is_a_documentation_test() {
    let guide = include_str!("../../../../docs/porting.md");
    let is_poll_loop = |example: &&str| example.contains("fn poll(");
    let example = examples(guide).into_iter().find(is_poll_loop).expect("a poll loop").trim_start_matches(",ignore\n");
    let source = include_str!("../../../portcullis/src/domain/submitted.rs");
    // Lines that begin with a hash sign are not shown.
    let shown = source.lines().filter_map(|line| line.strip_prefix("///")).filter(|line| !line.starts_with(" #"));
    let documented: String = shown.flat_map(|line| [line.strip_prefix(' ').unwrap_or(line), "\n"]).collect();
    assert!(documented.contains(example), "the documentation has another poll loop than the guide:\n{example}");
}
