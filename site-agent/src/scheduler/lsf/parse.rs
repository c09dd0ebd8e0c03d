//! Reading what LSF's commands print. Pure functions over text.

use chrono::{Datelike, Local, NaiveDateTime, TimeDelta, TimeZone, Utc};
use copal_schemas::Timestamp;
use nix::sys::signal::Signal;
use serde::Deserialize;

use crate::scheduler::{EndReason, Ending, Status, command::Output};

/// Fields of `bjobs -o`, to be printed with `-json`.
pub const FIELDS: &str = "jobid stat start_time finish_time exit_code exit_reason pend_reason job_name";

/// One job of `bjobs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The job's id, whatever its grammar (`41`, `41[3]`).
    pub id: String,
    /// The state's word.
    pub state: String,
    /// When it started.
    pub start: Option<Timestamp>,
    /// When it ended, or will end at the latest.
    pub end: Option<Timestamp>,
    /// The script's exit code.
    pub exit_code: Option<i32>,
    /// Why it ended (`TERM_RUNLIMIT: …`).
    pub exit_reason: String,
    /// Why it waits.
    pub pend_reason: String,
    /// The job's name.
    pub name: String,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "RECORDS")]
    records: Vec<serde_json::Map<String, serde_json::Value>>,
}

/// Reads `bjobs -o` [`FIELDS`] `-json`; an empty text is an empty list. `now` tells the year of a time without one.
///
/// # Errors
/// The beginning of a text that is not what bjobs prints.
pub fn bjobs(text: &str, now: Timestamp) -> Result<Vec<Row>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let answer: Answer = serde_json::from_str(text).map_err(|_| text.trim().chars().take(200).collect::<String>())?;
    let rows = answer.records.iter().map(|record| {
        let field = |name: &str| match record.get(name) {
            Some(serde_json::Value::String(text)) if text.trim() != "-" => text.trim().to_owned(),
            Some(serde_json::Value::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        Row {
            id: field("JOBID"),
            state: field("STAT"),
            start: parse_time(&field("START_TIME"), now),
            end: parse_time(&field("FINISH_TIME"), now),
            exit_code: field("EXIT_CODE").parse().ok(),
            exit_reason: field("EXIT_REASON"),
            pend_reason: field("PEND_REASON"),
            name: field("JOB_NAME"),
        }
    });
    // A record without an id tells of a job that can't be asked for (`{"ERROR": …}`).
    Ok(rows.filter(|row| !row.id.is_empty()).collect())
}

/// Whether bjobs says that there are no jobs.
#[must_use]
pub fn means_none(answer: &Output) -> bool {
    let said = answer.stderr.to_ascii_lowercase();
    answer.stdout.trim().is_empty()
        && ((answer.code == Some(0) && said.trim().is_empty())
            || ["no job found", "no unfinished job found", "no matching job found"]
                .iter()
                .any(|text| said.contains(text)))
}

/// Whether bkill says that the job is over already.
#[must_use]
pub fn is_over(complaint: &str) -> bool {
    let said = complaint.to_ascii_lowercase();
    ["already finished", "no matching job found", "no unfinished job found", "job has already"]
        .iter()
        .any(|text| said.contains(text))
}

/// `Nov 30 10:34`, with seconds or not, with the year or not, with a letter (`L`, `E`, `X`) or not, in this machine's
/// zone. Without a year it is the last such day: LSF forgets what is older.
fn parse_time(text: &str, now: Timestamp) -> Option<Timestamp> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [month, day, clock, rest @ ..] = words.as_slice() else { return None };
    let clock = if clock.matches(':').count() == 1 { format!("{clock}:00") } else { (*clock).to_owned() };
    let given = rest.first().and_then(|word| word.parse::<i32>().ok()).filter(|year| *year > 1970);
    let at = |year: i32| {
        let naive =
            NaiveDateTime::parse_from_str(&format!("{year} {month} {day} {clock}"), "%Y %b %d %H:%M:%S").ok()?;
        // Of the two instants of the night when clocks go back, the later.
        Local.from_local_datetime(&naive).latest().map(|time| time.with_timezone(&Utc))
    };
    if let Some(year) = given {
        return at(year);
    }
    let year = now.with_timezone(&Local).year();
    // A limit may lie some weeks ahead.
    let candidates = [year + 1, year, year - 1].into_iter().filter_map(at);
    candidates.into_iter().find(|time| *time - now < TimeDelta::days(60))
}

impl Row {
    /// What the row says about its job. A word of a newer LSF says running: alive is the safe reading.
    #[must_use]
    pub fn status(&self) -> Status {
        match self.state.to_ascii_uppercase().as_str() {
            "PEND" | "PSUSP" | "WAIT" | "FWD_PEND" => {
                let held = (self.state == "PSUSP").then(|| "held".to_owned());
                Status::Queued {
                    reason: (!self.pend_reason.is_empty())
                        .then(|| self.pend_reason.trim_end_matches(';').into())
                        .or(held),
                }
            }
            "RUN" | "USUSP" | "SSUSP" | "PROV" => Status::Running { start: self.start },
            "DONE" => Status::Ended(Ending {
                start: self.start,
                end: self.end,
                reason: EndReason::Completed,
                exit_code: Some(self.exit_code.unwrap_or(0)),
                signal: None,
            }),
            "EXIT" => Status::Ended(self.bad_end()),
            other => {
                // UNKWN and ZOMBI are LSF's own words for not knowing.
                if !matches!(other, "UNKWN" | "ZOMBI") {
                    tracing::warn!("LSF's state {other:?} is not known; the job counts as running");
                }
                Status::Running { start: self.start }
            }
        }
    }

    fn bad_end(&self) -> Ending {
        let word: String =
            self.exit_reason.chars().take_while(|letter| letter.is_ascii_uppercase() || *letter == '_').collect();
        let reason = match word.as_str() {
            "TERM_RUNLIMIT" | "TERM_DEADLINE" | "TERM_WINDOW" | "TERM_CPULIMIT" => EndReason::TimeLimit,
            "TERM_OWNER" | "TERM_FORCE_OWNER" | "TERM_ADMIN" | "TERM_FORCE_ADMIN" | "TERM_EXTERNAL_SIGNAL" => {
                EndReason::Cancelled
            }
            "TERM_MEMLIMIT" | "TERM_SWAP" => EndReason::OutOfMemory,
            "TERM_PREEMPT" => EndReason::Preempted,
            "TERM_ZOMBIE" | "TERM_REMOVE_HUNG_JOB" | "TERM_ORPHAN_SYSTEM" | "TERM_LOAD" => EndReason::NodeFailure,
            // It was killed before it started.
            _ if self.start.is_none() && self.exit_code.is_none_or(|code| code == 0) => EndReason::Cancelled,
            _ => EndReason::Failed,
        };
        let signal = self.exit_code.filter(|code| *code > 128).and_then(|code| Signal::try_from(code - 128).ok());
        Ending {
            start: self.start,
            end: self.end,
            reason,
            exit_code: self.exit_code,
            signal: signal.map(|signal| signal.as_str().to_owned()),
        }
    }
}

/// The id in one line of bsub's output: `Job <41> is submitted to queue <batch>.`
#[must_use]
pub fn job_id(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("Job <")?;
    let (id, rest) = rest.split_once('>')?;
    (rest.contains("submitted") && !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit())).then(|| id.into())
}

#[cfg(test)]
mod tests;
