//! `--html FILE`: which files a page may replace, and what is left if it cannot be written.

use super::bad_input::refused;
use super::{printed, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

/// A very short run.
pub(super) const SMALL: [&str; 5] = ["compare", "--workload", "rings:ring=16,operations=64", "--designs", "none,stock"];

/// A separate folder for one test.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a new folder");
        Self(path)
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    pub(super) fn put(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        fs::write(self.0.join(name), contents).expect("a new file");
        self.path(name)
    }

    pub(super) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).expect("a file of text")
    }

    /// The sorted names of the files in it.
    pub(super) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("a folder");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("a file").file_name().into_string().expect("a name")).collect();
        names.sort();
        names
    }
}

/// Writes a page to `path`.
pub(super) fn paged(path: &str) {
    printed(&[&SMALL[..], &["--html", path]].concat());
}

#[test]
fn an_earlier_page_is_replaced() {
    let folder = Folder::new("again");
    let page = folder.put("page.html", "");
    paged(&page);
    let first = folder.read("page.html");
    assert!(first.contains("no protection") && first.ends_with("</html>"));
    let attack = ["attack", "--workload", "rings:ring=16,operations=64", "--designs", "none", "--html", &page];
    printed(&attack);
    assert!(folder.read("page.html").contains("malicious device") && folder.names() == ["page.html"]);
    paged(&page);
    assert!(folder.read("page.html") == first);
}

/// The file's permissions stay, and so does the link that leads to it.
#[test]
#[cfg(unix)]
fn only_the_contents_are_replaced() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = Folder::new("links");
    let (page, link) = (folder.put("page.html", ""), folder.path("link.html"));
    fs::set_permissions(&page, fs::Permissions::from_mode(0o600)).expect("ours");
    symlink("page.html", &link).expect("a link");
    paged(&link);
    assert!(folder.read("page.html").ends_with("</html>"));
    assert_eq!(fs::metadata(&page).expect("a file").permissions().mode() & 0o777, 0o600);
    assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
    let astray = folder.path("astray.html");
    symlink("nowhere/page.html", &astray).expect("a link");
    refused(&[&SMALL[..], &["--html", &astray]].concat(), &[&astray, "cannot be written"]);
}

#[test]
fn standard_output_is_no_target() {
    refused(&[&SMALL[..], &["--html", "-"]].concat(), &["--html -", "expected a file", "`./-`"]);
}

#[test]
fn a_target_that_cannot_be_written_is_refused() {
    let folder = Folder::new("unwritable");
    let file = folder.put("no-folder", "");
    for path in [folder.path("no/page.html"), folder.path(""), format!("{file}/page.html")] {
        for command in [&["compare", "no/such.trace"], &["attack", "--json"]] {
            refused(&[&command[..], &["--html", &path]].concat(), &[&path, "the page cannot be written"]);
        }
    }
    // If the run fails, no new file is left either.
    refused(&["compare", "no/such.trace", "--html", &folder.path("page.html")], &["no/such.trace"]);
    assert_eq!(folder.names(), ["no-folder"]);
}

/// Runs the program under a file size limit that a page exceeds. If `before` makes the shell ignore the signal, the
/// write fails with an error like that of a full disk. Otherwise the signal ends the process.
#[cfg(target_os = "linux")]
pub(super) fn out_of_space(before: &str, arguments: &[&str]) -> Output {
    let script = format!("{before} ulimit -c 0; ulimit -f 1; exec \"$0\" \"$@\"");
    let shell = std::process::Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_portcullis")])
        .args(arguments)
        .output();
    shell.expect("a shell")
}

/// Both failures are reported. The exit status is that of the check.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_hides_no_failed_check() {
    let folder = Folder::new("both");
    let page = folder.path("page.html");
    let proves_nothing = ["attack", "--workload", "rings:ring=16,operations=64", "--designs", "stock", "--html", &page];
    let output = out_of_space("trap '' XFSZ;", &proves_nothing);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("proves nothing") && said.contains("the page cannot be written"), "{said}");
    assert!(text(&output.stdout).contains("PROVES NOTHING") && folder.names().is_empty());
}

#[test]
#[cfg(target_os = "linux")]
fn a_crash_leaves_the_old_page() {
    let folder = Folder::new("crash");
    let page = folder.path("page.html");
    paged(&page);
    let old = folder.read("page.html");
    let output = out_of_space("", &[&SMALL[..], &["--html", &page]].concat());
    assert_eq!(output.status.code(), None, "ended by a signal: {}", text(&output.stderr));
    assert!(folder.read("page.html") == old);
}
