//! `--csv`: the rows of a document, one line each.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

/// The columns that say what a row is about. The other columns follow in alphabetical order.
const FIRST: [&str; 8] = ["table", "trace", "set", "design", "options", "protection", "batch", "rule"];
/// Objects whose keys differ between rows. Each is one column of `key=value` pairs.
const PAIRS: [&str; 2] = ["options", "set"];

/// Writes a header and `rows`, which are JSON objects. A value of an object inside a row has a column named by both
/// keys, as in `recorded.cpu_percent`. A list is one cell, and `null` is an empty cell. The keys of `template` have a
/// column even if no row has them.
pub(crate) fn write(out: &mut impl Write, template: &Value, rows: &[Value]) -> io::Result<()> {
    let rows: Vec<BTreeMap<String, String>> = rows.iter().map(flattened).collect();
    let mut keys: BTreeSet<String> = flattened(template).into_keys().collect();
    keys.extend(rows.iter().flat_map(BTreeMap::keys).cloned());
    // If an object is `null` in some rows, its own key has no column beside those of its parts.
    let objects: BTreeSet<String> =
        keys.iter().filter_map(|key| key.split_once('.')).map(|(key, _)| key.to_owned()).collect();
    let rank = |key: &&String| FIRST.iter().position(|first| first == key).unwrap_or(FIRST.len());
    let mut columns: Vec<&String> = keys.iter().filter(|key| !objects.contains(*key)).collect();
    columns.sort_by_key(rank);
    let mut lines = csv::Writer::from_writer(out);
    lines.write_record(&columns)?;
    for row in &rows {
        lines.write_record(columns.iter().map(|key| row.get(*key).map_or("", String::as_str)))?;
    }
    lines.flush()
}

fn flattened(row: &Value) -> BTreeMap<String, String> {
    let mut cells = BTreeMap::new();
    for (key, value) in row.as_object().into_iter().flatten() {
        match value {
            Value::Object(parts) if !PAIRS.contains(&key.as_str()) => {
                cells.extend(parts.iter().map(|(part, value)| (format!("{key}.{part}"), text(value))));
            }
            _ => {
                cells.insert(key.clone(), text(value));
            }
        }
    }
    cells
}

fn text(value: &Value) -> String {
    let joined = |words: Vec<String>| words.join(" ");
    match value {
        Value::Null => String::new(),
        Value::String(word) => word.clone(),
        Value::Array(values) => joined(values.iter().map(text).collect()),
        Value::Object(pairs) => joined(pairs.iter().map(|(key, value)| format!("{key}={}", text(value))).collect()),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn written(template: &Value, rows: &[Value]) -> String {
        let mut out = Vec::new();
        write(&mut out, template, rows).expect("a vector takes all");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn what_is_nested_has_columns_of_its_own() {
        let rows = [
            json!({"a": 1.5, "design": "eiovar", "options": {"k": 64, "queue": "global"}, "recorded": null, "list": [1, 2.5]}),
            json!({"a": null, "design": "b,c", "options": {}, "recorded": {"x": true}, "list": null}),
        ];
        let template = json!({"recorded": {"x": 0, "y": 0}, "error": null});
        let expected = "design,options,a,error,list,recorded.x,recorded.y\n\
                        eiovar,k=64 queue=global,1.5,,1 2.5,,\n\"b,c\",,,,,true,\n";
        assert_eq!(written(&template, &rows), expected);
    }

    #[test]
    fn columns_do_not_depend_on_the_rows() {
        let template = json!({"recorded": {"x": 0}});
        let header = |rows: &[Value]| written(&template, rows).lines().next().map(str::to_owned);
        assert_eq!(header(&[json!({"recorded": null})]), header(&[json!({"recorded": {"x": 1}})]));
        assert_eq!(header(&[]).as_deref(), Some("recorded.x"));
    }
}
