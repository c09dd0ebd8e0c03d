//! Reading what PBS's commands print. Pure functions over text, tested on recorded output.

use std::collections::BTreeMap;

use chrono::{Local, NaiveDateTime, TimeZone, Utc};
use copal_schemas::{Timestamp, resources::NodeShape};
use nix::sys::signal::Signal;

use crate::scheduler::{EndReason, Ending, Status, command::Output};

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
/// goes on with the value before it.
#[must_use]
pub fn qstat(text: &str) -> Vec<Row> {
    blocks(text, |line| line.strip_prefix("Job Id: ").map(str::trim))
        .into_iter()
        .map(|(id, fields)| {
            let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
            let number = |name: &str| fields.get(name).and_then(|text| text.parse().ok());
            let time = |name: &str| fields.get(name).and_then(|text| parse_time(text));
            Row {
                id,
                name: field("Job_Name"),
                state: field("job_state"),
                substate: number("substate"),
                exit_status: number("Exit_status"),
                start: time("stime"),
                end: time("obittime").or_else(|| time("mtime")),
                comment: field("comment"),
            }
        })
        .collect()
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

/// `Mon Nov 30 10:34:38 2026`, in this machine's zone. Of the two instants that it means on the night when clocks go
/// back, the later.
fn parse_time(text: &str) -> Option<Timestamp> {
    let naive = NaiveDateTime::parse_from_str(text.trim(), "%a %b %e %H:%M:%S %Y").ok()?;
    Local.from_local_datetime(&naive).latest().map(|time| time.with_timezone(&Utc))
}

impl Row {
    /// What the row says about its job. A letter of a newer PBS says running: alive is the safe reading.
    #[must_use]
    pub fn status(&self) -> Status {
        match self.state.as_str() {
            "Q" | "H" | "W" | "T" => match self.comment.strip_prefix("Can Never Run") {
                Some(why) => Status::Impossible { reason: why.trim_start_matches([':', ' ']).into() },
                None => Status::Queued { reason: self.waits_for() },
            },
            "F" | "X" => Status::Ended(self.ending()),
            "R" | "E" | "B" | "S" | "U" => Status::Running { start: self.start },
            other => {
                tracing::warn!("PBS's state {other:?} is not known; the job counts as running");
                Status::Running { start: self.start }
            }
        }
    }

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

/// What qsub's answer means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitReply {
    /// The job's id.
    Accepted(String),
    /// PBS's words for why not.
    Refused(String),
    /// The server may or may not have the job.
    Unknown(String),
}

/// Texts of qsub after which the job may exist all the same, or trying again may help.
const UNKNOWN: &[&str] = &[
    "connect",
    "connection",
    "timed out",
    "end of file",
    "premature end",
    "batch protocol",
    "try again",
    "unknown host",
];

/// Reads qsub's answer. An id counts whatever the exit code: then there is a job.
#[must_use]
pub fn submit_reply(answer: &Output) -> SubmitReply {
    if let Some(id) = answer.stdout.lines().rev().find_map(job_id) {
        return SubmitReply::Accepted(id);
    }
    let lines: Vec<&str> = answer
        .stderr
        .lines()
        .map(|line| line.trim().trim_start_matches("qsub: "))
        .take_while(|line| !line.starts_with("usage:"))
        .filter(|line| !line.is_empty())
        .collect();
    let text = if lines.is_empty() { answer.complaint() } else { lines.join("; ") };
    let lower = text.to_ascii_lowercase();
    match answer.code {
        Some(code) if code != 0 && !text.is_empty() && !UNKNOWN.iter().any(|part| lower.contains(part)) => {
            SubmitReply::Refused(text)
        }
        _ => SubmitReply::Unknown(text),
    }
}

/// The id in one line of qsub's output: `41.srv`, `41[].srv`, `41`, `Request 41.srv submitted`.
fn job_id(line: &str) -> Option<String> {
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

/// Reads `pbsnodes -a`; `None` when the nodes differ.
#[must_use]
pub fn node_shape(text: &str) -> Option<NodeShape> {
    let nodes = blocks(text, |line| (!line.starts_with(char::is_whitespace) && !line.is_empty()).then(|| line.trim()));
    let mut shapes = nodes.into_iter().map(|(_, fields)| {
        let available = |name: &str| fields.get(&format!("resources_available.{name}"));
        let memory_kb = available("mem")?.trim_end_matches("kb").parse::<u64>().ok()?;
        Some(NodeShape {
            cpus: available("ncpus")?.parse().ok()?,
            gpus: available("ngpus").and_then(|count| count.parse().ok()).unwrap_or(0),
            mem_mb: memory_kb / 1024,
        })
    });
    let first = shapes.next()??;
    shapes.all(|shape| shape == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests;
