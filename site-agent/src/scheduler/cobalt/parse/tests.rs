//! Cobalt's own words, as its manual and recorded output have them, and what they mean.

use super::*;

const QUEUE: &str = "\
JobID   State      StartTime                             JobName
==========================================================================
41      queued     N/A                                   cp1xa
42      running    Mon Nov 30 10:34:38 2026 +0000 (UTC)  cp2xa
43      dep_hold   N/A                                   my job queued
44      running    Mon Nov 30 10:34:38 2026 +0000 (UTC)  my other job
";

#[test]
fn records_are_read() {
    let rows = qstat(QUEUE).unwrap().rows;
    let text = |time: Timestamp| time.to_rfc3339();
    assert_eq!((rows[0].name.as_str(), rows[0].status()), ("cp1xa", Status::Queued { reason: None }));
    assert_eq!(rows[1].name, "cp2xa");
    assert_eq!(rows[1].start.map(text).unwrap(), "2026-11-30T10:34:38+00:00");
    assert_eq!(qstat("").unwrap(), Listing::default());
}

#[test]
fn pitfall_030_a_name_with_spaces_shifts_no_column() {
    let rows = qstat(QUEUE).unwrap().rows;
    assert_eq!((rows[2].name.as_str(), rows[2].state.as_str()), ("my job queued", "dep_hold"));
    assert_eq!((rows[3].name.as_str(), rows[3].state.as_str()), ("my other job", "running"));
}

#[test]
fn pitfall_009_012_024_a_line_that_cant_be_read_hides_no_other() {
    assert!(qstat("JobID  User  WallTime\n====\n41 ann 00:10:00\n").is_err());
    for bad in ["45", "45 queued", "45 queued N/A", "No handlers could be found for logger"] {
        let listing = qstat(&format!("{QUEUE}{bad}\n")).unwrap();
        assert_eq!((listing.rows.len(), listing.skipped), (4, 1), "{bad}");
    }
}

#[test]
fn pitfall_017_025_every_state_has_a_meaning() {
    let status = |state: &str| Row { id: "1".into(), name: "a".into(), state: state.into(), start: None }.status();
    for state in ["queued", "user_hold", "admin_hold", "dep_hold", "maxrun_hold", "preempted", "dep_fail", "hold"] {
        assert!(matches!(status(state), Status::Queued { .. }), "{state}");
    }
    for state in ["starting", "running", "exiting", "killing", "preempting", "a_new_one"] {
        assert!(matches!(status(state), Status::Running { .. }), "{state}");
    }
}

#[test]
fn pitfall_016_the_end_stands_in_the_log_with_its_zone() {
    let log = |lines: &str| ending(&format!("jobid 41 submitted from terminal /dev/pts/1\n{lines}"));
    assert_eq!(log("Mon Nov 30 10:00:00 2026 +0000 (UTC) Info: job queued\n"), None);
    let done = log("Mon Nov 30 10:34:38 2026 +0000 (UTC) Info: task completed normally with an exit code of 3; initiating job cleanup and removal\n").unwrap();
    assert_eq!((done.reason, done.exit_code), (EndReason::Failed, Some(3)));
    assert_eq!(done.end.unwrap().to_rfc3339(), "2026-11-30T10:34:38+00:00");
    let cut = log("Mon Nov 30 10:34:38 2026 +0000 (UTC) Info: maximum execution time exceeded; initiating job termination\n\
                   Mon Nov 30 10:34:48 2026 +0000 (UTC) Info: task completed normally with an exit code of 143; initiating job cleanup\n").unwrap();
    assert_eq!((cut.reason, cut.exit_code), (EndReason::TimeLimit, Some(143)));
    assert_eq!(cut.end.unwrap().to_rfc3339(), "2026-11-30T10:34:48+00:00");
    let gone = log("Mon Nov 30 10:34:38 2026 +0000 (UTC) Info: user delete requested with signal SIGTERM\n").unwrap();
    assert_eq!(gone.reason, EndReason::Cancelled);
    assert_eq!(logged_id("jobid 41 submitted from terminal /dev/pts/1\n"), Some("41".into()));
    assert_eq!(logged_id(""), None);
}

#[test]
fn pitfall_041_the_id_stands_alone_in_its_line() {
    assert_eq!(job_id("41"), Some("41".into()));
    assert_eq!(job_id("Auto-selected queue 41"), None);
    assert_eq!(job_id(""), None);
    assert!(is_over("No jobs to delete"));
}

#[test]
fn pitfall_056_every_kind_of_end_stands_in_the_log() {
    let reason = |text: &str| ending(&format!("Mon Nov 30 10:34:38 2026 +0000 (UTC) Info: {text}\n")).unwrap().reason;
    assert_eq!(reason("job preempted by another"), EndReason::Preempted);
    assert_eq!(reason("task terminated: node failure on nid00012"), EndReason::NodeFailure);
    assert_eq!(reason("task was killed: out of memory"), EndReason::OutOfMemory);
}
