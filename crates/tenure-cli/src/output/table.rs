//! Rows of text under headings, in aligned columns, readable without colour.

use super::harmless;

/// A heading, and on which side its column is aligned.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Column {
    /// Words: aligned left.
    Text(&'static str),
    /// Numbers: aligned right.
    Number(&'static str),
}

impl Column {
    fn heading(self) -> &'static str {
        match self {
            Column::Text(heading) | Column::Number(heading) => heading,
        }
    }
}

/// What `jobs list` and its like print.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[Column]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row. An empty cell is shown as `-`, so that columns can be distinguished and cut.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "{cells:?}");
        let shown = |cell: String| if cell.is_empty() { "-".to_owned() } else { harmless(&cell) };
        self.rows.push(cells.into_iter().map(shown).collect());
    }

    /// The finished lines, headings first.
    pub(crate) fn lines(&self) -> Vec<String> {
        let headings: Vec<&str> = self.columns.iter().map(|column| column.heading()).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(String::as_str).collect());
        let rows: Vec<Vec<&str>> = std::iter::once(headings).chain(rows).collect();
        let width = |at: usize| rows.iter().map(|row| width(row[at])).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        rows.iter().map(|row| self.aligned(row, &widths)).collect()
    }

    fn aligned(&self, row: &[&str], widths: &[usize]) -> String {
        let mut line = String::new();
        for ((cell, column), wide) in row.iter().zip(&self.columns).zip(widths) {
            if !line.is_empty() {
                line.push_str("  ");
            }
            let room = " ".repeat(wide - width(cell));
            match column {
                Column::Text(_) => line.extend([*cell, &room]),
                Column::Number(_) => line.extend([&room, *cell]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// The number of characters, which is close enough to the width: names are ASCII, and free text is
/// in the last column.
fn width(cell: &str) -> usize {
    cell.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_flush_left_and_numbers_flush_right() {
        let mut table = Table::new(&[Column::Text("QUEUE"), Column::Number("READY")]);
        table.row(vec!["mail".into(), "7".into()]);
        table.row(vec![String::new(), "12345678".into()]);
        assert_eq!(table.lines(), ["QUEUE     READY", "mail          7", "-      12345678"]);
    }

    #[test]
    fn a_cell_cannot_break_out_of_its_row() {
        let mut table = Table::new(&[Column::Text("REASON")]);
        table.row(vec!["one\ntwo\x1b[2J".into()]);
        assert_eq!(table.lines(), ["REASON", "one\\ntwo\\u{1b}[2J"]);
    }
}
