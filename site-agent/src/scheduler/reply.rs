//! What the answer of a submitting command means, for schedulers whose commands say it in the same
//! way: an id on standard output, or a complaint on standard error.

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
    "connection",
    "communication",
    "timed out",
    "timeout",
    "try again",
    "try later",
    "not responding",
    "is down",
    "batch daemon",
    "temporarily",
    "broken pipe",
    "end of file",
    "no route to host",
];

impl SubmitReply {
    /// Reads an answer; `id` finds the id in one line. An id counts whatever the exit code: then there is a job.
    #[must_use]
    pub fn read(answer: &Output, id: impl Fn(&str) -> Option<String>) -> Self {
        if let Some(id) = answer.stdout.lines().rev().map(str::trim).find_map(id) {
            return Self::Accepted(id);
        }
        let complaint = answer.complaint();
        let text = complaint.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>();
        let text = text.join("; ");
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
