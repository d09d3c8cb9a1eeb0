//! What files of the repository say: the safety rules, and the instructions and transfers that were counted.

use super::table;
use crate::bench::instructions::{LIMITS, Limit};
use crate::house::files::File;
use crate::scale;

/// Where the safety rules are declared, in the comments of `Rule`.
const RULES: &str = "crates/portcullis/src/safety.rs";

fn source<'f>(files: &'f [File], path: &str) -> Result<&'f str, String> {
    let file = files.iter().find(|file| file.path == path);
    file.map(|file| file.text.as_str()).ok_or_else(|| format!("comes from {path}, which is not there"))
}

/// The safety rules, one in a row.
pub(super) fn rules(files: &[File]) -> Result<String, String> {
    let text = source(files, RULES)?;
    let (_, declared) = text.split_once("\npub enum Rule {\n").ok_or_else(|| format!("finds no `Rule` in {RULES}"))?;
    let (mut rows, mut comment) = (Vec::new(), String::new());
    for line in declared.lines().map(str::trim).take_while(|line| *line != "}") {
        if let Some(text) = line.strip_prefix("///") {
            comment.push_str(text);
        } else if let Some(name) = line.strip_suffix(',') {
            let (number, says) =
                comment.trim().split_once(": ").ok_or_else(|| format!("finds no number of `{name}`"))?;
            rows.push([format!("{number} {}", words(name)), says.trim_end_matches('.').to_owned()]);
            comment.clear();
        }
    }
    if rows.is_empty() { Err(format!("finds no rule in {RULES}")) } else { Ok(table("rule | says", rows)) }
}

/// A name in the lower case of words: `SubPage` is `sub-page`.
fn words(name: &str) -> String {
    let word = |(at, next): (usize, char)| {
        let hyphen = if at > 0 && next.is_uppercase() { "-" } else { "" };
        format!("{hyphen}{}", next.to_lowercase())
    };
    name.char_indices().map(word).collect()
}

/// What was counted and is allowed of each workload, by design and protection, and how many times that the other
/// profiles take.
pub(super) fn instructions(files: &[File]) -> Result<String, String> {
    let limits: Vec<Limit> =
        serde_json::from_str(source(files, LIMITS)?).map_err(|error| format!("cannot read {LIMITS}: {error}"))?;
    let (mut workloads, mut columns) = (Vec::new(), Vec::new());
    for limit in &limits {
        let column = (&limit.design, &limit.protection);
        workloads.extend(Some(&limit.workload).filter(|one| !workloads.contains(one)));
        columns.extend(Some(column).filter(|one| !columns.contains(one)));
    }
    let cell = |workload: &String, (design, protection): (&String, &String)| {
        let is_it =
            |limit: &&Limit| (&limit.workload, &limit.design, &limit.protection) == (workload, design, protection);
        let found = limits.iter().find(is_it);
        found.map_or_else(String::new, |Limit { counted, release, plain, limit, .. }| {
            format!("{counted} ({limit}) {:.2} {:.2}", release / counted, plain / counted)
        })
    };
    let head: String = columns.iter().map(|(design, protection)| format!(" `{design}` {protection} |")).collect();
    let mut lines = vec![format!("| workload |{head}"), format!("|---|{}", "---:|".repeat(columns.len()))];
    lines.extend(workloads.into_iter().map(|workload| {
        let cells: String = columns.iter().map(|column| format!(" {} |", cell(workload, *column))).collect();
        format!("| `{workload}` |{cells}")
    }));
    Ok(lines.join("\n"))
}

/// What a pair takes on virtual CPUs, by hardware.
pub(super) fn scale(files: &[File]) -> Result<String, String> {
    let path = scale::LIMITS;
    let rows: Vec<scale::Row> =
        serde_json::from_str(source(files, path)?).map_err(|error| format!("cannot read {path}: {error}"))?;
    let mut cpus: Vec<u32> = rows.iter().map(|row| row.cpus).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let head: String = cpus.iter().map(|cpus| format!(" {cpus} |")).collect();
    let mut lines =
        vec![format!("| hardware, and what is counted |{head}"), format!("|---|{}", "---:|".repeat(cpus.len()))];
    for of in rows.chunk_by(|one, next| one.who() == next.who()) {
        let mut line = |what: &str, cell: &dyn Fn(&scale::Row) -> String| {
            let found = |cpus| of.iter().find(|row| row.cpus == cpus).map_or_else(String::new, cell);
            let cells: String = cpus.iter().map(|cpus| format!(" {} |", found(*cpus))).collect();
            lines.push(format!("| {what} |{cells}"));
        };
        line(&format!("`{}`: transfers", of[0].who()), &|row| format!("{:.2}", row.transfers));
        line("locked instructions", &|row| format!("{:.2}", row.locked));
        line("cycles", &|row| format!("{:.0}", row.cycles));
        line("least and greatest", &|row| match row.cycles_range.map(|cycles| format!("{cycles:.0}")) {
            [least, most] if least == most => String::new(),
            [least, most] => format!("{least}, {most}"),
        });
        line("cycles on two sockets", &|row| format!("{:.0}", row.cycles_two_sockets));
    }
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::{LIMITS, RULES, instructions, rules, scale};
    use crate::fixture::file;

    #[test]
    fn rules_come_from_their_comments() {
        let text = "use a;\n\npub enum Rule {\n    /// S1: a device\n    /// reaches it.\n    Reach,\n    /// S8: bytes.\n    SubPage,\n}\n";
        let expected = "| rule | says |\n|---|---|\n| S1 reach | a device reaches it |\n| S8 sub-page | bytes |";
        assert_eq!(rules(&[file(RULES, text)]).as_deref(), Ok(expected));
        for text in ["", "\npub enum Rule {\n}\n", "\npub enum Rule {\n    Reach,\n}\n"] {
            assert!(rules(&[file(RULES, text)]).is_err(), "{text}");
        }
        assert!(rules(&[]).is_err());
    }

    #[test]
    fn transfers_stand_by_hardware() {
        let row = |hardware: &str, cpus: u32, transfers: f64| {
            let counts = r#""locked": 1.0, "cycles": 130.4, "cycles_range": [129.4, 132.0], "cycles_two_sockets": 257, "locked_max": 0"#;
            format!(
                r#"{{"hardware": "{hardware}", "cpus": {cpus}, "transfers": {transfers}, "transfers_max": 0, {counts}}}"#
            )
        };
        let merging = row("b", 16, 2.0).replace("}", r#", "merge": 4}"#);
        let rows = [row("a", 1, 0.0), row("a", 16, 1.5), row("b", 16, 3.0), merging];
        let text = format!("[{}]", rows.join(", "));
        let found = scale(&[file(crate::scale::LIMITS, &text)]).expect("a table");
        let lines: Vec<&str> = found.lines().collect();
        assert_eq!(lines[0], "| hardware, and what is counted | 1 | 16 |");
        assert_eq!((lines[2], lines[7]), ("| `a`: transfers | 0.00 | 1.50 |", "| `b`: transfers |  | 3.00 |"));
        assert_eq!(lines[12], "| `b, merge=4`: transfers |  | 2.00 |");
        assert_eq!((lines[6], lines[9]), ("| cycles on two sockets | 257 | 257 |", "| cycles |  | 130 |"));
        assert_eq!(lines[5], "| least and greatest | 129, 132 | 129, 132 |");
        assert!(scale(&[file(crate::scale::LIMITS, "[")]).is_err());
    }

    #[test]
    fn instructions_stand_by_workload() {
        let limit = |design: &str, workload: &str, counted: f64| {
            let names = format!(r#""design": "{design}", "protection": "strict", "workload": "{workload}""#);
            format!(r#"{{{names}, "counted": {counted}, "release": 6.0, "plain": 3.0, "limit": 200.0}}"#)
        };
        let text = format!("[{}, {}, {}]", limit("a", "x", 1.5), limit("a", "y", 2.0), limit("b", "y", 3.0));
        let expected = "| workload | `a` strict | `b` strict |\n|---|---:|---:|\n| `x` | 1.5 (200) 4.00 2.00 |  |\n| `y` | 2 (200) 3.00 1.50 | 3 (200) 2.00 1.00 |";
        assert_eq!(instructions(&[file(LIMITS, &text)]).as_deref(), Ok(expected));
        assert!(instructions(&[file(LIMITS, "[")]).is_err());
    }
}
