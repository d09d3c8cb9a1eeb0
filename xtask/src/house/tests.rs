//! Each rule finds what breaks it, and nothing else.

use super::terms::GLOSSARY;
use super::{Rule, circles, designs, links, terms, text, violations, width};
use crate::fixture;
use crate::workspace::Workspace;

/// What a rule finds in these files. Beside them are a glossary and the targets of some links.
fn check(rule: Rule, files: &[(&str, &str)]) -> Vec<String> {
    let glossary = glossary();
    let others =
        [(GLOSSARY, &*glossary), ("docs/other.md", "# One heading\n"), ("docs/a.png", ""), ("a/src/lib.rs", "")];
    let others = others.iter().filter(|(path, _)| !files.iter().any(|(file, _)| file == path));
    let files = files.iter().chain(others).map(|(path, text)| fixture::file(path, text));
    rule(&files.collect::<Vec<_>>()).iter().map(ToString::to_string).collect()
}

/// Checks a rule on files, each with its path, its text and the end of the only violation. If that is empty, there
/// must be none.
fn check_each(rule: Rule, cases: &[(&str, &str, &str)]) {
    for (path, text, end) in cases {
        let found = check(rule, &[(path, text)]);
        assert_eq!(found.len(), usize::from(!end.is_empty()), "{path}, {text}: {found:?}");
        assert!(found.iter().all(|found| found.ends_with(end)), "{path}, {text}: {found:?}");
    }
}

/// A glossary with enough terms, of which a test needs a few.
fn glossary() -> String {
    let more: String = (0..10).map(|number| format!("| x{number} | X. | zz{number} |\n")).collect();
    format!("| term | meaning | not |\n|---|---|---|\n| stream | A ring. | chute, so to say, `Gutter` |\n{more}")
}

#[test]
fn this_repository_keeps_the_rules() {
    let workspace = Workspace::read().expect("a workspace");
    let violations = violations(&workspace).expect("readable files");
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} rules are broken:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn long_files_are_refused() {
    let lines = |count| "a line\n".repeat(count);
    for (path, at_most) in [("a/src/lib.rs", 600), ("a/tests/all.rs", 900), ("README.md", 120)] {
        let end = format!("{path}: {} lines; at most {at_most}", at_most + 1);
        check_each(text::violations, &[(path, &lines(at_most), ""), (path, &lines(at_most + 1), &end)]);
    }
    // Of prose, only that README has a limit.
    let long = lines(10_001);
    check_each(text::violations, &["ARCHITECTURE.md", "examples/README.md"].map(|path| (path, &*long, "")));
}

#[test]
fn unfinished_code_and_paths_of_one_machine_are_refused() {
    for word in ["todo!", "unimplemented!", "dbg!", "#["] {
        let word = if word == "#[" { format!("{word}ignore") } else { format!("{word}(") };
        let (text, end) = (format!("fn f() {{\n    {word}\n}}\n"), format!("src/a.rs:2: `{word}` is unfinished"));
        // Prose may speak of it.
        check_each(text::violations, &[("src/a.rs", &text, &end), ("README.md", &text, "")]);
    }
    for folder in ["work", "root", "home"] {
        let end = format!("a path under `/{folder}/` exists on one machine only");
        for (before, end) in
            [("see ", &*end), ("`", &end), ("file://", &end), ("", &end), ("crates", ""), ("..", ""), ("${root}", "")]
        {
            check_each(text::violations, &[("README.md", &format!("{before}/{folder}/x"), end)]);
        }
    }
}

#[test]
fn a_design_has_a_row_a_file_and_a_page_that_lists_files_that_are_there() {
    const STOCK: &str = "//! Stock.\n//!\n//! A map: `iova/tree.rs`,\n//! `table.rs`.\n//!\n//! An unmap: `table.rs`.\n\n\
        impl DesignInfo for Stock {\n    const INFO: Info = Info {\n        id: \"stock\",\n    };\n}\n";
    const ROW: &str = "| id | source |\n|---|---|\n| `stock` | Linux |\n";
    let check = |table: &str, name: &str, design: &str| {
        check(
            designs::violations,
            &[
                ("docs/designs.md", table),
                ("crates/portcullis/src/designs/mod.rs", "mod stock;"),
                (&format!("crates/portcullis/src/designs/{name}"), design),
                ("crates/portcullis/src/iova/tree.rs", ""),
                ("crates/portcullis/src/table.rs", ""),
            ],
        )
    };
    assert_eq!(check(ROW, "stock.rs", STOCK), [""; 0]);
    for table in ["", "`stock` is a design\n", "| `stock-like` | Linux |\n", "| other | `stock` |\n"] {
        let violation = "docs/designs.md: the table of designs has no row for `stock`";
        assert_eq!(check(table, "stock.rs", STOCK), [violation], "{table}");
    }
    for (design, what) in [
        ("struct Stock;\n".to_owned(), "crates/portcullis/src/designs/stock.rs: declares no design"),
        (STOCK.replace("iova/tree.rs", "iova/rtree.rs"), "lists `iova/rtree.rs`"),
        (STOCK.replace("An unmap", "Unmap"), "has no `//! An unmap:`"),
    ] {
        assert!(check(ROW, "stock.rs", &design)[0].contains(what), "{what}");
    }
    // Each missing file counts too, and so does that of the unmap.
    for (listed, found) in [(8, 9), (9, 11)] {
        let list = STOCK.replace("`iova/tree.rs`,\n//! `table.rs`", &"`a.rs` ".repeat(listed));
        assert_eq!(check(ROW, "magazine.rs", &list.replace("unmap: `table.rs`", "unmap: `a.rs`")).len(), found);
    }
}

#[test]
fn circles_are_found_wherever_they_are() {
    let check = |sources: &[(&str, &str)]| {
        let paths: Vec<String> = sources.iter().map(|(path, _)| format!("crates/a/src/{path}")).collect();
        let files = paths.iter().zip(sources).map(|(path, (_, text))| (path.as_str(), *text));
        check(circles::violations, &files.collect::<Vec<_>>())
    };
    let (iova, table) = (("iova/mod.rs", "use crate::table::Entry;"), ("table/mod.rs", "use crate::proof;"));
    let (one, two) = (("a.rs", "use crate::b::B;"), ("b.rs", "use crate::c::C;"));
    let (linux, door) = (("iova/linux/tree.rs", "use crate::iova::host::H;"), ("iova/mod.rs", "use linux::T;"));
    let commented = "/// See [`crate::a`].\nfn b() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}";
    for (sources, circles) in [
        (&[iova, table][..], 0),
        (&[iova, table, ("table/walk.rs", "fn walk(of: super::super::iova::Range) {}")], 2),
        (&[iova, table, ("table/walk.rs", "use crate::{proof, iova::{self, Range}};")], 2),
        (&[one, two, ("c.rs", "use crate::a::A;")], 3),
        (&[one, two, ("c.rs", "use crate::d::D;")], 0),
        // Folders in a folder.
        (&[linux, door, ("iova/host/mod.rs", "use super::Claim;")], 0),
        (&[linux, door, ("iova/host/mod.rs", "use super::linux::T;")], 2),
        // Files of a folder.
        (&[("a/x.rs", "use super::y::Y;"), ("a/y.rs", "use super::x::X;")], 2),
        (&[("a/x.rs", "use super::y::Y;"), ("a/y.rs", "use super::X;"), ("a/mod.rs", "use x::X;")], 0),
        // Comments and tests do not count.
        (&[("a.rs", "use crate::b::B;"), ("b.rs", commented)], 0),
    ] {
        let found = check(sources);
        assert_eq!(found.len(), circles, "{sources:?}: {found:?}");
    }
    let found = check(&[iova, ("table/walk.rs", "use crate::iova;")]);
    assert!(found[0].contains("src/iova` uses `crates/a/src/table`") && found[1].contains("table/walk.rs"));
}

#[test]
fn links_lead_somewhere() {
    let (gone, fine) = ("leads to a file that is not there", "");
    let doc = "//! [a](../../docs/other.md#one-heading), [`b`](super::none), [c](mod@none)\n// [d](none.md)\n";
    check_each(
        links::violations,
        &[
            ("docs/b.md", "[a](other.md), ![b](a.png) and [c](../a/)", fine),
            ("docs/b.md", "# Own\n[a](other.md#one-heading) [b](#own) [`c`](/docs/other.md \"title\")", fine),
            ("docs/b.md", "[a](https://example.org/none.md) <none.md> `[b](none.md)`", fine),
            ("docs/b.md", "```text\n[a](none.md)\n```", fine),
            ("docs/b.md", "[a]: other.md#one-heading\n[b]: https://example.org", fine),
            ("docs/b.md", "[a](../a/src/lib.rs#L1)", fine),
            ("docs/b.md", "[a](none.md)", "`none.md` leads to a file that is not there"),
            ("docs/b.md", "see [a (b)](b\n[`a`](none/a.md)", gone),
            ("docs/b.md", "![a](b.png)", gone),
            ("docs/b.md", "[a]: none.md", gone),
            ("docs/b.md", "[a](other.md#two)", "leads to an anchor that no heading of docs/other.md makes"),
            ("docs/b.md", "# Own\n[a](#owns)", "leads to an anchor that no heading of docs/b.md makes"),
            ("docs/b.md", "[a](../../b.md)", "leads out of the repository"),
            // Doc comments lead to files and items.
            ("a/src/b.rs", doc, fine),
            ("a/src/b.rs", "/// See [a](docs/none.md).\n", gone),
        ],
    );
}

#[test]
fn forbidden_terms_are_found_in_prose() {
    let (chute, fine) = (&format!(":1: `chute` is not said; `{GLOSSARY}` has: stream")[..], "");
    check_each(
        terms::violations,
        &[
            ("a.rs", "// The chute.\n", chute),
            ("a.rs", "/// A Chute\n", chute),
            ("a.rs", "const A: &str = \"no chute left\";\n", chute),
            ("a.c", "/* a chute */\n", chute),
            ("a.toml", "# chute\n", chute),
            ("a.md", "`chute`\n", chute),
            // Whole words count, and code does not.
            ("a.rs", "// parachute, chutes\n", fine),
            ("a.rs", "fn chute() {}\n", fine),
            ("a.rs", "let a = chute; // fine\n", fine),
            ("a.md", "a chute_of b\n", fine),
            // The case of a name matters.
            ("a.rs", "// a gutter\n", fine),
            ("a.rs", "// a [`Gutter`]\n", "has: stream"),
            // The words of a term may stand in two lines.
            ("a.rs", "// It is, so\n// to say, new.\n", "has: stream"),
            ("a.rs", "// so much to say\n", fine),
            // The glossary has to forbid enough terms, and uses none itself.
            (GLOSSARY, "| stream | A ring. | chute |\n", "forbids 1 terms; at least 10 are expected"),
            (GLOSSARY, &glossary().replace("A ring.", "A chute."), "has: stream"),
        ],
    );
    assert_eq!(terms::violations(&[]).len(), 1, "there is no glossary");
}

#[test]
fn long_lines_of_prose_are_found() {
    // Two words in so many columns.
    let words = |columns: usize| format!("é {}", "x".repeat(columns - 2));
    let (long, word) = (words(130), "x".repeat(130));
    for (path, text, columns) in [
        ("a.rs", format!("//! {}\n", words(116)), 0),
        ("a.rs", format!("//! {}\n", words(117)), 121),
        ("a.rs", format!("/// {}\n", words(116)), 0),
        ("a.rs", format!("/// {}\n", words(117)), 121),
        ("a.rs", format!(" // {}\n", words(116)), 0),
        ("a.rs", format!(" // {}\n", words(117)), 121),
        ("a.toml", format!("#   {}\n", words(117)), 121),
        ("a.c", format!("/*\n *  {}\n */\n", words(117)), 121),
        // With the code before it.
        ("a.rs", format!("let a = b; // {}\n", words(110)), 124),
        ("a.md", words(120), 0),
        ("a.md", words(121), 121),
        ("a.md", format!("- {}", words(119)), 121),
        // Tables, code and what programs write may be longer.
        ("a.md", format!("| {long} |"), 0),
        ("a.md", format!("```text\n{long}\n```"), 0),
        ("a.md", format!("<!-- a -->\n{long}\n<!-- /a -->"), 0),
        ("a.md", format!("  https://{word}"), 0),
        ("a.md", format!("- [a](https://{word})"), 0),
        ("a.rs", format!("/// ```text\n/// {long}\n/// ```\n"), 0),
        // This is no Markdown, and this another comment.
        ("a.rs", format!("// ```text\n// {long}\n// ```\n"), 133),
        ("a.rs", format!("/// ```\nfn f() {{}}\n/// {long}\n"), 134),
        ("a.rs", format!("/// | {long} |\n"), 0),
        // Code alone is for rustfmt.
        ("a.rs", format!("let a = \"{long}\";\n"), 0),
        ("a.rs", format!("/* 1 */ let a = \"{long}\";\n"), 0),
        ("a.json", long.clone(), 0),
    ] {
        let end = if columns == 0 { String::new() } else { format!("{columns} columns; at most 120") };
        check_each(width::violations, &[(path, &text, &end)]);
    }
}
