//! Numbers and tables for a terminal.

use comfy_table::{CellAlignment, Table, presets};
pub(crate) use portcullis_sim::number::{count, gbps, number, percent};

/// What marks designs for hardware that does not exist, and what stands below the table.
pub(crate) const NO_SUCH_HARDWARE: &str = " *";
pub(crate) const NO_SUCH_HARDWARE_NOTE: &str = "*  no such hardware";

/// A table without rules, its columns after the first `left` right-aligned.
pub(crate) fn plain(header: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec());
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Breaks a paragraph into lines of at most 110 characters.
pub(crate) fn textwrap(text: &str) -> String {
    const WIDTH: usize = 110;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= WIDTH {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}
