//! Tables of Jobs as files: CSV with a heading, a JSON list of objects, or a JSON object a line.
//! Every row keeps its line, so that what is wrong with it can be said where it is. What the
//! columns mean is `commands::job_rows`.

use std::{fs, io::Read, path::Path};

use serde_json::{Map, Value, value::RawValue};

use crate::failure::{Failure, Result};

/// One row: its line in the file, from 1, and its fields.
#[derive(Debug, PartialEq)]
pub(crate) struct Row {
    /// Its first line.
    pub(crate) line: usize,
    /// Its fields; empty cells are left out.
    pub(crate) fields: Map<String, Value>,
}

/// A row that can't be read, or that makes no Job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadRow {
    /// Its first line.
    pub(crate) line: usize,
    /// What is wrong with it.
    pub(crate) message: String,
}

/// Rows in their order, good and bad.
pub(crate) type Rows = Vec<std::result::Result<Row, BadRow>>;

/// The text of a file, or of stdin for `-`.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let bytes = if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes)?;
        bytes
    } else {
        fs::read(path).map_err(|error| {
            Failure::new(format!("can't read {}: {error}", path.display())).hint("check the path and its permissions")
        })?
    };
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        Failure::new(format!("{}, line {}: this is not UTF-8", path.display(), line + 1))
            .hint("convert the file, such as by `iconv -t UTF-8`")
    })
}

/// Reads a file's rows. The ending says what it is; without one the first character does.
///
/// # Errors
/// When it can't be read at all.
pub(crate) fn read(path: &Path) -> Result<Rows> {
    let text = read_text(path)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let rows = match path.extension().and_then(|extension| extension.to_str()) {
        Some("csv") => from_csv(text),
        Some("json") => from_json(text),
        Some("jsonl" | "ndjson") => Ok(from_jsonl(text)),
        _ => match text.trim_start().bytes().next() {
            Some(b'[') => from_json(text),
            Some(b'{') => Ok(from_jsonl(text)),
            _ => from_csv(text),
        },
    };
    rows.map_err(|message| {
        Failure::new(format!("{}: {message}", path.display())).hint("`copal job create --help` says what a table has")
    })
}

fn from_csv(text: &str) -> std::result::Result<Rows, String> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let names: Vec<String> = reader.headers().map_err(|error| error.to_string())?.iter().map(str::to_owned).collect();
    if names.iter().all(String::is_empty) {
        return Err("there is no heading; the first line names the columns".into());
    }
    for (index, name) in names.iter().enumerate() {
        if name.is_empty() {
            return Err(format!("column {} has no name in the heading", index + 1));
        }
        if names[..index].contains(name) {
            return Err(format!("the heading names {name} twice"));
        }
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let line = record.position().map_or(0, |position| line_of(text, position));
        if record.len() != names.len() {
            let message = format!("it has {} cells, the heading has {}", record.len(), names.len());
            rows.push(Err(BadRow { line, message }));
            continue;
        }
        let cells = names.iter().zip(record.iter()).filter(|(_, cell)| !cell.is_empty());
        let fields = cells.map(|(name, cell)| (name.clone(), Value::from(cell))).collect();
        rows.push(Ok(Row { line, fields }));
    }
    Ok(rows)
}

/// The line on which a record begins; its position is before the empty lines above it.
fn line_of(text: &str, position: &csv::Position) -> usize {
    let start = usize::try_from(position.byte()).unwrap_or(usize::MAX);
    let rest = text.as_bytes().get(start..).unwrap_or_default();
    let empty = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).filter(|byte| **byte == b'\n').count();
    usize::try_from(position.line()).map_or(usize::MAX, |line| line + empty)
}

fn from_json(text: &str) -> std::result::Result<Rows, String> {
    let items: Vec<&RawValue> =
        serde_json::from_str(text).map_err(|error| format!("a list of objects is wanted: {error}"))?;
    let (mut seen, mut line) = (0, 1);
    let mut rows = Vec::new();
    for item in items {
        // Items are parts of the text, which tells where they are.
        let start = item.get().as_ptr() as usize - text.as_ptr() as usize;
        line += text.as_bytes()[seen..start].iter().filter(|byte| **byte == b'\n').count();
        seen = start;
        rows.push(object(item.get(), line));
    }
    Ok(rows)
}

fn from_jsonl(text: &str) -> Rows {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(index, line)| object(line, index + 1)).collect()
}

fn object(text: &str, line: usize) -> std::result::Result<Row, BadRow> {
    let bad = |message: String| BadRow { line, message };
    match serde_json::from_str(text) {
        Ok(Value::Object(mut fields)) => {
            fields.retain(|_, value| !value.is_null());
            Ok(Row { line, fields })
        }
        Ok(_) => Err(bad("it is no JSON object".into())),
        // The place within the line is all that serde knows of it.
        Err(error) => Err(bad(format!("it is no JSON: {}", error.to_string().replace("line 1 column", "column")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(rows: &Rows) -> Vec<String> {
        rows.iter()
            .map(|row| match row {
                Ok(row) => format!("{}: {}", row.line, Value::Object(row.fields.clone())),
                Err(bad) => format!("{}: bad: {}", bad.line, bad.message),
            })
            .collect()
    }

    #[test]
    fn csv_rows_know_their_lines() {
        let text = "workdir,seed,note\na,1,\"two\nlines\"\nb,2\n\nc, 3 ,\n";
        assert_eq!(
            shown(&from_csv(text).unwrap()),
            [
                r#"2: {"workdir":"a","seed":"1","note":"two\nlines"}"#,
                "4: bad: it has 2 cells, the heading has 3",
                r#"6: {"workdir":"c","seed":"3"}"#,
            ]
        );
        assert!(from_csv("a,b,a\n").unwrap_err().contains("twice"));
        assert!(from_csv("a,,c\n").unwrap_err().contains("column 2"));
        assert!(from_csv("").is_err());
    }

    #[test]
    fn json_rows_know_their_lines() {
        let text = "[\n  {\"a\": 1},\n  {\"a\":\n   2, \"b\": null}, 7\n]";
        assert_eq!(shown(&from_json(text).unwrap()), ["2: {\"a\":1}", "3: {\"a\":2}", "4: bad: it is no JSON object"]);
        assert!(from_json("{\"a\": 1}").unwrap_err().contains("list"));
    }

    #[test]
    fn every_line_of_jsonl_stands_for_itself() {
        let rows = shown(&from_jsonl("{\"a\": 1}\n\n{\"a\": }\n[]\n"));
        assert_eq!(
            rows,
            ["1: {\"a\":1}", "3: bad: it is no JSON: expected value at column 7", "4: bad: it is no JSON object"]
        );
    }
}
