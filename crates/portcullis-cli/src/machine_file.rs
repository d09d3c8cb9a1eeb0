//! A machine by its id, or from a file that `portcullis machine` has written.

use crate::{Failure, nearest};
use portcullis_sim::Machine;
use serde_json::error::Category;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// Finds the machine that `name` stands for. Also returns whether it comes from a file.
///
/// A known id always stands for its machine. Otherwise, a name that exists as a path or ends in `.json` is a file.
pub(crate) fn find(name: &str) -> Result<(Machine, bool), Failure> {
    if let Some(machine) = Machine::by_id(name) {
        return Ok((machine, false));
    }
    let path = Path::new(name);
    if path.exists() || path.extension().is_some_and(|extension| extension == "json") {
        return Ok((read(path)?, true));
    }
    let known: Vec<String> = Machine::all().into_iter().map(|machine| machine.id).collect();
    let tip = nearest::tip(name, known.iter().map(String::as_str));
    Err(Failure::Input(format!(
        "no machine `{name}`; there are: {}, and files that `portcullis machine` wrote{tip}",
        known.join(", ")
    )))
}

fn read(path: &Path) -> Result<Machine, Failure> {
    let refused = |reason: String| Failure::Input(format!("{}: {reason}", path.display()));
    let file = File::open(path).map_err(|error| refused(error.to_string()))?;
    let mut json = serde_json::Deserializer::from_reader(BufReader::new(file));
    let machine: Machine = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (key, reason) = (error.path().to_string(), error.inner());
        match reason.classify() {
            Category::Data if [".", "?"].contains(&key.as_str()) => refused(reason.to_string()),
            Category::Data => refused(format!("`{key}`: {reason}")),
            Category::Io => refused(reason.to_string()),
            Category::Syntax | Category::Eof => {
                refused(format!("expected a machine in JSON, as `portcullis machine` prints it: {reason}"))
            }
        }
    })?;
    json.end().map_err(|error| refused(error.to_string()))?;
    machine.check().map_err(|error| refused(error.to_string()))?;
    Ok(machine)
}
