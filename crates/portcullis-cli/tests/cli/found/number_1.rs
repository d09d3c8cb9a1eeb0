//! `--html` took the trace itself for the name of the page, and overwrote it.

use super::super::bad_input::refused;
use super::super::html_target::{Folder, SMALL, out_of_space, paged};
use super::super::{DISK, bundled, printed, text};
use std::fs;

#[test]
fn found_1_an_input_is_no_target_by_any_name() {
    let folder = Folder::new("inputs");
    let bytes = fs::read(bundled(DISK)).expect("a trace");
    let (trace, log) = (folder.put("my.trace.xz", &bytes), folder.put("my.qemu.xz", "a log"));
    let mut other_names = vec![folder.path("../inputs/my.trace.xz")];
    #[cfg(unix)]
    {
        other_names.extend(["soft.html", "hard.html"].map(|name| folder.path(name)));
        std::os::unix::fs::symlink(&trace, &other_names[1]).expect("a link");
        fs::hard_link(&trace, &other_names[2]).expect("a link");
    }
    for command in ["compare", "attack"] {
        for target in [&trace].into_iter().chain(&other_names) {
            refused(&[command, &trace, "--html", target], &[target, "is one of the inputs"]);
            refused(&[command, &bundled(DISK), &trace, "--json", "--html", target], &["is one of the inputs"]);
        }
        refused(&[command, &trace, "--accesses", &log, "--html", &log], &[&log, "is one of the inputs"]);
    }
    // A page is no input either, and this is found before anything is read.
    let page = folder.path("page.html");
    paged(&page);
    refused(&["compare", &page, "--html", &page], &[&page, "is one of the inputs"]);
    assert_eq!((fs::read(trace).expect("still a trace"), folder.read("my.qemu.xz").as_str()), (bytes, "a log"));
}

#[test]
fn found_1_a_file_that_is_no_page_stays() {
    let folder = Folder::new("foreign");
    let foreign = [
        ("my.trace.xz", fs::read(bundled(DISK)).expect("a trace")),
        ("notes.txt", b"as it was".to_vec()),
        ("other.html", b"<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>".to_vec()),
    ];
    for (name, bytes) in foreign {
        let path = folder.put(name, &bytes);
        let parts = [&path, "is not a page that this program wrote", "--html takes the file to write it to"];
        // The user meant the file to be the trace: the name of the page is missing.
        refused(&["compare", "--designs", "magazine", "--html", &path], &parts);
        refused(&["attack", "--designs", "magazine", "--json", "--html", &path], &parts);
        // A bad input would be found only later.
        refused(&["compare", "no/such.trace", "--html", &path], &parts);
        assert_eq!(fs::read(&path).expect("a file"), bytes, "{name}");
    }
    #[cfg(unix)]
    refused(&["compare", "--html", "/dev/null"], &["/dev/null", "is not a page"]);
    assert_eq!(folder.names(), ["my.trace.xz", "notes.txt", "other.html"]);
}

#[test]
#[cfg(target_os = "linux")]
fn found_1_a_full_disk_leaves_the_old_page_and_the_result() {
    let folder = Folder::new("full");
    let page = folder.path("page.html");
    paged(&page);
    let old = folder.read("page.html");
    for face in [&[][..], &["--json"]] {
        let arguments = [&SMALL[..], face, &["--html", &page]].concat();
        let output = out_of_space("trap '' XFSZ;", &arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&page) && said.contains("the page cannot be written"), "{said}");
        assert!(folder.read("page.html") == old && folder.names() == ["page.html"]);
        assert!(text(&output.stdout) == printed(&arguments), "what a run with space prints");
        // With space, a new page is written. It names the command line.
        fs::write(&page, &old).expect("the page as it was");
    }
}
