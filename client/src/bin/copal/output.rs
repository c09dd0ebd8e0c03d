//! Where output goes: data to stdout as a table, as JSON or as CSV, talk to stderr.
//! Colours are dropped by `anstream` on pipes and with NO_COLOR. How values become text for
//! programs is `records`.

use std::{
    borrow::Cow,
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
        let text = if io::stdout().is_terminal() { harmless(text) } else { text.into() };
        let mut stdout = anstream::stdout().lock();
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        written.map_err(|error| Failure::io("can't write to stdout", &error))
    }

    /// A line for people. Nobody's failure when stderr is closed.
    pub(crate) fn talk(self, line: &str) {
        let mut stderr = anstream::stderr().lock();
        let _ = writeln!(stderr, "{}", harmless(line));
    }

    /// The lines of a failure.
    pub(crate) fn failure(self, failure: &Failure) {
        let mut stderr = anstream::stderr().lock();
        for line in harmless(&failure.lines()).lines() {
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
        let _ = writeln!(stderr, "\u{1b}[1;33mwarning\u{1b}[0m: {}", harmless(text));
    }
}

/// A text whose letters do nothing to a terminal but to be seen, in whatever colour. Names, tags and what Jobs have
/// printed come from elsewhere, and a terminal obeys what it is sent: it would delete lines, change its title or type.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return text.into();
    }
    let mut seen = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(place) = rest.find(is_harmful) {
        seen.push_str(&rest[..place]);
        let colour = colour_length(&rest[place..]);
        seen.push_str(&rest[place..place + colour]);
        let letter = rest[place..].chars().next().map_or(0, char::len_utf8);
        rest = &rest[place + colour.max(letter)..];
    }
    seen.push_str(rest);
    seen.into()
}

/// Whether a terminal obeys a letter, or shows what follows it in another order.
fn is_harmful(letter: char) -> bool {
    let is_layout = letter == '\n' || letter == '\t';
    (letter.is_control() && !is_layout) || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The bytes of the change of colour (ECMA-48, SGR) that a text begins with; 0 where it begins with something else.
fn colour_length(text: &str) -> usize {
    let Some(parameters) = text.strip_prefix("\u{1b}[") else { return 0 };
    match parameters.find(|letter: char| !letter.is_ascii_digit() && letter != ';') {
        Some(end) if parameters[end..].starts_with('m') => "\u{1b}[".len() + end + 1,
        _ => 0,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_told_nothing_but_letters_and_colours() {
        for (text, seen) in [
            ("plain\n\ttext: grün", "plain\n\ttext: grün"),
            ("\u{1b}[1;31merror\u{1b}[0m: x", "\u{1b}[1;31merror\u{1b}[0m: x"),
            ("a\u{1b}]0;title\u{7}b", "a]0;titleb"),
            ("a\u{1b}[2J\u{1b}[1;1Hb", "a[2J[1;1Hb"),
            ("over\rwritten\u{8}", "overwritten"),
            ("\u{9b}2J\u{7f}\u{202e}evil", "2Jevil"),
            ("\u{1b}", ""),
            ("\u{1b}[", "["),
            ("\u{1b}[31", "[31"),
        ] {
            assert_eq!(harmless(text), seen, "{text:?}");
        }
    }
}
