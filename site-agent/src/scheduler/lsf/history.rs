//! How jobs ended that bjobs has forgotten, from `bhist -l`. It breaks lines at 80 columns in the middle
//! of words, so what matters is looked for in a record without any blanks.

use chrono::{Local, NaiveDateTime};
use copal_schemas::Timestamp;

use super::parse::terminated;
use crate::scheduler::{
    EndReason, Ending, Status,
    listing::{Listing, Record},
    times,
};

/// A job in the event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    id: String,
    name: String,
    /// `None` while it has not ended, as far as the log says.
    ending: Option<Ending>,
}

impl Record for Past {
    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn status(&self) -> Status {
        self.ending.clone().map_or(Status::Unknown, Status::Ended)
    }
}

/// Reads `bhist -l`. A record without an end says nothing: the log may lie behind.
#[must_use]
pub fn bhist(text: &str, now: Timestamp) -> Listing<Past> {
    let mut records: Vec<Vec<String>> = Vec::new();
    for line in text.lines() {
        match (line.starts_with("Job <"), records.last_mut()) {
            (true, _) => records.push(vec![line.into()]),
            // The blanks at the beginning say that the line goes on with the one before.
            (false, Some(record)) if line.starts_with(char::is_whitespace) => {
                if let Some(last) = record.last_mut() {
                    last.push_str(line.trim());
                }
            }
            (false, Some(record)) if !line.trim().is_empty() => record.push(line.into()),
            _ => {}
        }
    }
    Listing::of(records.iter().map(|record| past(record, now)))
}

fn past(record: &[String], now: Timestamp) -> Option<Past> {
    let heading = dense(record.first()?);
    let (mut start, mut end, mut code, mut reason) = (None, None, None, None);
    for line in &record[1..] {
        let text = dense(line);
        if text.contains(":Starting(") || text.contains(":Dispatched") {
            start = start.or(stamp(line, now));
        } else if text.contains(":Donesuccessfully") {
            (end, code, reason) = (stamp(line, now), Some(0), Some(EndReason::Completed));
        } else if text.contains(":Exited") {
            end = stamp(line, now);
            code = between(&text, "withexitcode", ".").and_then(|code| code.parse().ok());
            reason = reason.or(Some(EndReason::Failed));
        } else if text.contains(":Completed<exit>") || text.contains("TERM_") {
            let word: String = text
                .find("TERM_")
                .map_or("", |at| &text[at..])
                .chars()
                .take_while(|letter| letter.is_ascii_uppercase() || *letter == '_')
                .collect();
            reason = terminated(&word).or(reason).or(Some(EndReason::Failed));
            end = end.or(stamp(line, now));
        }
    }
    let (start, end) = times::span(&Local, start, end, None, now);
    let ending = reason.map(|reason| Ending { start, end, reason, exit_code: code, signal: None });
    Some(Past { id: between(&heading, "Job<", ">")?.into(), name: between(&heading, "JobName<", ">")?.into(), ending })
}

fn dense(line: &str) -> String {
    line.split_whitespace().collect()
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(after).map(|(found, _)| found)
}

/// The time at the beginning of a line: `Mon Nov 30 10:34:38`, with the year behind it or not.
fn stamp(line: &str, now: Timestamp) -> Option<NaiveDateTime> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, month, day, clock, rest @ ..] = words.as_slice() else { return None };
    let year = rest.first().map(|word| word.trim_end_matches(':')).filter(|word| word.len() == 4).unwrap_or_default();
    super::parse::parse_time(&format!("{month} {day} {} {year}", clock.trim_end_matches(':')), now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Job <41>, Job Name <cp1>, User <ann>, Project <default>, Command <#!/bin/bash;
                     exec launcher>
Mon Nov 30 10:34:38: Submitted from host <login1>, to Queue <normal>, CWD <$HOM
                     E>, Output File </s/cp1.out>;
Mon Nov 30 10:34:39: Dispatched 1 Task(s) on Host(s) <h1>, Allocated 1 Slot(s) 
                     on Host(s) <h1>;
Mon Nov 30 10:34:40: Starting (Pid 4711);
Mon Nov 30 10:35:40: Exi
                     ted with exit code 143. The CPU time used is 0.1 seconds;
Mon Nov 30 10:35:40: Completed <exit>; TERM_RUN
                     LIMIT: job killed after reaching LSF run time limit;

Summary of time in seconds spent in various states by  Mon Nov 30 10:35:40
  PEND     PSUSP    RUN      USUSP    SSUSP    UNKWN    TOTAL
  1        0        61       0        0        0        62
------------------------------------------------------------------------------

Job <42>, Job Name <cp2>, User <ann>, Project <default>, Command <true>
Mon Nov 30 10:34:38: Submitted from host <login1>;
Mon Nov 30 10:34:39: Starting (Pid 4712);
Mon Nov 30 10:34:41: Done successfully. The CPU time used is 0.1 seconds;
------------------------------------------------------------------------------

Job <43>, Job Name <cp3>, User <ann>, Project <default>, Command <true>
Mon Nov 30 10:34:38: Submitted from host <login1>;
";

    #[test]
    fn pitfall_058_keywords_that_are_broken_over_lines_are_found() {
        let now = chrono::DateTime::parse_from_rfc3339("2026-12-01T12:00:00Z").unwrap().to_utc();
        let listing = bhist(TEXT, now);
        let ending = |place: usize| listing.rows[place].ending.clone().unwrap();
        assert_eq!((ending(0).reason, ending(0).exit_code), (EndReason::TimeLimit, Some(143)));
        assert_eq!((ending(0).end.unwrap() - ending(0).start.unwrap()).num_seconds(), 61);
        assert_eq!((listing.rows[0].id.as_str(), listing.rows[0].name.as_str()), ("41", "cp1"));
        assert_eq!((ending(1).reason, ending(1).exit_code), (EndReason::Completed, Some(0)));
        assert_eq!(listing.rows[2].status(), Status::Unknown);
        assert_eq!(bhist("No matching job found\n", now), Listing::default());
    }
}
