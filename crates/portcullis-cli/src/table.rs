//! Numbers, tables and text, laid out for the width of the terminal.

use comfy_table::{CellAlignment, ColumnConstraint, Table, Width, presets};
use console::{Term, measure_text_width};
pub(crate) use portcullis_sim::number::{count, number};
use textwrap::{Options, WordSplitter};

/// The mark of designs for hardware that does not exist, and the note below the table.
pub(crate) const NO_SUCH_HARDWARE: &str = " *";
/// The mark of a design of another crate whose cost is not known.
pub(crate) const UNPRICED: &str = " +";
pub(crate) const UNPRICED_NOTE: &str =
    "+  reports no steps of its addresses (Platform::probe), so they cost nothing here: not compared";
pub(crate) const NO_SUCH_HARDWARE_NOTE: &str = "*  no such hardware";

/// The width if there is no terminal.
const WIDTH_PIPED: usize = 130;
/// The widths for which tables are laid out: a narrower table would break numbers apart, and longer lines are hard to
/// follow.
const WIDTHS: std::ops::RangeInclusive<usize> = 60..=200;
/// Longer lines of text are hard to read.
const PROSE_MAX: usize = 110;

/// The number of characters in a line: the width of the terminal, or else `COLUMNS`.
pub(crate) fn width() -> usize {
    let terminal = Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    let said = || std::env::var("COLUMNS").ok()?.trim().parse().ok();
    terminal.or_else(said).unwrap_or(WIDTH_PIPED).clamp(*WIDTHS.start(), *WIDTHS.end())
}

/// Breaks a paragraph into lines.
pub(crate) fn wrap(text: &str) -> String {
    wrap_behind("", "", text)
}

/// Breaks a paragraph into lines, with `first` before the first line and `others` before each of the other lines.
pub(crate) fn wrap_behind(first: &str, others: &str, text: &str) -> String {
    let options = Options::new(width().min(PROSE_MAX)).initial_indent(first).subsequent_indent(others);
    // Names and options are never broken apart, and a number stays with its unit.
    let units = [" %", " µs", " ms", " Gb/s"];
    let text = units.iter().fold(text.to_owned(), |text, unit| text.replace(unit, &unit.replace(' ', "\u{a0}")));
    let lines = textwrap::fill(&text, options.word_splitter(WordSplitter::NoHyphenation).break_words(false));
    lines.replace('\u{a0}', " ")
}

/// Puts as many of `facts` into each line as fit, `gap` apart.
pub(crate) fn side_by_side(facts: &[String], gap: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for fact in facts {
        match lines.last_mut() {
            Some(line) if measure_text_width(line) + gap.len() + measure_text_width(fact) <= width() => {
                line.push_str(gap);
                line.push_str(fact);
            }
            _ => lines.push(fact.clone()),
        }
    }
    lines.join("\n")
}

/// The gap between columns if there is enough room.
const GAP: usize = 2;

/// A column of a table.
pub(crate) struct Column {
    head: String,
    is_words: bool,
    /// `None`: the column always stays. Otherwise, columns of the lowest worth are left out first.
    worth: Option<u8>,
}

impl Column {
    pub(crate) fn words(head: &str) -> Self {
        Self { head: head.to_owned(), is_words: true, worth: None }
    }

    pub(crate) fn numbers(head: &str) -> Self {
        Self { head: head.to_owned(), is_words: false, worth: None }
    }

    /// Lets the column be left out if there is no room, after columns of lower worth.
    pub(crate) fn worth(self, worth: u8) -> Self {
        Self { worth: Some(worth), ..self }
    }

    fn name(&self) -> String {
        // A word that continues in the next line ends in a slash.
        self.head.replace("/\n", "/").replace('\n', " ")
    }
}

/// Which columns fit, and how wide they are. This is the same for all tables with these rows.
pub(crate) struct Layout<'c> {
    columns: &'c [Column],
    /// The index of each column that stays, with its width.
    kept: Vec<(usize, usize)>,
    gap: usize,
}

impl<'c> Layout<'c> {
    pub(crate) fn of<'r>(columns: &'c [Column], rows: impl IntoIterator<Item = &'r Vec<String>>) -> Self {
        Self::within(width(), columns, rows)
    }

    fn within<'r>(width: usize, columns: &'c [Column], rows: impl IntoIterator<Item = &'r Vec<String>>) -> Self {
        let widest = |text: &str| text.lines().map(measure_text_width).max().unwrap_or(0);
        let mut widths: Vec<usize> = columns.iter().map(|column| widest(&column.head)).collect();
        for row in rows {
            for (known, cell) in widths.iter_mut().zip(row) {
                *known = widest(cell).max(*known);
            }
        }
        let mut layout = Self { columns, kept: widths.into_iter().enumerate().collect(), gap: GAP };
        while layout.total() > width {
            let worth = |(at, _): &(usize, usize)| columns[*at].worth;
            let least = layout.kept.iter().filter_map(|one| Some((worth(one)?, one.0))).min();
            let Some((_, least)) = least else { break };
            layout.kept.retain(|(at, _)| *at != least);
        }
        if layout.total() > width {
            layout.gap = 1;
        }
        // If the columns are still too wide, they are wrapped, the widest first.
        for _ in width..layout.total() {
            if let Some((_, widest)) = layout.kept.iter_mut().max_by_key(|(_, width)| *width) {
                *widest = widest.saturating_sub(1).max(1);
            }
        }
        layout
    }

    /// Whether columns moved closer together. Only then may cells be wrapped.
    pub(crate) fn is_tight(&self) -> bool {
        self.gap < GAP
    }

    fn total(&self) -> usize {
        let cells: usize = self.kept.iter().map(|(_, width)| width).sum();
        cells + self.gap * self.kept.len().saturating_sub(1)
    }

    /// A table without lines between cells.
    pub(crate) fn table(&self, rows: &[Vec<String>]) -> String {
        let mut table = Table::new();
        let head = |(at, _): &(usize, usize)| self.columns[*at].head.clone();
        table.load_style(presets::NOTHING).set_header(self.kept.iter().map(head).collect::<Vec<_>>());
        for row in rows {
            let cell = |(at, _): &(usize, usize)| row.get(*at).cloned().unwrap_or_default();
            table.add_row(self.kept.iter().map(cell).collect::<Vec<_>>());
        }
        for (column, (at, width)) in table.column_iter_mut().zip(&self.kept) {
            let gap = self.gap as u16;
            let with_gap = u16::try_from(*width).unwrap_or(u16::MAX).saturating_add(gap);
            column.set_padding((0, gap)).set_constraint(ColumnConstraint::Absolute(Width::Fixed(with_gap)));
            if !self.columns[*at].is_words {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }

    /// A note that names the columns left out and says where to find them.
    pub(crate) fn left_out(&self, elsewhere: &str) -> Option<String> {
        let is_kept = |at: usize| self.kept.iter().any(|(kept, _)| *kept == at);
        let names = self.columns.iter().enumerate().filter(|(at, _)| !is_kept(*at)).map(|(_, column)| column.name());
        let names: Vec<String> = names.collect();
        (!names.is_empty()).then(|| wrap(&format!("No room for: {}; {elsewhere}.", names.join(", "))))
    }
}

/// A table, followed by a note about the columns left out, if there are any.
pub(crate) fn fitted(columns: &[Column], rows: &[Vec<String>], elsewhere: &str) -> String {
    let layout = Layout::of(columns, rows);
    let table = layout.table(rows);
    layout.left_out(elsewhere).map_or(table.clone(), |note| format!("{table}\n{note}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> [Column; 4] {
        [
            Column::words("design"),
            Column::numbers("inval/\npage").worth(1),
            Column::numbers("stale\npages").worth(2),
            Column::numbers("of none"),
        ]
    }

    fn row() -> Vec<String> {
        ["stock", "0.72", "12,345", "46 %"].map(str::to_owned).to_vec()
    }

    #[test]
    fn what_is_worth_least_goes_first() {
        let (columns, rows) = (columns(), [row()]);
        let left_out = |width| Layout::within(width, &columns, &rows).left_out("see there");
        assert_eq!(left_out(31), None);
        assert_eq!(left_out(30).as_deref(), Some("No room for: inval/page; see there."));
        assert_eq!(left_out(22).as_deref(), Some("No room for: inval/page, stale pages; see there."));
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let mut long = row();
        long[0] = "eiovar:k=64:queue=per-core".to_owned();
        let (columns, rows) = (columns(), [row(), long]);
        for width in 10..80 {
            let table = Layout::within(width, &columns, &rows).table(&rows);
            assert!(table.lines().all(|line| measure_text_width(line) <= width), "{width}:\n{table}");
            assert!(table.contains("46 %"), "{width}:\n{table}");
        }
    }
}
