//! What `compare` prints below the sections of several pieces of work: the totals of all of them.

use crate::plan::words_of;
use crate::table::{Column, Layout, NO_SUCH_HARDWARE, NO_SUCH_HARDWARE_NOTE, count, number, wrap};
use portcullis::Protection;
use portcullis_sim::compare::Settings;
use portcullis_sim::number::percent_range;
use portcullis_sim::totals::Total;
use std::io::{self, Write};

/// A table for each setting of the hardware and each batch, all with the same columns.
pub(crate) fn print(out: &mut impl Write, all: &[Total], names: &[&str]) -> io::Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    let columns = [
        Column::words("design"),
        Column::words("protection"),
        Column::numbers("cycles/\npage"),
        Column::numbers("window us\nmax"),
        Column::numbers("stale\npages").worth(1),
        Column::numbers("of none\nin all"),
        Column::numbers("of none\nat worst"),
        Column::words("worst on").worth(2),
    ];
    let tables = tables(all);
    let cells: Vec<Vec<Vec<String>>> =
        tables.iter().map(|(_, totals)| totals.iter().map(|total| cells(total, names)).collect()).collect();
    let layout = Layout::of(&columns, cells.iter().flatten());
    for (((set, batch), totals), cells) in tables.iter().zip(&cells) {
        let batches =
            if *batch == 1 { "each unmap by itself".to_owned() } else { format!("in batches of up to {batch}") };
        let changed: String = words_of(set).iter().map(|word| format!(", {word}")).collect();
        writeln!(out, "{}\n{}", wrap(&format!("All of these together, {batches}{changed}:")), layout.table(cells))?;
        if totals.iter().any(|total| total.no_such_hardware) {
            writeln!(out, "{NO_SUCH_HARDWARE_NOTE}")?;
        }
        writeln!(out)?;
    }
    match layout.left_out("`--json` has all columns") {
        Some(note) => writeln!(out, "{note}\n"),
        None => Ok(()),
    }
}

/// Groups totals by settings and batch. Designs without protection join the group of the smallest batch.
fn tables(all: &[Total]) -> Vec<((&Settings, usize), Vec<&Total>)> {
    let mut tables: Vec<((&Settings, usize), Vec<&Total>)> = Vec::new();
    for total in all {
        let batch = match total.protection {
            Protection::None => {
                let protected =
                    all.iter().filter(|other| other.set == total.set && other.protection != Protection::None);
                protected.map(|other| other.batch).min().unwrap_or(total.batch)
            }
            _ => total.batch,
        };
        let key = (&total.set, batch);
        match tables.iter_mut().find(|(other, _)| *other == key) {
            Some((_, totals)) => totals.push(total),
            None => tables.push((key, vec![total])),
        }
    }
    let set = |set: &Settings| all.iter().position(|total| total.set == *set);
    tables.sort_by_key(|((one, batch), _)| (set(one), *batch));
    tables
}

fn cells(total: &Total, names: &[&str]) -> Vec<String> {
    let mark = if total.no_such_hardware { NO_SUCH_HARDWARE } else { "" };
    let unprotected = total.protection == Protection::None;
    let worst = &total.worst;
    vec![
        total.label(),
        format!("{}{mark}", total.protection),
        if unprotected && total.cycles_per_page == 0.0 { "-".to_owned() } else { number(total.cycles_per_page) },
        total.stale_window_us_max.map_or("∞".to_owned(), number),
        count(total.stale_accesses),
        percent_range(total.estimate_vs_none_min, total.estimate_vs_none),
        percent_range(worst.estimate_vs_none_min, worst.estimate_vs_none),
        if unprotected { "-".to_owned() } else { short(&worst.trace, names).to_owned() },
    ]
}

/// The last part of a path, or the whole path if another of `names` ends in the same part.
fn short<'n>(name: &'n str, names: &[&str]) -> &'n str {
    let last = |path: &'_ str| path.rsplit('/').next().map_or(0, str::len);
    let end = &name[name.len() - last(name)..];
    let same = names.iter().filter(|other| other[other.len() - last(other)..] == *end).count();
    if same > 1 { name } else { end }
}
