//! Faults of other systems' command lines, a test each.

use serde_json::json;

use crate::desk::{Desk, ids};

#[tokio::test]
async fn pitfall_122_rm_means_exactly_what_ls_shows() {
    let desk = Desk::new().await;
    for index in 0..6 {
        let (workdir, tag) = (format!("p/{index}"), format!("k={}", index % 2));
        desk.ok(&["job", "create", "-a", "Hello", "-w", &workdir, "-p", "name=x", "--tag", &tag, "-y"]);
    }
    desk.ok(&["job", "cancel", "1-3", "-y"]);
    desk.ok(&["job", "create", "-a", "Hello", "-w", "child", "-p", "name=x", "--parent", "6", "-y"]);
    desk.ok(&["job", "create", "-a", "Hello", "--array", "0-1", "-w", "a/{index}", "-p", "name=x", "-y"]);
    desk.ok(&["queue", "submit", "-n", "1", "-t", "5", "-j", "mpi"]);
    let login = [("username", "ann"), ("password", copal_tests::world::PASSWORD)];
    let token = desk.service.api().post_form("/auth/password/login", &login).await.ok();
    let user = desk.service.api().with_token(token["access_token"].as_str().unwrap());
    user.put("/jobs/4", &json!({"batch_job_id": 1})).await.ok();
    for selection in [
        vec!["--tag", "k=0", "--state", "FAILED"],
        vec!["2-5", "-ns", "FAILED"],
        vec!["-w", "p/4"],
        vec!["-a", "Hello", "--tag", "k=1", "--after", "1h"],
        vec!["-i", "1-3", "-i", "5", "--before", "2099-01-01T00:00", "--site", "all"],
        vec!["--array", "1", "-ns", "FAILED"],
        vec!["--batch-job", "1"],
        vec!["--parent", "6"],
    ] {
        let with = |verb: &[&'static str]| [verb, selection.as_slice()].concat();
        let shown = desk.json(&with(&["job", "ls", "--fields", "id"]));
        assert_ne!(shown, json!([]), "{selection:?}");
        assert_eq!(desk.json(&with(&["job", "rm", "--dry-run", "--fields", "id"])), shown, "{selection:?}");
        assert_eq!(desk.json(&with(&["job", "cancel", "--dry-run", "--fields", "id"])), shown, "{selection:?}");
        let modify = with(&["job", "modify", "--dry-run", "--priority", "5", "--fields", "id"]);
        assert_eq!(desk.json(&modify), shown, "{selection:?}");
    }
    // Nobody is there to be asked, so nothing goes without -y.
    let told = desk.refused(&["job", "rm", "--tag", "k=0"]);
    assert_eq!(
        told,
        "2\nerror: Delete 3 Jobs (1 PREPROCESSED, 2 FAILED)? Nobody can be asked here\nhint: add -y to answer yes\n"
    );
    assert_eq!(ids(&desk.json(&["job", "ls"])).len(), 9);
    desk.ok(&["job", "rm", "--tag", "k=0", "--state", "FAILED", "-y"]);
    assert_eq!(ids(&desk.json(&["job", "ls"])), [2, 4, 5, 6, 7, 8, 9]);
}

#[tokio::test]
async fn pitfall_123_queue_ls_shows_why_a_submission_was_refused() {
    let desk = Desk::new().await;
    desk.ok(&["queue", "submit", "-n", "1", "-t", "5", "-j", "mpi"]);
    let user = desk.service.api();
    let login = [("username", "ann"), ("password", copal_tests::world::PASSWORD)];
    let token = user.post_form("/auth/password/login", &login).await.ok();
    let refused = json!({"state": "submit_failed", "status_info": {"error": "would exceed per-project limit"}});
    user.with_token(token["access_token"].as_str().unwrap()).put("/batch-jobs/1", &refused).await.ok();
    let list = desk.ok(&["queue", "ls"]);
    assert!(list.contains("submit_failed") && list.contains("would exceed per-project limit"), "{list}");
    let shown = desk.ok(&["queue", "show", "1"]);
    assert!(shown.contains("error         would exceed per-project limit"), "{shown}");
    assert_eq!(ids(&desk.json(&["queue", "ls", "--state", "submit_failed"])), [1]);
}
