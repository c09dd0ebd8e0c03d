//! Reading what Cobalt's commands print and what it logs. Pure functions over text.

use chrono::{DateTime, Utc};
use copal_schemas::Timestamp;

use crate::scheduler::{
    EndReason, Ending, Status,
    listing::{Listing, Record, unknown_state},
};

/// Columns of qstat, by the variable `QSTAT_HEADER`. The name is last: a user's name may hold blanks.
pub const HEADER: &str = "JobID:State:StartTime:JobName";

/// One job of `qstat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The job's id.
    pub id: String,
    /// The job's name.
    pub name: String,
    /// The state's word.
    pub state: String,
    /// When it started.
    pub start: Option<Timestamp>,
}

/// Reads `qstat` with [`HEADER`]: a line of names, a line of `=`, a record a line. Nothing at all is an empty list.
///
/// # Errors
/// A first line that is not of names: such an answer tells of no absence.
pub fn qstat(text: &str) -> Result<Listing<Row>, String> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    match lines.next() {
        None => return Ok(Listing::default()),
        Some(head) if head.split_whitespace().eq(HEADER.split(':')) => {}
        Some(other) => return Err(other.trim().chars().take(200).collect()),
    }
    Ok(Listing::of(lines.filter(|line| line.trim().chars().any(|letter| letter != '=')).map(row)))
}

fn row(line: &str) -> Option<Row> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [id, state, rest @ ..] = words.as_slice() else { return None };
    // `N/A`, or the seven words of `Mon Nov 30 10:34:38 2026 +0000 (UTC)`.
    let start = rest.get(..7).and_then(|words| parse_time(&words.join(" ")));
    let name = rest.get(if start.is_some() { 7 } else { 1 }..).filter(|words| !words.is_empty())?;
    let id = id.bytes().all(|byte| byte.is_ascii_digit()).then(|| (*id).to_owned())?;
    Some(Row { id, name: name.join(" "), state: (*state).into(), start })
}

/// `Mon Nov 30 10:34:38 2026 +0000 (UTC)`; any other offset counts as given.
fn parse_time(text: &str) -> Option<Timestamp> {
    let text = text.split('(').next()?.trim();
    DateTime::parse_from_str(text, "%a %b %d %H:%M:%S %Y %z").ok().map(|time| time.with_timezone(&Utc))
}

impl Record for Row {
    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn status(&self) -> Status {
        match self.state.to_ascii_lowercase().as_str() {
            "queued" => Status::Queued { reason: None },
            "preempted" | "dep_fail" => Status::Queued { reason: Some(self.state.clone()) },
            state if state.ends_with("hold") => Status::Queued { reason: Some(self.state.clone()) },
            "starting" | "running" | "preempting" | "exiting" | "killing" | "collecting" | "done" => {
                Status::Running { start: self.start }
            }
            other => {
                unknown_state("Cobalt", other);
                Status::Running { start: self.start }
            }
        }
    }
}

/// How a job ended, by Cobalt's log of it; `None` while the log does not say that it did.
#[must_use]
pub fn ending(log: &str) -> Option<Ending> {
    let mut start = None;
    let mut ending: Option<Ending> = None;
    for line in log.lines() {
        let Some((time, text)) = line.split_once("(UTC)") else { continue };
        let time = parse_time(time);
        let lower = text.to_ascii_lowercase();
        let code = lower.split_once("exit code of ").and_then(|(_, rest)| {
            rest.split(|letter: char| !letter.is_ascii_digit() && letter != '-').next()?.parse::<i32>().ok()
        });
        let reason = match code {
            Some(0) => EndReason::Completed,
            Some(_) => EndReason::Failed,
            None if lower.contains("execution time exceeded") || lower.contains("time limit") => EndReason::TimeLimit,
            None if lower.contains("delete") => EndReason::Cancelled,
            None if lower.contains("preempt") => EndReason::Preempted,
            None if lower.contains("node failure") || lower.contains("node down") => EndReason::NodeFailure,
            None if lower.contains("out of memory") => EndReason::OutOfMemory,
            None if lower.contains("exec ") || lower.contains("command:") || lower.contains("running job") => {
                start = start.or(time);
                continue;
            }
            None => continue,
        };
        // What made it end comes first; that its script then died of it comes after.
        match &mut ending {
            Some(first) => {
                first.end = time.or(first.end);
                first.exit_code = first.exit_code.or(code);
            }
            None => ending = Some(Ending { start, end: time, reason, exit_code: code, signal: None }),
        }
    }
    ending
}

/// The job's id in Cobalt's log of it: `jobid 41 submitted …`.
#[must_use]
pub fn logged_id(log: &str) -> Option<String> {
    log.lines().find_map(|line| {
        let id = line.trim().strip_prefix("jobid ")?.split_whitespace().next()?;
        id.bytes().all(|byte| byte.is_ascii_digit()).then(|| id.to_owned())
    })
}

/// Whether qdel says that there is no such job any more.
#[must_use]
pub fn is_over(complaint: &str) -> bool {
    let said = complaint.to_ascii_lowercase();
    ["not found", "no match", "no jobs", "unknown job"].iter().any(|text| said.contains(text))
}

/// The id in one line of qsub's output, which holds nothing else.
#[must_use]
pub fn job_id(line: &str) -> Option<String> {
    (!line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit())).then(|| line.into())
}

#[cfg(test)]
mod tests;
