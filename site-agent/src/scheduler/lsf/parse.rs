//! Reading what LSF's commands print. Pure functions over text.

use std::collections::BTreeMap;

use chrono::{Datelike, Local, NaiveDateTime, TimeDelta};
use copal_schemas::Timestamp;
use nix::sys::signal::Signal;
use serde::Deserialize;

use crate::scheduler::{
    EndReason, Ending, Status,
    command::Output,
    listing::{Listing, Record, unknown_state},
    times,
};

/// Fields of `bjobs -o`, to be printed with `-json`.
pub const FIELDS: &str = "jobid stat start_time finish_time run_time exit_code exit_reason pend_reason job_name";

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

/// The fields of one record by name, without those that hold nothing.
type Fields = BTreeMap<String, String>;

/// Reads `bjobs -o` [`FIELDS`] `-json`; an empty text is an empty list. `now` tells the year of a time without one.
/// Where the whole is no JSON, because of what a user called a job, each record is read by itself.
///
/// # Errors
/// The beginning of a text that is not what bjobs prints.
pub fn bjobs(text: &str, now: Timestamp) -> Result<Listing<Row>, String> {
    if text.trim().is_empty() {
        return Ok(Listing::default());
    }
    let records: Vec<Option<Fields>> = match serde_json::from_str::<Answer>(text) {
        Ok(answer) => answer.records.into_iter().map(|record| Some(fields(record))).collect(),
        Err(_) => match broken_records(text) {
            records if records.is_empty() => return Err(text.trim().chars().take(200).collect()),
            records => records,
        },
    };
    // A record that tells of a job that can't be asked for has only an error in it.
    let jobs = records.into_iter().filter(|record| record.as_ref().is_none_or(|fields| !fields.contains_key("ERROR")));
    Ok(Listing::of(jobs.map(|record| row(&record?, now))))
}

fn fields(record: serde_json::Map<String, serde_json::Value>) -> Fields {
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text.trim().to_owned(),
        serde_json::Value::Null => String::new(),
        other => other.to_string(),
    };
    record
        .into_iter()
        .map(|(name, value)| (name, text(value)))
        .filter(|(_, text)| !text.is_empty() && text != "-")
        .collect()
}

/// The records of a text that is no JSON as a whole, by lines: LSF prints one field in each, whatever it holds.
fn broken_records(text: &str) -> Vec<Option<Fields>> {
    let body = text.split_once("\"RECORDS\"").map_or("", |(_, body)| body);
    let mut records = Vec::new();
    let mut open: Option<Fields> = None;
    for line in body.lines().map(str::trim) {
        match line {
            "{" => records.extend(open.replace(Fields::new()).map(|_| None)),
            "}" | "}," => records.extend(open.take().map(Some)),
            _ => {
                let field = line.strip_prefix('"').and_then(|rest| rest.split_once("\":\""));
                let value = field.and_then(|(name, rest)| Some((name, rest.trim_end_matches(',').strip_suffix('"')?)));
                if let (Some(open), Some((name, value))) =
                    (&mut open, value.filter(|(_, value)| !value.trim().is_empty() && *value != "-"))
                {
                    open.insert(name.into(), value.trim().into());
                }
            }
        }
    }
    // What is still open was cut short.
    records.extend(open.map(|_| None));
    records
}

fn row(fields: &Fields, now: Timestamp) -> Option<Row> {
    let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
    let ran = fields.get("RUN_TIME").and_then(|text| text.split_whitespace().next()?.parse().ok());
    let local = |name: &str| parse_time(&field(name), now);
    let (start, end) =
        times::span(&Local, local("START_TIME"), local("FINISH_TIME"), ran.and_then(TimeDelta::try_seconds), now);
    Some(Row {
        id: fields.get("JOBID")?.clone(),
        state: field("STAT"),
        start,
        end,
        exit_code: field("EXIT_CODE").parse().ok(),
        exit_reason: field("EXIT_REASON"),
        pend_reason: field("PEND_REASON"),
        name: fields.get("JOB_NAME")?.clone(),
    })
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
pub(super) fn parse_time(text: &str, now: Timestamp) -> Option<NaiveDateTime> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [month, day, clock, rest @ ..] = words.as_slice() else { return None };
    let clock = if clock.matches(':').count() == 1 { format!("{clock}:00") } else { (*clock).to_owned() };
    let given = rest.first().and_then(|word| word.parse::<i32>().ok()).filter(|year| *year > 1970);
    let at =
        |year: i32| NaiveDateTime::parse_from_str(&format!("{year} {month} {day} {clock}"), "%Y %b %d %H:%M:%S").ok();
    if let Some(year) = given {
        return at(year);
    }
    let here = now.with_timezone(&Local).naive_local();
    // A limit may lie some weeks ahead.
    let candidates = [here.year() + 1, here.year(), here.year() - 1].into_iter().filter_map(at);
    candidates.into_iter().find(|time| *time - here < TimeDelta::days(60))
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
                    unknown_state("LSF", other);
                }
                Status::Running { start: self.start }
            }
        }
    }
}

impl Row {
    fn bad_end(&self) -> Ending {
        let word: String =
            self.exit_reason.chars().take_while(|letter| letter.is_ascii_uppercase() || *letter == '_').collect();
        let reason = match terminated(&word) {
            Some(reason) => reason,
            // It was killed before it started.
            None if self.start.is_none() && self.exit_code.is_none_or(|code| code == 0) => EndReason::Cancelled,
            None => EndReason::Failed,
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

/// What LSF's word for who or what ended a job means; `None` for others and for none.
pub(super) fn terminated(word: &str) -> Option<EndReason> {
    Some(match word {
        "TERM_RUNLIMIT" | "TERM_DEADLINE" | "TERM_WINDOW" | "TERM_CPULIMIT" => EndReason::TimeLimit,
        "TERM_OWNER" | "TERM_FORCE_OWNER" | "TERM_ADMIN" | "TERM_FORCE_ADMIN" | "TERM_EXTERNAL_SIGNAL" => {
            EndReason::Cancelled
        }
        "TERM_MEMLIMIT" | "TERM_SWAP" => EndReason::OutOfMemory,
        "TERM_PREEMPT" => EndReason::Preempted,
        "TERM_ZOMBIE" | "TERM_REMOVE_HUNG_JOB" | "TERM_ORPHAN_SYSTEM" | "TERM_LOAD" => EndReason::NodeFailure,
        _ => return None,
    })
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
