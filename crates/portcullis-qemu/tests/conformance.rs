//! The conformance suite on the model and on QEMU.

use portcullis_qemu::conformance::{Report, Verdict, checks};
use std::collections::BTreeSet;
use std::fs;

#[test]
fn model_and_qemu_see_the_same() {
    let report = Report::make();
    let failed: Vec<String> = report
        .lines
        .iter()
        .filter(|line| line.failed())
        .map(|line| format!("{}: model: {}; QEMU: {}", line.check.name, line.model, line.qemu))
        .collect();
    assert!(failed.is_empty(), "{} checks failed:\n{}", failed.len(), failed.join("\n"));
    assert!(report.lines.iter().all(|line| line.model == Verdict::Pass), "the model does as specified");
    let agreed = report.lines.iter().filter(|line| line.qemu == Verdict::Pass).count();
    assert!(agreed >= 80, "{agreed} checks agree; at least 80 should");
    // One line for each check, and the counts at the end.
    let text = report.to_string();
    assert_eq!(text.lines().count(), report.lines.len() + 1);
    let counts = format!("QEMU: {agreed} pass, {} differs, 0 fail", report.lines.len() - agreed);
    assert!(text.ends_with(&counts), "{:?}", text.lines().last());
    assert_eq!(children(), Vec::<String>::new(), "QEMU processes are left");
}

#[test]
fn names_are_words_and_dashes_and_unique() {
    let checks = checks();
    let names: BTreeSet<&str> = checks.iter().map(|check| check.name).collect();
    assert_eq!(names.len(), checks.len());
    let wrong = |name: &&&str| !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    assert_eq!(names.iter().filter(wrong).collect::<Vec<_>>(), Vec::<&&str>::new());
}

/// The running processes that this process has started.
fn children() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads of this process");
    // Another thread may end in the meantime, but this one cannot.
    fs::read_to_string("/proc/thread-self/children").expect("a kernel that lists the children of a thread");
    let of_thread = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let all: String = tasks.map_while(Result::ok).map(of_thread).collect();
    all.split_whitespace().map(str::to_owned).collect()
}
