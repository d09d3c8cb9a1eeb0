//! The examples in the README of the repository compile and run. The package cannot include that file, which is outside
//! of it. So each example is also in the README of the package, whose examples are documentation tests.

/// The Rust code of a document, block by block.
fn examples(document: &str) -> Vec<&str> {
    let blocks = document.split("```rust").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or(block)).collect()
}

#[test]
fn the_examples_of_the_readme_are_those_of_the_package() {
    let of_repository = examples(include_str!("../../../../README.md"));
    let of_package = examples(include_str!("../../README.md"));
    assert!(!of_repository.is_empty(), "the README has an example");
    for example in of_repository {
        assert!(of_package.contains(&example), "no documentation test of the package runs this:\n{example}");
    }
}
