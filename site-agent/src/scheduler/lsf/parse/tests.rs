//! LSF's own words, as its manual and recorded output have them, and what they mean.

use chrono::DateTime;

use super::*;
use crate::scheduler::reply::SubmitReply::{self, Accepted, Refused, Unknown};

fn now() -> Timestamp {
    DateTime::parse_from_rfc3339("2026-11-30T12:00:00Z").unwrap().to_utc()
}

fn row(state: &str) -> Row {
    Row { state: state.into(), start: Some(now()), ..Row::default() }
}

#[test]
fn records_are_read_field_by_field() {
    let text = r#"{"COMMAND":"bjobs","JOBS":2,"RECORDS":[
        {"JOBID":"41","STAT":"PEND","START_TIME":"-","FINISH_TIME":"-","EXIT_CODE":"-","EXIT_REASON":"-",
         "PEND_REASON":"Not enough hosts to meet the job's spanning requirement;","JOB_NAME":"cp1xa"},
        {"JOBID":"40[3]","STAT":"EXIT","START_TIME":"Nov 30 10:34","FINISH_TIME":"Nov 30 10:35 L","EXIT_CODE":"143",
         "EXIT_REASON":"TERM_RUNLIMIT: job killed after reaching LSF run time limit","PEND_REASON":"","JOB_NAME":"a | b"}]}"#;
    let rows = bjobs(text, now()).unwrap().rows;
    let reason = Some("Not enough hosts to meet the job's spanning requirement".to_owned());
    assert_eq!(rows[0].status(), Status::Queued { reason });
    assert_eq!((rows[1].id.as_str(), rows[1].name.as_str()), ("40[3]", "a | b"));
    let Status::Ended(ending) = rows[1].status() else { panic!("{rows:?}") };
    assert_eq!((ending.reason, ending.signal.as_deref()), (EndReason::TimeLimit, Some("SIGTERM")));
    assert_eq!(ending.end.unwrap() - ending.start.unwrap(), TimeDelta::minutes(1));
}

#[test]
fn pitfall_017_025_every_state_has_a_meaning() {
    for state in ["PEND", "PSUSP", "WAIT"] {
        assert!(matches!(row(state).status(), Status::Queued { .. }), "{state}");
    }
    for state in ["RUN", "USUSP", "SSUSP", "PROV", "UNKWN", "ZOMBI", "A_NEW_ONE", ""] {
        assert!(matches!(row(state).status(), Status::Running { .. }), "{state}");
    }
    for state in ["DONE", "EXIT"] {
        assert!(matches!(row(state).status(), Status::Ended(_)), "{state}");
    }
    let ended = |reason: &str| match (Row { exit_reason: reason.into(), exit_code: Some(1), ..row("EXIT") }).status() {
        Status::Ended(ending) => ending.reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(ended("TERM_OWNER: job killed by owner"), EndReason::Cancelled);
    assert_eq!(ended("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit"), EndReason::OutOfMemory);
    assert_eq!(ended("TERM_PREEMPT: job killed after preemption"), EndReason::Preempted);
    assert_eq!(ended("TERM_ZOMBIE: job exited while LSF is not available"), EndReason::NodeFailure);
    assert_eq!(ended(""), EndReason::Failed);
}

#[test]
fn pitfall_059_an_empty_answer_is_an_absence_and_a_broken_one_is_none() {
    let answer =
        |stdout: &str, stderr: &str, code| Output { stdout: stdout.into(), stderr: stderr.into(), code: Some(code) };
    assert!(means_none(&answer("", "No job found in job list\n", 255)));
    assert!(means_none(&answer("", "", 0)));
    assert!(!means_none(&answer("", "LSF is down. Please wait ...\n", 255)));
    assert!(!means_none(&answer("", "", 1)));
    assert_eq!(bjobs("", now()).unwrap(), Listing::default());
    assert!(bjobs("{\"COMMAND\":\"bjobs\",\"JOBS\":1,\"RECORDS\":[{\"JOBID\":\"4", now()).is_err());
    assert!(bjobs("JOBID USER STAT\n", now()).is_err());
    let other = r#"{"COMMAND":"bjobs","JOBS":1,"RECORDS":[{"JOBID":"9","ERROR":"Job <9> is not found"}]}"#;
    assert_eq!(bjobs(other, now()).unwrap(), Listing::default());
}

#[test]
fn pitfall_058_a_line_break_in_a_field_stays_in_it() {
    let text = "{\"RECORDS\":[{\"JOBID\":\"7\",\"STAT\":\"EXIT\",\"EXIT_REASON\":\"Exi\\nted with exit code 1\",\"JOB_NAME\":\"cp7\"}]}";
    let rows = bjobs(text, now()).unwrap().rows;
    assert_eq!((rows.len(), rows[0].name.as_str(), rows[0].state.as_str()), (1, "cp7", "EXIT"));
}

#[test]
fn pitfall_016_a_time_without_a_year_is_the_nearest() {
    let at = |text: &str| parse_time(text, now()).map(|time| time.format("%F %T").to_string());
    assert_eq!(at("Nov 29 10:34").unwrap(), "2026-11-29 10:34:00");
    assert_eq!(at("Dec  1 10:34:05").unwrap(), "2026-12-01 10:34:05");
    assert_eq!(at("Jan  2 00:10 L").unwrap(), "2027-01-02 00:10:00");
    assert_eq!(at("Mar  2 00:10 E").unwrap(), "2026-03-02 00:10:00");
    assert_eq!(at("Feb 29 00:10 2024").unwrap(), "2024-02-29 00:10:00");
    assert_eq!(at("-"), None);
}

#[test]
fn pitfall_041_the_id_is_found_among_advice() {
    let reply = |stdout: &str, stderr: &str, code| {
        let answer = Output { stdout: stdout.into(), stderr: stderr.into(), code: Some(code) };
        SubmitReply::read("bsub", &answer, job_id)
    };
    assert_eq!(reply("Note: use -P 7\nJob <41> is submitted to queue <batch>.\n", "", 0), Accepted("41".into()));
    assert_eq!(
        reply("", "nosuch: No such queue. Job not submitted.\n", 255),
        Refused("nosuch: No such queue. Job not submitted.".into())
    );
    assert!(matches!(reply("", "LSF is down. Please wait ...\n", 255), Unknown(_)));
    assert!(matches!(reply("Submitting...\n", "", 0), Unknown(_)));
}

/// As LSF prints it, a field a line.
fn printed(records: &[&str]) -> String {
    let records: Vec<String> = records.iter().map(|record| format!("    {{\n{record}\n    }}")).collect();
    format!(
        "{{\n  \"COMMAND\":\"bjobs\",\n  \"JOBS\":{},\n  \"RECORDS\":[\n{}\n  ]\n}}\n",
        records.len(),
        records.join(",\n")
    )
}

#[test]
fn pitfall_009_one_name_that_is_no_json_hides_no_other_job() {
    let bad = "      \"JOBID\":\"40\",\n      \"STAT\":\"RUN\",\n      \"JOB_NAME\":\"my \"best\" \\x job\"";
    let good =
        "      \"JOBID\":\"41\",\n      \"STAT\":\"PEND\",\n      \"EXIT_CODE\":\"-\",\n      \"JOB_NAME\":\"cp1\"";
    let text = printed(&[bad, good]);
    assert!(serde_json::from_str::<Answer>(&text).is_err(), "the text must be broken");
    let listing = bjobs(&text, now()).unwrap();
    assert_eq!((listing.rows.len(), listing.skipped), (2, 0));
    assert_eq!((listing.rows[1].name.as_str(), listing.rows[1].state.as_str()), ("cp1", "PEND"));
    // Cut short: what came whole is there, of the rest nothing is known.
    let cut = bjobs(&text[..text.find("\"JOB_NAME\":\"cp1\"").unwrap()], now()).unwrap();
    assert_eq!((cut.rows.len(), cut.skipped), (1, 1));
    // The same in one line can't be taken apart.
    assert!(bjobs(&text.replace('\n', ""), now()).is_err());
}

#[test]
fn pitfall_016_the_run_time_tells_which_of_two_hours_is_meant() {
    let text = r#"{"RECORDS":[{"JOBID":"7","STAT":"DONE","START_TIME":"Nov 29 10:34","FINISH_TIME":"Nov 29 11:34","RUN_TIME":"3600 second(s)","JOB_NAME":"cp7"}]}"#;
    let row = bjobs(text, now()).unwrap().rows.remove(0);
    assert_eq!(row.end.unwrap() - row.start.unwrap(), TimeDelta::hours(1));
}
