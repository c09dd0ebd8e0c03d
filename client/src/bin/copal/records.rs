//! Data by field names: JSON, a JSON value a line, CSV, or a table of chosen fields. Rows are
//! written as they come, so that a million of them need no memory.

use std::io;

use serde::Serialize;
use serde_json::Value;

use crate::{
    failure::{Failure, Result},
    output::{Format, Output},
    suggest,
    table::{Table, cell},
};

/// Fields of wire types that the service writes as UTC without a zone, as Balsam's clients want it.
const NAIVE_TIMES: &[&str] = &[
    "timestamp",
    "last_refresh",
    "creation_date",
    "heartbeat",
    "start_time",
    "end_time",
    "start",
    "end",
    "last_success",
    "last_error_time",
    "stopped",
    "until",
];
/// Fields whose content is the user's own and stays as it is.
const FREE_FORM: &[&str] = &["data", "tags", "filter_tags", "parameters", "status_info", "transfer_info"];

/// Rows on their way to stdout.
pub(crate) struct Records {
    out: Output,
    format: Format,
    fields: &'static [String],
    /// The columns of CSV, known with the first row.
    columns: Vec<String>,
    table: Table,
    rows: u64,
}

impl Records {
    pub(crate) fn new(out: Output, format: Format, fields: &'static [String]) -> Self {
        let headings = fields.iter().map(|field| field.to_uppercase());
        Self { out, format, fields, columns: Vec::new(), table: Table::with_headings(headings), rows: 0 }
    }

    /// A value that is no list.
    pub(crate) fn one(out: Output, format: Format, fields: &'static [String], value: Value) -> Result<()> {
        if format != Format::Json {
            let mut records = Self::new(out, format, fields);
            records.write(&[value])?;
            return records.finish();
        }
        let mut text = serde_json::to_string_pretty(&prepared(value, fields)?).map_err(io::Error::from)?;
        text.push('\n');
        out.text(&text)
    }

    /// Writes rows.
    ///
    /// # Errors
    /// When a field that was asked for does not exist, and when stdout is closed.
    pub(crate) fn write<T: Serialize>(&mut self, rows: &[T]) -> Result<()> {
        let mut text = String::new();
        for row in rows {
            let row = prepared(serde_json::to_value(row).map_err(io::Error::from)?, self.fields)?;
            match self.format {
                Format::Json => {
                    text.push_str(if self.rows == 0 { "[\n  " } else { ",\n  " });
                    // Line ends inside of strings are escaped, so every one here is the layout's.
                    text.push_str(&serde_json::to_string_pretty(&row).map_err(io::Error::from)?.replace('\n', "\n  "));
                }
                Format::Jsonl => {
                    text.push_str(&row.to_string());
                    text.push('\n');
                }
                Format::Csv => self.write_csv(&row, &mut text)?,
                Format::Table | Format::Wide => {
                    let cells = self.fields.iter().map(|field| cell(plain(row.get(field).unwrap_or(&Value::Null))));
                    self.table.push(cells.collect());
                }
            }
            self.rows += 1;
        }
        if text.is_empty() { Ok(()) } else { self.out.text(&text) }
    }

    /// Writes what stands at the end.
    ///
    /// # Errors
    /// When stdout is closed.
    pub(crate) fn finish(self) -> Result<()> {
        match self.format {
            Format::Json => self.out.text(if self.rows == 0 { "[]\n" } else { "\n]\n" }),
            // Which columns there are is known without a row where they were asked for.
            Format::Csv if self.rows == 0 && !self.fields.is_empty() => {
                let mut text = String::new();
                write_record(self.fields, &mut text)?;
                self.out.text(&text)
            }
            Format::Jsonl | Format::Csv => Ok(()),
            Format::Table | Format::Wide if self.rows == 0 => Ok(()),
            Format::Table | Format::Wide => self.out.text(&self.table.render(self.out.width())),
        }
    }

    fn write_csv(&mut self, row: &Value, text: &mut String) -> Result<()> {
        if self.rows == 0 {
            self.columns = columns(row, self.fields);
            write_record(&self.columns, text)?;
        }
        let cells = self.columns.iter().map(|column| match row.as_object() {
            Some(object) => plain(object.get(column).unwrap_or(&Value::Null)),
            None => plain(row),
        });
        write_record(cells, text)
    }
}

/// Appends a line of CSV.
fn write_record(cells: impl IntoIterator<Item = impl AsRef<[u8]>>, text: &mut String) -> Result<()> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(cells).map_err(io::Error::other)?;
    let bytes = writer.into_inner().map_err(io::Error::other)?;
    text.push_str(&String::from_utf8_lossy(&bytes));
    Ok(())
}

/// The names over the columns of CSV: as asked for, else all, what names the row first.
fn columns(row: &Value, fields: &[String]) -> Vec<String> {
    let Some(object) = row.as_object() else { return vec!["value".into()] };
    if !fields.is_empty() {
        return fields.to_vec();
    }
    let mut names: Vec<String> = object.keys().cloned().collect();
    names.sort_by_key(|name| match name.as_str() {
        "id" => 0,
        "name" | "workdir" => 1,
        "state" => 2,
        _ => 3,
    });
    names
}

/// A value as the text of one cell: nothing for null, JSON for what has parts.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A row with times in RFC 3339 and with only the fields that were asked for, in their order where the format has one.
fn prepared(mut row: Value, fields: &[String]) -> Result<Value> {
    with_zones(&mut row);
    if fields.is_empty() {
        return Ok(row);
    }
    let Some(object) = row.as_object() else { return Ok(row) };
    let mut chosen = serde_json::Map::new();
    for field in fields {
        chosen.insert(field.clone(), pick(object, field)?);
    }
    Ok(Value::Object(chosen))
}

/// The value of a field, or of a part of one: `tags.system`. Parts that a row lacks are null.
fn pick(object: &serde_json::Map<String, Value>, path: &str) -> Result<Value> {
    if let Some(value) = object.get(path) {
        return Ok(value.clone());
    }
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let Some(mut value) = object.get(name) else {
        let names: Vec<&str> = object.keys().map(String::as_str).collect();
        let hint = match suggest::nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("there is {}", names.join(", ")),
        };
        return Err(Failure::usage(format!("there is no field {name:?} (--fields)")).hint(hint));
    };
    let mut rest = rest;
    while let Some(path) = rest {
        // Names of tags may have dots themselves.
        if let Some(part) = value.get(path) {
            return Ok(part.clone());
        }
        let (name, more) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
        value = value.get(name).unwrap_or(&Value::Null);
        rest = more;
    }
    Ok(value.clone())
}

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
    use copal_client::agent_status::AgentStatus;
    use copal_schemas::site::Site;
    use serde_json::json;

    use super::*;

    /// What could be read as a time without its zone, by its place.
    fn naive_times(value: &Value, place: &str) -> Vec<String> {
        let of = |name: &dyn ToString, value: &Value| naive_times(value, &format!("{place}.{}", name.to_string()));
        match value {
            Value::String(text) if text.parse::<chrono::NaiveDateTime>().is_ok() => vec![format!("{place}: {text}")],
            Value::Array(items) => items.iter().enumerate().flat_map(|(index, item)| of(&index, item)).collect(),
            Value::Object(fields) => fields.iter().flat_map(|(name, field)| of(name, field)).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn no_time_of_a_site_or_of_its_agent_lacks_its_zone() {
        let time = "2026-11-30T12:00:00";
        let aware = "2026-11-30T12:00:00+00:00";
        let site: Site = serde_json::from_value(json!({
            "id": 1, "name": "theta", "path": "/theta", "last_refresh": time, "creation_date": time,
            "nodes_aside": [{"node": "n1", "until": time, "reason": "bus error"}],
        }))
        .unwrap();
        let agent: AgentStatus = serde_json::from_value(json!({
            "pid": 7, "host": "login1", "version": "", "site_id": 1, "api_root": "", "started": aware, "updated": aware,
            "stopped": time, "services": {"site": {
                "last_success": time, "last_error_time": time, "last_error": "", "failures": 0, "detail": "",
            }},
        }))
        .unwrap();
        let mut value = json!({"site": site, "status": agent});
        assert_eq!(naive_times(&value, "").len(), 6, "{value}");
        with_zones(&mut value);
        assert_eq!(naive_times(&value, ""), [""; 0]);
    }

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

    #[test]
    fn fields_and_parts_of_fields_are_picked() {
        let row = json!({"id": 7, "tags": {"a.b": "x", "c": "y"}, "data": {"r": {"pi": 2.5}}});
        let picked = |field: &str| pick(row.as_object().unwrap(), field).map_err(|failure| failure.lines());
        assert_eq!(picked("id").unwrap(), 7);
        assert_eq!(picked("tags.a.b").unwrap(), "x");
        assert_eq!(picked("data.r.pi").unwrap(), 2.5);
        assert_eq!(picked("tags.none").unwrap(), Value::Null);
        insta::assert_snapshot!(picked("tag").unwrap_err(), @r#"
        error: there is no field "tag" (--fields)
        hint: did you mean tags?
        "#);
    }

    #[test]
    fn csv_names_the_row_first_and_quotes_what_needs_it() {
        let row = json!({"account": null, "id": 7, "state": "FAILED", "tags": {"a": "b"}, "workdir": "x, \"y\""});
        let mut records = Records::new(Output::default(), Format::Csv, &[]);
        let mut text = String::new();
        records.write_csv(&row, &mut text).unwrap();
        insta::assert_snapshot!(text, @r#"
        id,workdir,state,account,tags
        7,"x, ""y""",FAILED,,"{""a"":""b""}"
        "#);
    }
}
