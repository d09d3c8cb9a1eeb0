//! The output of `cargo xtask linux bench`.

use super::bench_lines::{Taken, WORKS};
use crate::columns::aligned;
use serde_json::json;
use std::collections::BTreeMap;

const COLUMNS: usize = 1 + WORKS.len();

/// The instructions of one configuration.
pub(super) struct Row {
    pub(super) configuration: &'static str,
    /// In the order of `WORKS`.
    pub(super) taken: Vec<Taken>,
}

/// A run.
pub(super) struct Report {
    /// What `uname -r` prints.
    pub(super) kernel: String,
    /// The version line that QEMU prints.
    pub(super) qemu: String,
    /// For each configuration that translates: whether the table walker is coherent.
    pub(super) coherent: BTreeMap<&'static str, bool>,
    /// The results. The first row is the configuration without an IOMMU.
    pub(super) rows: Vec<Row>,
}

impl Report {
    pub(super) fn json(&self) -> String {
        let Self { kernel, qemu, coherent, rows } = self;
        let result = |configuration, Taken { work, instructions, .. }: &Taken| json!({"configuration": configuration, "work": work, "instructions": instructions});
        let results = rows.iter().flat_map(|row| row.taken.iter().map(|taken| result(row.configuration, taken)));
        let results: Vec<_> = results.collect();
        format!("{:#}", json!({"kernel": kernel, "qemu": qemu, "coherent": coherent, "results": results}))
    }

    pub(super) fn table(&self) -> String {
        let head = |column: usize| if column == 0 { "instructions".to_owned() } else { WORKS[column - 1].to_owned() };
        let mut lines: Vec<[String; COLUMNS]> = vec![std::array::from_fn(head)];
        lines.extend(self.rows.iter().map(|row| self.line(row)));
        format!(
            "{}\n{} on {}.\nInstructions on one CPU, with hardware that answers at once: no waiting, and no contention.\n{}\n\
             A pair is a map (the first number) and its unmap by the whole DMA API; 2 KiB buffers are mapped 32 at a time. The\n\
             same CPU sends and receives a datagram. A read ends when its interrupt is served. In brackets: the difference\n\
             from the row without an IOMMU.",
            aligned(&lines),
            self.kernel,
            self.qemu,
            self.walkers()
        )
    }

    fn line(&self, row: &Row) -> [String; COLUMNS] {
        std::array::from_fn(|column| {
            let Some(index) = column.checked_sub(1) else { return row.configuration.to_owned() };
            let Taken { instructions, halves, .. } = row.taken[index];
            let whole = grouped(instructions);
            match halves {
                Some([map, unmap]) => format!("{whole} ({} + {})", grouped(map), grouped(unmap)),
                None => format!("{whole} {}", over(instructions, self.rows[0].taken[index].instructions)),
            }
        })
    }

    /// Whether the walkers are coherent. If they are not, table entries have to be written back from the cache, which
    /// takes instructions.
    fn walkers(&self) -> String {
        let said = |coherent: bool| if coherent { "coherent" } else { "non-coherent" };
        let mut kinds = self.coherent.values();
        if let Some(first) = kinds.next().filter(|first| kinds.all(|other| other == *first)) {
            return format!("The table walkers, under Linux and under the module, are {}.", said(*first));
        }
        let each = self.coherent.iter().map(|(name, coherent)| format!("{} in {name}", said(*coherent)));
        format!("The table walkers are {}.", each.collect::<Vec<_>>().join(", "))
    }
}

/// The difference of `taken` from `none`, with its sign.
fn over(taken: u64, none: u64) -> String {
    let sign = if taken < none { "-" } else { "+" };
    format!("({sign}{})", grouped(taken.abs_diff(none)))
}

/// A number with a comma before every three digits.
fn grouped(number: u64) -> String {
    match number / 1000 {
        0 => number.to_string(),
        thousands => format!("{},{:03}", grouped(thousands), number % 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::{Report, Row, Taken, WORKS, grouped, json, over};
    use std::collections::BTreeMap;

    fn report() -> Report {
        let row = |configuration, scale: u64| Row {
            configuration,
            taken: WORKS
                .map(|work| Taken {
                    work,
                    instructions: 600 * scale,
                    halves: work.starts_with("pair").then_some([250 * scale, 350 * scale]),
                })
                .into(),
        };
        Report {
            kernel: "6.12.1".to_owned(),
            qemu: "QEMU emulator version 7.2.0".to_owned(),
            coherent: BTreeMap::from([("linux-strict", false), ("magazine-strict", false)]),
            rows: vec![row("none", 1), row("linux-strict", 3)],
        }
    }

    #[test]
    fn the_table_has_wholes_and_differences() {
        let mut report = report();
        let table = report.table();
        let line = table.lines().nth(2).expect("the second configuration").split_whitespace().collect::<Vec<_>>();
        let halves = "1,800 (750 + 1,050) 1,800 (750 + 1,050)";
        assert_eq!(line.join(" "), format!("linux-strict {halves} 1,800 (+1,200) 1,800 (+1,200) 1,800 (+1,200)"));
        assert!(table.contains("6.12.1 on QEMU emulator version 7.2.0.") && table.contains("are non-coherent."));
        report.coherent.insert("linux-lazy", true);
        let differing = "are coherent in linux-lazy, non-coherent in linux-strict, non-coherent in magazine-strict.";
        assert!(report.table().contains(differing));
    }

    #[test]
    fn the_document_has_every_result() {
        let document: serde_json::Value = serde_json::from_str(&report().json()).expect("our document");
        let results = document["results"].as_array().expect("a list");
        assert_eq!((results.len(), &document["kernel"]), (10, &json!("6.12.1")));
        assert_eq!(results[5], json!({"configuration": "linux-strict", "work": "pair-2k", "instructions": 1800}));
    }

    #[test]
    fn numbers_are_grouped_and_have_signs() {
        assert_eq!([0, 999, 1000, 1_234_567, 1_000_007].map(grouped), ["0", "999", "1,000", "1,234,567", "1,000,007"]);
        assert_eq!([over(10, 12), over(1012, 12)], ["(-2)", "(+1,000)"]);
    }
}
