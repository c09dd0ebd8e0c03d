//! Where output goes: data to stdout as a table, as JSON or as CSV, talk to stderr.
//! Colours are dropped by `anstream` on pipes and with NO_COLOR. How values become text for
//! programs is `records`.

use std::{
    env,
    io::{self, IsTerminal, Write},
};

use serde::Serialize;

use crate::{
    failure::{Failure, Result},
    records::Records,
    table::Table,
};

/// Columns below which wrapping makes a table unreadable.
const LEAST_WIDTH: u16 = 20;

/// How data is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people, as wide as the terminal.
    #[default]
    Table,
    /// For people, with more columns and never wrapped.
    Wide,
    /// For programs: one JSON value.
    Json,
    /// For programs: one JSON value a line, written as it comes.
    Jsonl,
    /// For spreadsheets: a line of names, then a line a row.
    Csv,
}

/// The two streams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Output {
    format: Format,
    /// The fields that are wanted; empty for all. They live as long as the program, like the
    /// command line that they are from.
    fields: &'static [String],
}

impl Output {
    pub(crate) fn new(format: Format, fields: Vec<String>) -> Self {
        Self { format, fields: fields.leak() }
    }

    /// Whether data is written by field names: for programs, or because fields were asked for.
    pub(crate) fn is_data(self) -> bool {
        !self.is_table() || !self.fields.is_empty()
    }

    /// Whether people read it, in whatever columns.
    pub(crate) fn is_table(self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }

    /// Whether tables have all their columns.
    pub(crate) fn is_wide(self) -> bool {
        self.format == Format::Wide
    }

    /// The columns that a table may take; `None` for any number.
    pub(crate) fn width(self) -> Option<u16> {
        if self.is_wide() { None } else { terminal_width() }
    }

    /// Data: the value itself for programs, a table for people, who are told `empty` where there is nothing.
    pub(crate) fn data(self, value: &impl Serialize, empty: &str, table: impl FnOnce() -> Table) -> Result<()> {
        if self.is_data() {
            return self.value(value);
        }
        let table = table();
        if table.is_empty() {
            self.talk(empty);
            return Ok(());
        }
        self.text(&table.render(self.width()))
    }

    /// Data by field names, with times in RFC 3339. A list is a row an item.
    pub(crate) fn value(self, value: &impl Serialize) -> Result<()> {
        let value = serde_json::to_value(value).map_err(io::Error::from)?;
        match value {
            serde_json::Value::Array(items) => {
                let mut records = self.records();
                records.write(&items)?;
                records.finish()
            }
            value => Records::one(self, self.format, self.fields, value),
        }
    }

    /// Rows that come one after the other, so that they need not all be held.
    pub(crate) fn records(self) -> Records {
        Records::new(self, self.format, self.fields)
    }

    /// Data that is text already.
    pub(crate) fn text(self, text: &str) -> Result<()> {
        let mut stdout = anstream::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        Ok(stdout.flush()?)
    }

    /// A line for people. Nobody's failure when stderr is closed.
    pub(crate) fn talk(self, line: &str) {
        let mut stderr = anstream::stderr().lock();
        let _ = writeln!(stderr, "{line}");
    }

    /// The lines of a failure.
    pub(crate) fn failure(self, failure: &Failure) {
        let mut stderr = anstream::stderr().lock();
        for line in failure.lines().lines() {
            let _ = match line.split_once(": ") {
                Some(("error", text)) => writeln!(stderr, "\u{1b}[1;31merror\u{1b}[0m: {text}"),
                Some(("hint", text)) => writeln!(stderr, "\u{1b}[1;36mhint\u{1b}[0m: {text}"),
                _ => writeln!(stderr, "{line}"),
            };
        }
    }

    /// A line that warns, like the lines of a failure.
    pub(crate) fn warn(self, text: &str) {
        let mut stderr = anstream::stderr().lock();
        let _ = writeln!(stderr, "\u{1b}[1;33mwarning\u{1b}[0m: {text}");
    }
}

/// Whether there is somebody to ask: questions go to stderr, answers come from stdin.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// The columns of the terminal that stdout is; `None` where it is none.
fn terminal_width() -> Option<u16> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let told = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    // A terminal that does not know its size says 0.
    told.or_else(|| comfy_table::Table::new().width()).filter(|columns| *columns >= LEAST_WIDTH)
}
