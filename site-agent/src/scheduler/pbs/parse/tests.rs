//! PBS's own words, as its manual and recorded output have them, and what they mean.

use chrono::{TimeDelta, TimeZone};

use super::*;
use crate::scheduler::{command::Output, reply::SubmitReply};

const QSTAT: &str = include_str!("../../fixtures/pbs/qstat-f.txt");
const RUNNING: &str = include_str!("../../fixtures/pbs/qstat-f-running.txt");
const HISTORY: &str = include_str!("../../fixtures/pbs/qstat-x-f.json");
const OUTCOMES: &str = include_str!("../../fixtures/pbs/qsub-qdel-qstat-outcomes.txt");
const SERVER_DOWN: &str = include_str!("../../fixtures/pbs/server-down.txt");

/// A while after everything was recorded.
fn now() -> Timestamp {
    chrono::DateTime::from_timestamp(1_796_300_000, 0).unwrap()
}

fn qstat(text: &str) -> Vec<Row> {
    super::qstat(text, now()).unwrap().rows
}

fn submit_reply(answer: &Output) -> SubmitReply {
    SubmitReply::read("qsub", answer, job_id)
}

/// The recorded JSON of finished jobs in the form that `qstat -x -f` prints, long lines cut as it does.
fn history_as_text() -> String {
    let json: serde_json::Value = serde_json::from_str(HISTORY).unwrap();
    let mut text = String::new();
    for (id, job) in json["Jobs"].as_object().unwrap() {
        text += &format!("Job Id: {id}\n");
        for (key, value) in job.as_object().unwrap() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let line: Vec<char> = format!("    {key} = {value}").chars().collect();
            let pieces: Vec<String> = line.chunks(79).map(|piece| piece.iter().collect()).collect();
            text += &pieces.join("\n\t");
            text += "\n";
        }
        text += "\n";
    }
    text
}

fn by_name(rows: &[Row], name: &str) -> Status {
    rows.iter().find(|row| row.name == name).unwrap().status()
}

#[test]
fn recorded_queues_are_understood() {
    let rows = qstat(QSTAT);
    assert_eq!(rows[0].id, "8.head");
    assert_eq!(by_name(&rows, "held"), Status::Queued { reason: Some("held".into()) });
    assert_eq!(by_name(&rows, "stopped"), Status::Queued { reason: Some("Queue not started.".into()) });
    let Status::Running { start } = by_name(&qstat(RUNNING), "running") else { panic!() };
    let local = start.unwrap().with_timezone(&Local).format("%Y-%m-%d %H:%M:%S").to_string();
    assert_eq!(local, "2026-11-30 10:35:39");
}

#[test]
fn recorded_endings_are_understood() {
    let rows = qstat(&history_as_text());
    let ending = |name: &str| match by_name(&rows, name) {
        Status::Ended(ending) => (ending.reason, ending.exit_code, ending.signal),
        other => panic!("{name}: {other:?}"),
    };
    let signal = |name: &str| Some(name.to_owned());
    assert_eq!(ending("envjob"), (EndReason::Completed, Some(0), None));
    assert_eq!(ending("failed"), (EndReason::Failed, Some(1), None));
    assert_eq!(ending("tokill"), (EndReason::Cancelled, None, signal("SIGTERM")));
    assert_eq!(ending("timeout"), (EndReason::TimeLimit, None, None));
    assert_eq!(ending("tokill2"), (EndReason::Cancelled, None, None));
    assert_eq!(ending("onvn2"), (EndReason::Cancelled, None, signal("SIGUSR1")));
    let Status::Ended(failed) = by_name(&rows, "failed") else { panic!() };
    assert_eq!((failed.end.unwrap() - failed.start.unwrap()).num_seconds(), 1);
}

#[test]
fn pitfall_055_a_job_that_can_never_run_is_told_from_waiting() {
    let reason = "Insufficient amount of resource: ncpus (R: 36 A: 16 T: 16)";
    assert_eq!(by_name(&qstat(&history_as_text()), "big"), Status::Impossible { reason: reason.into() });
}

#[test]
fn pitfall_011_every_letter_has_a_meaning() {
    for letter in ["Q", "H", "W", "T"] {
        assert!(matches!(Row { state: letter.into(), ..Row::default() }.status(), Status::Queued { .. }), "{letter}");
    }
    for letter in ["B", "E", "R", "S", "U", "M", "?", ""] {
        assert!(matches!(Row { state: letter.into(), ..Row::default() }.status(), Status::Running { .. }), "{letter}");
    }
    for letter in ["F", "X"] {
        assert!(matches!(Row { state: letter.into(), ..Row::default() }.status(), Status::Ended(_)), "{letter}");
    }
}

#[test]
fn pitfall_002_003_004_005_what_users_export_hides_no_job() {
    let text = "Job Id: 9.srv\n    Job_Name = cp1\n    job_state = R\n    Variable_List = X=a\\'b,foo=005,BASH_FUNC_m%%=() {  echo \"x\"\n\
                }\n    job_state = F\n\nJob Id: 10.srv\n    Job_Name = cp2\n    job_state = Q\n";
    let rows = qstat(text);
    assert_eq!(rows.iter().map(|row| row.state.as_str()).collect::<Vec<_>>(), ["R", "Q"]);
}

#[test]
fn pitfall_010_a_long_server_name_is_read_whole() {
    let rows = qstat(
        "Job Id: 123.host-pbs-01.a-long-domain-name-of-a-site.example.org\n    Job_Name = cp1\n    job_state = R\n",
    );
    assert_eq!(rows[0].id, "123.host-pbs-01.a-long-domain-name-of-a-site.example.org");
}

#[test]
fn recorded_submissions_are_understood() {
    let mut lines = Vec::new();
    let mut command = String::new();
    let mut answer = Output { stdout: String::new(), stderr: String::new(), code: None };
    for line in OUTCOMES.lines() {
        if let Some(text) = line.strip_prefix("$ ") {
            command = text.chars().take(60).collect();
            answer = Output { stdout: String::new(), stderr: String::new(), code: None };
        } else if let Some(text) = line.strip_prefix("stdout: ") {
            answer.stdout += &format!("{text}\n");
        } else if let Some(text) = line.strip_prefix("stderr: ") {
            answer.stderr += &format!("{text}\n");
        } else if let Some(code) = line.strip_prefix("rc: ")
            && command.starts_with("qsub")
        {
            answer.code = code.trim().parse().ok();
            lines.push(format!("{command}\n    {:?}", submit_reply(&answer)));
        }
    }
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn pitfall_033_a_server_that_is_away_refuses_nothing() {
    assert!(SERVER_DOWN.contains("qsub: cannot connect"));
    let stderr = "Connection refused\nqsub: cannot connect to server head (errno=15010)".into();
    let answer = Output { stdout: String::new(), stderr, code: Some(162) };
    assert!(matches!(submit_reply(&answer), SubmitReply::Unknown(_)));
}

#[test]
fn pitfall_041_ids_of_any_shape() {
    for (line, id) in
        [("41.srv", "41.srv"), ("41[].srv", "41[].srv"), ("41", "41"), ("Request 41.srv submitted", "41.srv")]
    {
        assert_eq!(job_id(line).as_deref(), Some(id));
    }
    for line in ["", "Note: use -A", "qsub: 3 warnings", "abc.srv", ".srv"] {
        assert_eq!(job_id(line), None, "{line}");
    }
}

#[test]
fn pitfall_007_a_table_before_the_jobs_is_no_empty_queue() {
    let table = "Job id            Name             User              Time Use S Queue\n---------------- ---------------- ----------------  -------- - -----\n\
                 Job Id: 9.srv\n    Job_Name = cp1\n    job_state = R\n";
    assert!(super::qstat(table, now()).unwrap_err().starts_with("Job id  "));
    assert!(super::qstat("{\"timestamp\":1796034878,", now()).is_err());
    assert_eq!(super::qstat("\n", now()).unwrap(), Listing::default());
}

#[test]
fn pitfall_012_a_block_that_was_cut_short_makes_no_job_absent() {
    let listing =
        super::qstat("Job Id: 9.srv\n    Job_Name = cp1\n    job_state = R\n\nJob Id: 10.srv\n", now()).unwrap();
    assert_eq!((listing.rows.len(), listing.skipped), (1, 1));
}

#[test]
fn pitfall_056_a_preempted_job_did_not_complete() {
    let row =
        Row { state: "F".into(), exit_status: Some(271), comment: "Job preempted by 77.srv".into(), ..Row::default() };
    let Status::Ended(ending) = row.status() else { panic!() };
    assert_eq!(ending.reason, EndReason::Preempted);
}

#[test]
fn pitfall_016_the_walltime_tells_which_of_two_hours_is_meant() {
    let text = "Job Id: 9.srv\n    Job_Name = cp1\n    job_state = F\n    Exit_status = 0\n    stime = Mon Nov 30 10:00:00 2026\n    \
                obittime = Mon Nov 30 11:30:00 2026\n    resources_used.walltime = 01:30:00\n";
    let row = qstat(text).remove(0);
    assert_eq!(row.end.unwrap() - row.start.unwrap(), TimeDelta::minutes(90));
    let local = Local.with_ymd_and_hms(2026, 11, 30, 10, 0, 0).unwrap();
    assert_eq!(row.start.unwrap(), local);
}
