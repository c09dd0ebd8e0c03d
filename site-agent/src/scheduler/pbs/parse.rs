//! Reading what PBS's commands print. Pure functions over text, tested on recorded output.

use std::collections::BTreeMap;

use chrono::{Local, NaiveDateTime};
use copal_schemas::Timestamp;
use nix::sys::signal::Signal;

use crate::scheduler::{
    EndReason, Ending, Status,
    listing::{Listing, Record, unknown_state},
    times,
};

/// One job of `qstat -f`, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The job's id with its server.
    pub id: String,
    /// The job's name.
    pub name: String,
    /// The state's letter.
    pub state: String,
    /// The server's finer state.
    pub substate: Option<i32>,
    /// The script's exit status, or the server's reason as a number.
    pub exit_status: Option<i32>,
    /// When it started.
    pub start: Option<Timestamp>,
    /// When the server learned of its end.
    pub end: Option<Timestamp>,
    /// What the scheduler says about it.
    pub comment: String,
}

/// Reads the text form of `qstat -f`: a line `Job Id: X`, then `    key = value`, where a line that begins with a tab
/// goes on with the value before it. A block without a name is one that was cut short.
///
/// # Errors
/// The beginning of a text that begins otherwise: a table, a notice, JSON. Such an answer tells of no absence.
pub fn qstat(text: &str, now: Timestamp) -> Result<Listing<Row>, String> {
    let heading = |line: &'_ str| line.starts_with("Job Id: ");
    if let Some(line) = text.lines().find(|line| !line.trim().is_empty()).filter(|line| !heading(line)) {
        return Err(line.trim().chars().take(200).collect());
    }
    let jobs = blocks(text, |line| line.strip_prefix("Job Id: ").map(str::trim));
    Ok(Listing::of(jobs.into_iter().map(|(id, fields)| row(id, &fields, now))))
}

fn row(id: String, fields: &BTreeMap<String, String>, now: Timestamp) -> Option<Row> {
    let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
    let number = |name: &str| fields.get(name).and_then(|text| text.parse().ok());
    let time = |name: &str| fields.get(name).and_then(|text| parse_time(text));
    let ran = fields.get("resources_used.walltime").and_then(|text| times::duration(text));
    let (start, end) = times::span(&Local, time("stime"), time("obittime").or_else(|| time("mtime")), ran, now);
    Some(Row {
        id,
        name: fields.get("Job_Name")?.clone(),
        state: field("job_state"),
        substate: number("substate"),
        exit_status: number("Exit_status"),
        start,
        end,
        comment: field("comment"),
    })
}

/// Blocks of `key = value` lines below a heading. The first value of a key counts: a later one may come out of a
/// user's variable with a line break in it.
pub(super) fn blocks<'a>(
    text: &'a str,
    heading: impl Fn(&'a str) -> Option<&'a str>,
) -> Vec<(String, BTreeMap<String, String>)> {
    let mut all: Vec<(String, BTreeMap<String, String>)> = Vec::new();
    let mut last_key = None;
    for line in text.lines() {
        if let Some(name) = heading(line) {
            all.push((name.into(), BTreeMap::new()));
            last_key = None;
            continue;
        }
        let Some((_, fields)) = all.last_mut() else { continue };
        if let Some(more) = line.strip_prefix('\t') {
            if let Some(value) = last_key.as_ref().and_then(|key| fields.get_mut(key)) {
                *value += more;
            }
        } else if let Some((key, value)) = line.trim_start().split_once(" = ") {
            last_key = (!fields.contains_key(key)).then(|| key.to_owned());
            fields.entry(key.into()).or_insert_with(|| value.trim_end().into());
        }
    }
    all
}

/// `Mon Nov 30 10:34:38 2026`, in this machine's zone.
fn parse_time(text: &str) -> Option<NaiveDateTime> {
    NaiveDateTime::parse_from_str(text.trim(), "%a %b %e %H:%M:%S %Y").ok()
}

impl Record for Row {
    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn status(&self) -> Status {
        match self.state.as_str() {
            "Q" | "H" | "W" | "T" => match self.comment.strip_prefix("Can Never Run") {
                Some(why) => Status::Impossible { reason: why.trim_start_matches([':', ' ']).into() },
                None => Status::Queued { reason: self.waits_for() },
            },
            "F" | "X" => Status::Ended(self.ending()),
            "R" | "E" | "B" | "S" | "U" => Status::Running { start: self.start },
            other => {
                unknown_state("PBS", other);
                Status::Running { start: self.start }
            }
        }
    }
}

impl Row {
    fn waits_for(&self) -> Option<String> {
        let text = self.comment.trim().trim_start_matches("Not Running: ");
        match (text.is_empty(), self.state.as_str()) {
            (false, _) => Some(text.into()),
            (true, "H") => Some("held".into()),
            (true, "W") => Some("waits for its start time".into()),
            _ => None,
        }
    }

    fn ending(&self) -> Ending {
        // The numbers are those of the server's job.h; 256 and a signal is what a killed shell gives.
        let (reason, exit_code, signal) = match self.exit_status {
            Some(0) => (EndReason::Completed, Some(0), None),
            Some(-29) => (EndReason::TimeLimit, None, None),
            Some(-27 | -26) => (EndReason::OutOfMemory, None, None),
            Some(status) => {
                let signal = (status > 256).then(|| status - 256).and_then(|number| Signal::try_from(number).ok());
                let reason = match () {
                    () if self.comment.contains("exceeded resource walltime") => EndReason::TimeLimit,
                    () if self.comment.to_ascii_lowercase().contains("preempt") => EndReason::Preempted,
                    () if self.comment.contains("terminated by") || self.substate == Some(91) => EndReason::Cancelled,
                    () => EndReason::Failed,
                };
                (reason, (0..=256).contains(&status).then_some(status), signal.map(|signal| signal.as_str().to_owned()))
            }
            // It never ran: deleted, or a dependency that can't be met.
            None => (EndReason::Cancelled, None, None),
        };
        Ending { start: self.start, end: self.end, reason, exit_code, signal }
    }
}

/// The id in one line of qsub's output: `41.srv`, `41[].srv`, `41`, `Request 41.srv submitted`.
#[must_use]
pub fn job_id(line: &str) -> Option<String> {
    let line = line.trim();
    let candidate = match line.strip_prefix("Request ") {
        Some(rest) => rest.split_whitespace().next()?,
        None => line,
    };
    let (number, server) = candidate.split_once('.').unwrap_or((candidate, ""));
    let number = number.trim_end_matches("[]");
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (digits && !server.contains(char::is_whitespace)).then(|| candidate.into())
}

#[cfg(test)]
mod tests;
