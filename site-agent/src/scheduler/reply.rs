//! What the answer of a submitting command means. They all say it in the same way: an id on standard
//! output, or a complaint on standard error. How an id looks is the adapter's.

use copal_schemas::batch_job::SchedulerId;

use super::{SchedulerError, SubmitError, command::Output};

/// What an answer to a submission means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitReply {
    /// The job's id.
    Accepted(String),
    /// The scheduler's words for why not.
    Refused(String),
    /// The scheduler may or may not have the job.
    Unknown(String),
}

/// Texts after which the job may exist all the same, or trying again may help.
const UNKNOWN: &[&str] = &[
    "connect",
    "contact",
    "communication",
    "socket",
    "timed out",
    "timeout",
    "try again",
    "try later",
    "not responding",
    "is down",
    "batch daemon",
    "batch protocol",
    "backup mode",
    "temporarily",
    "protocol authentication",
    "zero bytes",
    "broken pipe",
    "end of file",
    "premature end",
    "unknown host",
    "no route to host",
];
/// What stands before the words that matter.
const PREFIXES: &[&str] = &["error: ", "ERROR: ", "Batch job submission failed: "];

impl SubmitReply {
    /// Reads the answer of `command`; `id` finds the id in one line. An id counts whatever the exit code: then there
    /// is a job.
    #[must_use]
    pub fn read(command: &str, answer: &Output, id: impl Fn(&str) -> Option<String>) -> Self {
        if let Some(id) = answer.stdout.lines().rev().map(str::trim).find_map(id) {
            return Self::Accepted(id);
        }
        let text = words(command, &answer.complaint());
        let lower = text.to_ascii_lowercase();
        match answer.code {
            Some(code) if code != 0 && !text.is_empty() && !UNKNOWN.iter().any(|part| lower.contains(part)) => {
                Self::Refused(text)
            }
            _ => Self::Unknown(text),
        }
    }

    /// The id, or the error that follows from it. `command` is who answered.
    ///
    /// # Errors
    /// [`SubmitError`]
    pub fn outcome(self, command: &str) -> Result<SchedulerId, SubmitError> {
        match self {
            Self::Accepted(id) => Ok(SchedulerId(id)),
            Self::Refused(text) => Err(SubmitError::Refused(text)),
            Self::Unknown(text) => Err(SubmitError::Unsure(SchedulerError::Answer { command: command.into(), text })),
        }
    }
}

/// A complaint in one line, without the command's name and without how it would have to be called.
fn words(command: &str, complaint: &str) -> String {
    let name = format!("{command}: ");
    let lines = complaint.lines().map(str::trim).map(|line| {
        let mut line = line.trim_start_matches(name.as_str());
        for prefix in PREFIXES {
            line = line.trim_start_matches(prefix);
        }
        line
    });
    let said: Vec<&str> =
        lines.take_while(|line| !line.starts_with("usage:")).filter(|line| !line.is_empty()).collect();
    // All there was is the usage: then that is the answer.
    if said.is_empty() { complaint.trim().to_owned() } else { said.join("; ") }
}
