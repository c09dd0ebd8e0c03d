//! Flux's own words, as its manual and recorded output have them, and what they mean.

use super::*;

#[test]
fn records_are_read() {
    let text = "ƒ2SEGKuHBq|RUN||1796034878.5|||  |cp1xa\n\
                f2SEGKuHBr|SCHED|||||| a|b \n\
                f3|INACTIVE|TIMEOUT|1796034878.5|1796034938.25|-15|timeout|cp2xa\n";
    let rows = jobs(text).rows;
    assert_eq!((rows[2].id.as_str(), rows[2].name.as_str()), ("ƒ2SEGKuHBq", "cp1xa"));
    assert!(matches!(rows[2].status(), Status::Running { start: Some(_) }));
    let Status::Ended(ending) = rows[0].status() else { panic!("{rows:?}") };
    assert_eq!((ending.reason, ending.signal.as_deref()), (EndReason::TimeLimit, Some("SIGTERM")));
    assert_eq!((ending.end.unwrap() - ending.start.unwrap()).num_milliseconds(), 59_750);
    assert_eq!(jobs(""), Listing::default());
}

#[test]
fn pitfall_009_012_024_030_a_line_that_cant_be_read_hides_no_other() {
    let listing = jobs("f2SEGKuHBr|SCHED|||||| a|b my job\nf2SEG|RUN\nID STATE NAME\nf3|RUN||1.5||||cp2xa\n");
    assert_eq!(listing.skipped, 2);
    assert_eq!(listing.rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["cp2xa", "a|b my job"]);
}

#[test]
fn pitfall_017_025_every_state_has_a_meaning() {
    let row = |state: &str, result: &str, exception: &str| {
        jobs(&format!("f2|{state}|{result}|1.5|2.5|1|{exception}|n")).rows.remove(0).status()
    };
    for state in ["NEW", "DEPEND", "PRIORITY", "SCHED", "S"] {
        assert!(matches!(row(state, "", ""), Status::Queued { .. }), "{state}");
    }
    for state in ["RUN", "CLEANUP", "A_NEW_ONE"] {
        assert!(matches!(row(state, "", ""), Status::Running { .. }), "{state}");
    }
    let ended = |result, exception| match row("INACTIVE", result, exception) {
        Status::Ended(ending) => ending.reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(ended("COMPLETED", ""), EndReason::Completed);
    assert_eq!(ended("FAILED", ""), EndReason::Failed);
    assert_eq!(ended("FAILED", "node-failure"), EndReason::NodeFailure);
    assert_eq!(ended("CANCELED", "cancel"), EndReason::Cancelled);
}

#[test]
fn pitfall_041_ids_in_all_their_forms() {
    for id in ["ƒ2SEGKuHBq", "f2SEGKuHBq", "14593158144"] {
        assert_eq!(job_id(id).as_deref(), Some(id));
    }
    for other in ["flux-job: warning", "f0", "ƒ", "", "fine."] {
        assert_eq!(job_id(other), None, "{other}");
    }
}

#[test]
fn pitfall_047_056_endings_are_told_apart() {
    let ended = |result: &str, exception: &str| {
        let row = jobs(&format!("f2|INACTIVE|{result}|1.5|2.5|1|{exception}|n")).rows.remove(0);
        match row.status() {
            Status::Ended(ending) => ending.reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ended("FAILED", "preempt"), EndReason::Preempted);
    assert_eq!(ended("FAILED", "lost-shell"), EndReason::NodeFailure);
    assert_eq!(ended("FAILED", "oom"), EndReason::OutOfMemory);
    assert_eq!(ended("TIMEOUT", "timeout"), EndReason::TimeLimit);
}
