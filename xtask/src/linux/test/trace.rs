//! Checks that `portcullis compare` can read the module's trace.

use crate::failure::Failure;
use crate::linux::guest::Transcript;
use crate::linux::packages::Store;
use crate::process::output;
use crate::workspace::Workspace;
use serde::Deserialize;
use serde_json::Value;
use std::fs;

/// The counts that the program prints for a trace.
#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Counted {
    maps: u64,
    unmaps: u64,
    unmatched_maps: u64,
    unmatched_unmaps: u64,
}

impl Counted {
    fn read(document: &str) -> Option<Self> {
        let document: Value = serde_json::from_str(document).ok()?;
        Self::deserialize(&document["input"][0]).ok()
    }
}

/// The lines between those that `trace.sh` prints before and after the trace. Empty if one of them is missing.
fn between(printed: &str) -> &str {
    let after = printed.split_once("TRACE-BEGIN\n").map_or("", |(_, after)| after);
    after.split_once("TRACE-END").map_or("", |(trace, _)| trace)
}

/// A guest has traced devices from before their drivers were loaded until after they were unbound. The program must see
/// every map, and an unmap for each.
pub(super) fn compared(workspace: &Workspace, store: &Store, transcript: &Transcript) -> Result<(), Failure> {
    let printed = transcript.lines.join("\n");
    let trace = between(&printed);
    let path = store.folder.join("logs/trace.txt");
    fs::write(&path, trace).map_err(Failure::file(&path))?;
    let arguments = ["run", "--quiet", "--release", "--package", "portcullis-cli", "--", "compare", "--json"];
    let printed = output(workspace.cargo(&arguments).arg(&path))?;
    let count = |event: &str| trace.matches(&format!(": {event}: ")).count() as u64;
    let (maps, unmaps) = (count("portcullis_map"), count("portcullis_unmap"));
    let expected = Counted { maps, unmaps, unmatched_maps: 0, unmatched_unmaps: 0 };
    let counted = Counted::read(&printed);
    if maps > 0 && counted.as_ref() == Some(&expected) {
        return Ok(());
    }
    let reason = format!("`portcullis compare` counts {counted:?} where there is {expected:?}");
    Err(Failure::contents(path)(reason))
}

#[cfg(test)]
mod tests {
    use super::{Counted, between};

    #[test]
    fn the_trace_is_between_its_marks() {
        assert_eq!(between("a\nTRACE-BEGIN\nb\nc\nTRACE-END\nd"), "b\nc\n");
        assert_eq!(["TRACE-END\nTRACE-BEGIN\nb", "TRACE-BEGIN\nb"].map(between), ["", ""]);
    }

    #[test]
    fn the_counts_are_those_of_the_first_trace() {
        let document =
            r#"{"input": [{"file": "x", "maps": 3, "unmaps": 2, "unmatched_maps": 1, "unmatched_unmaps": 0}]}"#;
        let expected = Counted { maps: 3, unmaps: 2, unmatched_maps: 1, unmatched_unmaps: 0 };
        assert_eq!(Counted::read(document), Some(expected));
        assert_eq!(Counted::read("{}"), None);
    }
}
