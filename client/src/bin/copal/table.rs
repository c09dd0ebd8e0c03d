//! Tables of text: aligned columns without lines, wrapped to a width on a terminal and never cut. Where the columns
//! have no room beside each other, each row is a list of names and values.
//! Which columns there are is the business of each command.

use std::borrow::Cow;

use comfy_table::{Attribute, Cell, Color, ColumnConstraint, ContentArrangement, Row, Width, presets};
use copal_client::app_file::quote;
use copal_schemas::{JobState, StringMap, batch_job::BatchJobState};
use unicode_width::UnicodeWidthStr as _;

use crate::{commands::Verdict, output::harmless};

/// Between two columns.
const GAP: u16 = 2;
/// Words of so many letters are kept whole: the longest for which there is room. A path or an address is longer.
const WHOLE_WORDS: [u16; 3] = [20, 13, PART_OF_WORD];
/// Letters of a long word that must stand in a line, so that its parts can be read.
const PART_OF_WORD: u16 = 10;

/// Rows under headings.
pub(crate) struct Table {
    inner: comfy_table::Table,
    rows: usize,
}

impl Table {
    /// A table with these headings.
    pub(crate) fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self::with_headings(headings)
    }

    /// A table with as many headings as there are.
    pub(crate) fn with_headings(headings: impl IntoIterator<Item = impl ToString>) -> Self {
        let mut table = Self::bare();
        let headings = headings.into_iter().map(|heading| Cell::new(heading).add_attribute(Attribute::Bold));
        table.inner.set_header(headings.collect::<Vec<_>>());
        table
    }

    /// A table without headings, for names and values.
    pub(crate) fn bare() -> Self {
        let mut inner = comfy_table::Table::new();
        inner.load_style(presets::NOTHING);
        // Colours are written always; the stream takes them out where they are not wanted.
        inner.enforce_styling();
        inner.style_text_only();
        Self { inner, rows: 0 }
    }

    /// Adds a row.
    pub(crate) fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.push(cells.into());
    }

    /// Adds a row of as many cells as there are headings.
    pub(crate) fn push(&mut self, cells: Vec<Cell>) {
        self.inner.add_row(cells);
        self.rows += 1;
    }

    /// Adds a name and its value.
    pub(crate) fn field(&mut self, name: &str, value: impl Into<Cell>) {
        self.row([Cell::new(name).add_attribute(Attribute::Bold), value.into()]);
    }

    /// Whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The table as lines, wrapped to this many columns where that is given.
    pub(crate) fn render(mut self, width: Option<u16>) -> String {
        let Some(width) = width else {
            self.inner.set_content_arrangement(ContentArrangement::Disabled);
            return self.lines();
        };
        self.inner.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        match (self.least_widths(width), self.inner.header()) {
            (Some(least), _) => {
                let last = least.len().saturating_sub(1);
                for ((place, column), least) in self.inner.column_iter_mut().enumerate().zip(least) {
                    let gap = if place == last { 0 } else { GAP };
                    column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least + gap)));
                }
                self.lines()
            }
            (None, Some(headings)) => self.lists(headings, width),
            (None, None) => self.lines(),
        }
    }

    fn lines(mut self) -> String {
        let last = self.inner.column_count().saturating_sub(1);
        for (place, column) in self.inner.column_iter_mut().enumerate() {
            column.set_padding((0, if place == last { 0 } else { GAP }));
        }
        self.inner.lines().flat_map(|line| [line.trim_end().to_owned(), "\n".into()]).collect()
    }

    /// The columns that each needs at least, so that they can be read beside each other; `None` where they can't.
    fn least_widths(&self, width: u16) -> Option<Vec<u16>> {
        let longest_word = |cell: &Cell| {
            let longest = cell.content().split_whitespace().map(|word| word.width()).max().unwrap_or(0);
            u16::try_from(longest).unwrap_or(u16::MAX)
        };
        let mut longest: Vec<u16> = Vec::new();
        for row in self.inner.header().into_iter().chain(self.inner.row_iter()) {
            longest.resize(longest.len().max(row.cell_count()), 0);
            longest.iter_mut().zip(row.cell_iter()).for_each(|(most, cell)| *most = longest_word(cell).max(*most));
        }
        WHOLE_WORDS.into_iter().find_map(|whole| {
            let least = longest.iter().map(|word| if *word <= whole { *word } else { PART_OF_WORD });
            let needed: u32 = least.clone().map(|least| u32::from(least + GAP)).sum();
            // Nothing stands behind the last.
            (needed <= u32::from(width) + u32::from(GAP)).then(|| least.collect())
        })
    }

    /// Each row as a list of what has a value, under each other.
    fn lists(&self, headings: &Row, width: u16) -> String {
        let list = |row: &Row| {
            let mut list = Self::bare();
            for (heading, cell) in
                headings.cell_iter().zip(row.cell_iter()).filter(|(_, cell)| !cell.content().is_empty())
            {
                list.row([heading.clone(), cell.clone()]);
            }
            list.render(Some(width))
        };
        self.inner.row_iter().map(list).collect::<Vec<_>>().join("\n")
    }
}

/// A cell of plain text: whatever a terminal would obey in it is left out, colours too.
pub(crate) fn cell(value: impl ToString) -> Cell {
    let text = value.to_string();
    match harmless(&text) {
        Cow::Borrowed(text) => Cell::new(text),
        Cow::Owned(text) => Cell::new(anstream::adapter::strip_str(&text)),
    }
}

/// A cell of plain text, or of a dash where there is none.
pub(crate) fn maybe(value: Option<impl ToString>) -> Cell {
    value.map_or_else(|| Cell::new("-"), cell)
}

/// A state of a Job in its colour.
pub(crate) fn job_state(state: JobState) -> Cell {
    let cell = Cell::new(state);
    match state {
        JobState::JobFinished => cell.fg(Color::Green),
        JobState::Running => cell.fg(Color::Cyan),
        JobState::Failed | JobState::RunError => cell.fg(Color::Red),
        JobState::RunTimeout | JobState::RestartReady => cell.fg(Color::Yellow),
        _ => cell,
    }
}

/// A state of a Job in its colour, outside of a table.
pub(crate) fn state_text(state: JobState) -> String {
    let colour = match state {
        JobState::JobFinished => "32",
        JobState::Running => "36",
        JobState::Failed | JobState::RunError => "31",
        JobState::RunTimeout | JobState::RestartReady => "33",
        _ => return state.to_string(),
    };
    format!("\u{1b}[{colour}m{state}\u{1b}[0m")
}

/// A state of a BatchJob in its colour.
pub(crate) fn batch_job_state(state: BatchJobState) -> Cell {
    let cell = Cell::new(state);
    match state {
        BatchJobState::Running => cell.fg(Color::Cyan),
        BatchJobState::SubmitFailed => cell.fg(Color::Red),
        BatchJobState::PendingDeletion => cell.fg(Color::Yellow),
        _ => cell,
    }
}

/// How something fares, in its colour.
pub(crate) fn verdict(verdict: Verdict) -> Cell {
    match verdict {
        Verdict::Ok => Cell::new("ok").fg(Color::Green),
        Verdict::Warning => Cell::new("warning").fg(Color::Yellow),
        Verdict::Wrong => Cell::new("wrong").fg(Color::Red),
    }
}

/// `k=v k2='two words'`
pub(crate) fn pairs(map: &StringMap) -> String {
    let needs_quotes = |value: &str| value.is_empty() || value.contains(|c: char| c.is_whitespace() || c == '\'');
    let quoted = |value: &str| if needs_quotes(value) { quote(value) } else { value.to_owned() };
    map.iter().map(|(key, value)| format!("{key}={}", quoted(value))).collect::<Vec<_>>().join(" ")
}

/// A table as it is on a narrow and on a wide terminal, for snapshots. No line is longer than the terminal.
#[cfg(test)]
pub(crate) fn at_both_widths(table: impl Fn() -> Table) -> String {
    let mut text = String::new();
    for width in [80, 160] {
        let shown = anstream::adapter::strip_str(&table().render(Some(width))).to_string();
        assert!(shown.lines().all(|line| line.width() <= usize::from(width)), "{shown}");
        text.push_str(&format!("--- {width} columns\n{shown}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(["ID", "WORKDIR", "STATE"]);
        table.row([cell(7), cell("demo/1"), job_state(JobState::JobFinished)]);
        table.row([cell(4711), cell("a rather long folder name/of several words"), cell("x")]);
        table
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn nothing_is_cut_without_a_width() {
        insta::assert_snapshot!(plain(&sample().render(None)), @r"
        ID    WORKDIR                                     STATE
        7     demo/1                                      JOB_FINISHED
        4711  a rather long folder name/of several words  x
        ");
    }

    #[test]
    fn long_cells_wrap_to_the_width() {
        let text = plain(&sample().render(Some(40)));
        insta::assert_snapshot!(text, @r"
        ID    WORKDIR               STATE
        7     demo/1                JOB_FINISHED
        4711  a rather long folder  x
              name/of several
              words
        ");
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
    }

    #[test]
    fn rows_are_lists_where_columns_have_no_room() {
        let text = plain(&sample().render(Some(24)));
        insta::assert_snapshot!(text, @r"
        ID       7
        WORKDIR  demo/1
        STATE    JOB_FINISHED

        ID       4711
        WORKDIR  a rather long
                 folder name/of
                 several words
        STATE    x
        ");
        assert!(text.lines().all(|line| line.chars().count() <= 24), "{text}");
    }

    #[test]
    fn states_are_whole_and_paths_take_what_is_left() {
        let mut table = Table::new(["STATE", "A", "B", "INFO"]);
        let path = "/lus/eagle/projects/ann/site/data/run";
        table.row([cell("pending_submission"), cell("x"), cell("y"), cell(path)]);
        insta::assert_snapshot!(plain(&table.render(Some(44))), @r"
        STATE               A  B  INFO
        pending_submission  x  y  /lus/eagle/project
                                  s/ann/site/data/ru
                                  n
        ");
    }

    #[test]
    fn letters_of_two_columns_are_counted_so() {
        let mut table = Table::new(["NAME", "PATH"]);
        table.row([cell("計算機科学研究所"), cell("/lus/eagle/projects/ann/site/data/run")]);
        assert_eq!(table.least_widths(40), Some(vec![16, PART_OF_WORD]));
    }

    #[test]
    fn a_value_with_a_quote_in_it_is_quoted_whole() {
        let pair = |value: &str| pairs(&[("k".to_owned(), value.to_owned())].into());
        assert_eq!([pair("v"), pair("two words"), pair("")], ["k=v", "k='two words'", "k=''"]);
        assert_eq!(shlex::split(&pair("a b'c")).unwrap(), ["k=a b'c"]);
    }

    #[test]
    fn what_others_wrote_is_only_text() {
        let mut table = Table::bare();
        table.row([cell("\u{1b}[8mhidden\u{1b}[0m\u{1b}[2J"), maybe(Some("a\u{7}b"))]);
        assert_eq!(plain(&table.render(None)), "hidden[2J  ab\n");
    }

    #[test]
    fn colours_are_in_the_text_for_the_stream_to_keep_or_drop() {
        assert!(sample().render(None).contains("\u{1b}["));
    }
}
