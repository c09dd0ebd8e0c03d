use super::*;

#[test]
fn records_are_read() {
    let text = "ƒ2SEGKuHBq|RUN||1796034878.5|||  |cp1xa\n\
                f2SEGKuHBr|SCHED|||||| a|b \n\
                f3|INACTIVE|TIMEOUT|1796034878.5|1796034938.25|-15|timeout|cp2xa\n";
    let rows = jobs(text).unwrap();
    assert_eq!((rows[0].id.as_str(), rows[0].name.as_str()), ("ƒ2SEGKuHBq", "cp1xa"));
    assert!(matches!(rows[0].status(), Status::Running { start: Some(_) }));
    assert_eq!(rows[1].name, "a|b");
    let Status::Ended(ending) = rows[2].status() else { panic!("{rows:?}") };
    assert_eq!((ending.reason, ending.signal.as_deref()), (EndReason::TimeLimit, Some("SIGTERM")));
    assert_eq!((ending.end.unwrap() - ending.start.unwrap()).num_milliseconds(), 59_750);
    assert_eq!(jobs("").unwrap(), []);
    assert!(jobs("ƒ2SEGKuHBq|RUN\n").is_err());
}

#[test]
fn pitfall_017_025_every_state_has_a_meaning() {
    let row = |state: &str, result: &str, exception: &str| {
        jobs(&format!("f2|{state}|{result}|1.5|2.5|1|{exception}|n")).unwrap().remove(0).status()
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
fn nodes_are_alike_or_not() {
    assert_eq!(node_shape("3|144|12\n1|48|4\n"), Some(NodeShape { cpus: 48, gpus: 4, mem_mb: 0 }));
    assert_eq!(node_shape("3|145|12\n"), None);
    assert_eq!(node_shape("0|0|0\n"), None);
}
