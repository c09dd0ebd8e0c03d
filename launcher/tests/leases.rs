//! What the real launcher makes of answers by which it could lose runs and results, of a service that is broken on
//! purpose.

mod support;

use copal_client::launcher_exit::{ExitReason, LauncherExit};
use copal_schemas::BatchJobId;
use serde_json::json;
use support::service::{Mood, Service};

const QUICK: &str = "launcher: {idle_ttl_sec: 0.5, kill_grace_sec: 1, cpus_per_node: 4}\n";
/// Ends when the test makes the file `gate` at the Site.
const GATED: &str = "while [ ! -e ../../../gate ]; do sleep 0.02; done";
const SERIAL: &[&str] = &["-j", "serial", "-t", "10", "--batch-job-id", "7"];

#[test]
fn a_proxys_page_in_the_place_of_the_service_ends_no_session() {
    let service = Service::start(QUICK);
    service.job(1, GATED);
    let mut launcher = service.launch(SERIAL);
    service.wait_for(1, "RUNNING");
    service.mood(Mood::Hidden);
    service.wait_until("some calls to be answered by the proxy", |state| (state.turned_away > 3).then_some(()));
    service.mood(Mood::Well);
    service.write("site/gate", "", 0o644);
    service.wait_for(1, "RUN_DONE");
    assert_eq!(launcher.wait(), Some(0));
    assert_eq!(service.states(1), ["RUNNING", "RUN_DONE"]);
    assert_eq!(service.state().deleted, [1], "the one Session");
}

#[test]
fn pitfall_108_an_end_that_the_service_does_not_take_with_its_details_is_told_without() {
    let service = Service::start(QUICK);
    service.set(|state| state.fussy = Some(3));
    (1..=4).for_each(|id| service.job_with(id, 2, json!({})));
    let mut launcher = service.launch(SERIAL);
    for id in 1..=4 {
        let end = service.wait_for(id, "RUN_DONE");
        assert_eq!(end.get("usage").is_some(), id != 3, "{end}");
        assert_eq!((&end["return_code"], service.states(id).len()), (&json!(0), 2));
    }
    assert_eq!(launcher.wait(), Some(0));
}

#[test]
fn pitfall_044_a_batch_job_that_is_started_once_more_has_no_exit_record_while_it_runs() {
    let service = Service::start(QUICK);
    let earlier = r#"{"reason":"end_of_time","message":"got SIGTERM","time":"2026-11-30T10:00:00+00:00","runs":3}"#;
    service.write("site/qsubmit/7.launcher.json", earlier, 0o644);
    let record = || LauncherExit::read(&service.path("site/qsubmit"), BatchJobId(7));
    assert!(record().is_some());
    service.job(1, GATED);
    let mut launcher = service.launch(SERIAL);
    service.wait_for(1, "RUNNING");
    assert_eq!(record(), None);
    service.write("site/gate", "", 0o644);
    assert_eq!(launcher.wait(), Some(0));
    assert_eq!(record().map(|exit| exit.reason), Some(ExitReason::Idle));
}
