//! Where output goes: data to stdout as a table or as one JSON value, talk to stderr.
//! Colours are dropped by `anstream` on pipes and with NO_COLOR.

use std::{
    env,
    io::{self, IsTerminal, Write},
};

use serde::Serialize;
use serde_json::Value;

use crate::{
    failure::{Failure, Result},
    table::Table,
};

/// Columns below which wrapping makes a table unreadable.
const LEAST_WIDTH: u16 = 20;

/// How data is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs: one JSON value.
    Json,
}

/// The two streams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Output {
    format: Format,
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self { format }
    }

    /// Whether data is for programs.
    pub(crate) fn is_json(self) -> bool {
        self.format == Format::Json
    }

    /// Data: the value itself for programs, a table for people, who are told `empty` where there is nothing.
    pub(crate) fn data(self, value: &impl Serialize, empty: &str, table: impl FnOnce() -> Table) -> Result<()> {
        if self.is_json() {
            return self.json(value);
        }
        let table = table();
        if table.is_empty() {
            self.talk(empty);
            return Ok(());
        }
        self.text(&table.render(terminal_width()))
    }

    /// Data as one JSON value on one or more lines, with times in RFC 3339.
    pub(crate) fn json(self, value: &impl Serialize) -> Result<()> {
        let mut value = serde_json::to_value(value).map_err(io::Error::from)?;
        with_zones(&mut value);
        let mut text = serde_json::to_string_pretty(&value).map_err(io::Error::from)?;
        text.push('\n');
        self.text(&text)
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
}

/// Whether there is somebody to ask: questions go to stderr, answers come from stdin.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// The columns of the terminal that stdout is; `None` where it is none.
pub(crate) fn terminal_width() -> Option<u16> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let told = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    // A terminal that does not know its size says 0.
    told.or_else(|| comfy_table::Table::new().width()).filter(|columns| *columns >= LEAST_WIDTH)
}

/// Fields of wire types that the service writes as UTC without a zone, as Balsam's clients want it.
const NAIVE_TIMES: &[&str] =
    &["timestamp", "last_refresh", "creation_date", "heartbeat", "start_time", "end_time", "start", "end"];
/// Fields whose content is the user's own and stays as it is.
const FREE_FORM: &[&str] = &["data", "tags", "filter_tags", "parameters", "status_info", "transfer_info"];

/// Completes naive times to RFC 3339.
fn with_zones(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(with_zones),
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut().filter(|(name, _)| !FREE_FORM.contains(&name.as_str())) {
                match field {
                    Value::String(time) if NAIVE_TIMES.contains(&name.as_str()) && !time.ends_with("+00:00") => {
                        time.push_str("+00:00");
                    }
                    field => with_zones(field),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_for_programs_have_their_zone() {
        let mut value = json!([{
            "timestamp": "2026-11-30T12:00:00.5", "end_time": null, "last_update": "2026-11-30T12:00:00+00:00",
            "data": {"start": "at noon"},
        }]);
        with_zones(&mut value);
        assert_eq!(
            value,
            json!([{
                "timestamp": "2026-11-30T12:00:00.5+00:00", "end_time": null,
                "last_update": "2026-11-30T12:00:00+00:00", "data": {"start": "at noon"},
            }])
        );
    }
}
