//! Stores the verdicts so far, one line of JSON for each, so that an interrupted sample can continue.

use crate::failure::Failure;
use crate::house::files;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The verdict on a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// A test has failed.
    Caught,
    /// The tests took far longer than without the mutant; it counts as caught.
    Timeout,
    /// The mutant cannot be built.
    Unviable,
    /// Every test has passed.
    Missed,
}

/// A mutant and its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) mutant: String,
    pub(super) verdict: Verdict,
    /// The stage that gave the verdict, and the test; empty if the mutant was missed.
    pub(super) by: String,
    /// Seconds over all stages.
    pub(super) build: f64,
    pub(super) run: f64,
}

/// The first line: what the verdicts apply to.
#[derive(Serialize, Deserialize)]
struct Head {
    fingerprint: String,
}

/// The verdicts of one seed.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    entries: Vec<Entry>,
}

impl Journal {
    /// Opens the journal at `path`, with the verdicts that it has for these sources. Verdicts for other sources are
    /// dropped, with a message.
    pub(super) fn open(path: &Path, fingerprint: &str) -> Result<Self, Failure> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.map_err(Failure::file(path))?,
        };
        let entries = entries(&text, fingerprint).unwrap_or_else(|| {
            if !text.is_empty() {
                println!("sources or tests have changed since {}: its verdicts are dropped", path.display());
            }
            Vec::new()
        });
        let folder = path.parent().unwrap_or(path);
        fs::create_dir_all(folder).map_err(Failure::file(folder))?;
        // The journal is rewritten, because its last line may be incomplete. It is first written beside the old
        // file, because this step may be interrupted too.
        let beside = path.with_extension("new");
        let mut whole = line(&Head { fingerprint: fingerprint.to_owned() });
        entries.iter().for_each(|entry| whole.push_str(&line(entry)));
        fs::write(&beside, whole).map_err(Failure::file(&beside))?;
        fs::rename(&beside, path).map_err(Failure::file(path))?;
        let file = OpenOptions::new().append(true).open(path).map_err(Failure::file(path))?;
        Ok(Self { path: path.to_owned(), file, entries })
    }

    /// The verdict on a mutant, if it was tested.
    pub(super) fn entry(&self, mutant: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.mutant == mutant)
    }

    /// Stores a verdict before the next mutant is tested.
    pub(super) fn append(&mut self, entry: Entry) -> Result<(), Failure> {
        self.file.write_all(line(&entry).as_bytes()).map_err(Failure::file(&self.path))?;
        self.entries.push(entry);
        Ok(())
    }
}

/// The verdicts of a journal for these sources, up to an incomplete line. `None` if the journal is for other
/// sources.
fn entries(text: &str, fingerprint: &str) -> Option<Vec<Entry>> {
    let (head, rest) = text.split_once('\n')?;
    let head: Head = serde_json::from_str(head).ok()?;
    let whole = rest.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    (head.fingerprint == fingerprint).then(|| whole.map_while(|line| serde_json::from_str(line).ok()).collect())
}

fn line(of: &impl Serialize) -> String {
    serde_json::to_string(of).expect("it has string keys only") + "\n"
}

/// A hash of what verdicts depend on: every file of the two crates in `tree`. A different compiler may compute a
/// different hash; then the mutants are tested again.
pub(super) fn fingerprint(tree: &Path) -> Result<String, Failure> {
    let mut hasher = DefaultHasher::new();
    let mut paths = files::paths(tree)?;
    paths.retain(|path| ["crates/portcullis/", "crates/portcullis-vtd/"].iter().any(|of| path.starts_with(of)));
    paths.sort();
    for path in paths {
        let at = tree.join(&path);
        fs::read(&at).map_err(Failure::file(&at))?.hash(&mut hasher);
        path.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::{Entry, Journal, Verdict, fingerprint};
    use std::fs;
    use std::io::Write;
    use std::path::PathBuf;

    fn entry(mutant: &str) -> Entry {
        Entry { mutant: mutant.to_owned(), verdict: Verdict::Missed, by: String::new(), build: 1.5, run: 20.0 }
    }

    /// A new folder for a test.
    fn folder(test: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("portcullis-journal-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a new folder");
        folder
    }

    #[test]
    fn verdicts_are_kept_until_the_sources_change() {
        let folder = folder("kept");
        let path = folder.join("sample-1.jsonl");
        let open = |fingerprint| Journal::open(&path, fingerprint).expect("a journal");
        open("aa").append(entry("a")).expect("it can be written");
        open("aa").append(entry("b")).expect("it can be written");
        let again = open("aa");
        let known = ["a", "b", "c"].map(|mutant| again.entry(mutant).cloned());
        let changed = open("bb").entry("a").cloned();
        let changed_back = open("aa").entry("a").cloned();
        fs::remove_dir_all(&folder).expect("ours");
        assert_eq!(known, [Some(entry("a")), Some(entry("b")), None]);
        assert_eq!((changed, changed_back), (None, None));
    }

    #[test]
    fn half_a_line_is_no_verdict_and_does_not_spoil_the_next() {
        let folder = folder("half");
        let path = folder.join("sample-1.jsonl");
        let open = || Journal::open(&path, "aa").expect("a journal");
        let mut journal = open();
        journal.append(entry("a")).expect("it can be written");
        journal.file.write_all(br#"{"mutant":"b","verd"#).expect("it can be written");
        drop(journal);
        open().append(entry("c")).expect("it can be written");
        let known = ["a", "b", "c"].map(|mutant| open().entry(mutant).is_some());
        fs::remove_dir_all(&folder).expect("ours");
        assert_eq!(known, [true, false, true]);
    }

    #[test]
    fn sources_and_tests_have_a_fingerprint() {
        let folder = folder("fingerprint");
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a new folder");
            fs::write(path, text).expect("a new file");
            fingerprint(&folder).expect("readable files")
        };
        let first = write("crates/portcullis/src/lib.rs", "1");
        let others = [write("README.md", "1"), write("crates/portcullis-cli/src/main.rs", "1")];
        let changed = [
            write("crates/portcullis/src/lib.rs", "2"),
            write("crates/portcullis-vtd/tests/contract.rs", "1"),
            write("crates/portcullis-vtd/tests/contract.rs", "2"),
        ];
        fs::remove_dir_all(&folder).expect("ours");
        assert_eq!(others, [first.clone(), first.clone()], "nothing rests on those");
        assert!(!changed.contains(&first) && changed[0] != changed[1] && changed[1] != changed[2], "{changed:?}");
    }
}
