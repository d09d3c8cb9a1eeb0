//! Tables for a terminal.

/// Aligns cells: the first column to the left, the others to the right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        text.extend(cells.chain(["\n".to_owned()]));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "bcd"], ["efg", "h"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(super::aligned(&rows), "a    bcd\nefg    h\n");
    }
}
