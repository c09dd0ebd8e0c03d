//! Reading what Flux's commands print. Pure functions over text.

use copal_schemas::Timestamp;
use nix::sys::signal::Signal;

use crate::scheduler::{
    EndReason, Ending, Status,
    listing::{Listing, Record, unknown_state},
    times::epoch,
};

/// Fields of `flux jobs -n -o`. The name is last: a user's name may hold the separator.
pub const FORMAT: &str = "{id}|{state}|{result}|{t_run}|{t_cleanup}|{returncode}|{exception.type}|{name}";

/// One job of `flux jobs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The job's id: `ƒ…`, `f…` or decimal.
    pub id: String,
    /// The state's word.
    pub state: String,
    /// How it ended.
    pub result: String,
    /// When it started.
    pub start: Option<Timestamp>,
    /// When it ended.
    pub end: Option<Timestamp>,
    /// The script's exit code; negative for a signal.
    pub return_code: Option<i32>,
    /// What ended it before its time.
    pub exception: String,
    /// The job's name.
    pub name: String,
}

/// Reads `flux jobs -n -o` [`FORMAT`], where the newest comes first.
#[must_use]
pub fn jobs(text: &str) -> Listing<Row> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    Listing::of(lines.into_iter().rev().map(|line| {
        let fields: Vec<&str> = line.splitn(8, '|').map(str::trim).collect();
        let [id, state, result, start, end, code, exception, name] = fields[..] else { return None };
        Some(Row {
            id: job_id(id)?,
            state: state.into(),
            result: result.into(),
            start: epoch(start),
            end: epoch(end),
            return_code: code.parse().ok(),
            exception: exception.into(),
            name: name.into(),
        })
    }))
}

impl Record for Row {
    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn status(&self) -> Status {
        match self.state.to_ascii_uppercase().as_str() {
            "NEW" | "N" | "PRIORITY" | "P" | "SCHED" | "S" => Status::Queued { reason: None },
            "DEPEND" | "D" => Status::Queued { reason: Some("waits for a dependency".into()) },
            "RUN" | "R" | "CLEANUP" | "C" => Status::Running { start: self.start },
            "INACTIVE" | "I" => Status::Ended(self.ending()),
            other => {
                unknown_state("Flux", other);
                Status::Running { start: self.start }
            }
        }
    }
}

impl Row {
    fn ending(&self) -> Ending {
        let reason = match self.result.to_ascii_uppercase().as_str() {
            "COMPLETED" | "CD" => EndReason::Completed,
            "CANCELED" | "CANCELLED" | "CA" => EndReason::Cancelled,
            "TIMEOUT" | "TO" => EndReason::TimeLimit,
            _ => match self.exception.as_str() {
                "node-failure" | "lost-shell" => EndReason::NodeFailure,
                "preempt" => EndReason::Preempted,
                "oom" => EndReason::OutOfMemory,
                _ => EndReason::Failed,
            },
        };
        let signal = self.return_code.filter(|code| *code < 0).and_then(|code| Signal::try_from(-code).ok());
        Ending {
            start: self.start,
            end: self.end,
            reason,
            exit_code: self.return_code.filter(|code| *code >= 0),
            signal: signal.map(|signal| signal.as_str().to_owned()),
        }
    }
}

/// Whether `flux cancel` says that the job is over already.
#[must_use]
pub fn is_over(complaint: &str) -> bool {
    let said = complaint.to_ascii_lowercase();
    ["inactive", "unknown job", "unknown id", "no such job"].iter().any(|text| said.contains(text))
}

/// The id in one line of `flux batch`: base 58 behind `ƒ` or `f`, or decimal.
#[must_use]
pub fn job_id(line: &str) -> Option<String> {
    let decimal = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
    let base58 = line.strip_prefix(['ƒ', 'f']).is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() && !b"0OIl".contains(&byte))
    });
    (decimal || base58).then(|| line.into())
}

#[cfg(test)]
mod tests;
