//! `POST /jobs/cancel` and what the holder of a running Job hears of it.

use std::time::{Duration, Instant};

use copal_tests::{World, id};
use serde_json::json;

#[tokio::test]
async fn waiting_jobs_are_failed_at_once_with_the_reason() {
    let world = World::new().await;
    let user = &world.user;
    let jobs = world.plain_jobs(3).await;
    let waiting = id(&world.job(&json!({"parent_ids": [jobs[2]]})).await);
    user.set_state(jobs[0], "JOB_FINISHED").await;
    let answer = user.post("/jobs/cancel", &json!({})).await.ok();
    assert_eq!(answer, json!({"cancelled": 3, "stopping": 0}));
    for job in [jobs[1], jobs[2], waiting] {
        let event = user.list(&format!("/events/?job_id={job}&limit=1")).await.remove(0);
        assert_eq!((&event["to_state"], &event["data"]["reason"]), (&json!("FAILED"), &json!("cancelled")), "{event}");
    }
    assert_eq!(user.state(jobs[0]).await, "JOB_FINISHED");
    let again = user.post("/jobs/cancel", &json!({})).await.ok();
    assert_eq!(again, json!({"cancelled": 0, "stopping": 0}));
}

#[tokio::test]
async fn filters_say_which_jobs_are_meant() {
    let world = World::new().await;
    let user = &world.user;
    let jobs = world.plain_jobs(3).await;
    user.put(&format!("/jobs/{}", jobs[1]), &json!({"tags": {"k": "v"}})).await.ok();
    let answer = user.post("/jobs/cancel?tags=k:v", &json!({})).await.ok();
    assert_eq!(answer["cancelled"], 1);
    assert_eq!(user.ids("/jobs/?state=FAILED").await, [jobs[1]]);
    user.post("/jobs/cancel?state=nonsense", &json!({})).await.invalid("state");
    assert_eq!(user.ids("/jobs/?state=FAILED").await, [jobs[1]]);
}

#[tokio::test]
async fn the_holder_of_a_running_job_is_told_to_kill_it() {
    let world = World::new().await;
    let user = &world.user;
    let job = world.plain_jobs(1).await[0];
    let session = world.session().await;
    user.acquire(session, &json!({})).await;
    user.report(session, job, &["RUNNING"]).await;
    let quiet = user.get(&format!("/sessions/{session}/signals")).await.ok();
    assert_eq!((&quiet["cancel"], &quiet["stop"]), (&json!([]), &json!(false)));

    let listener = {
        let user = user.clone();
        tokio::spawn(async move { user.get(&format!("/sessions/{session}/signals?wait_sec=30")).await.ok() })
    };
    let start = Instant::now();
    let answer = user.post(&format!("/jobs/cancel?id={job}"), &json!({})).await.ok();
    assert_eq!(answer, json!({"cancelled": 0, "stopping": 1}));
    let heard = listener.await.unwrap();
    assert_eq!((&heard["cancel"], &heard["stop"]), (&json!([job]), &json!(false)));
    assert!(start.elapsed() < Duration::from_secs(10), "the holder heard of it only after {:?}", start.elapsed());
    assert_eq!(user.state(job).await, "RUNNING");
    // The signal stays until it is obeyed.
    let still = user.get(&format!("/sessions/{session}/signals?wait_sec=5")).await.ok();
    assert_eq!(still["cancel"], json!([job]));

    let killed = json!({"job_id": job, "state": "FAILED", "state_data": {"reason": "cancelled"}});
    assert_eq!(user.update(session, &[killed]).await, json!({"accepted": 1, "rejected": []}));
    assert_eq!(user.state(job).await, "FAILED");
    let quiet = user.get(&format!("/sessions/{session}/signals")).await.ok();
    assert_eq!(quiet["cancel"], json!([]));
}

#[tokio::test]
async fn a_cancelled_job_whose_holder_is_lost_does_not_run_again() {
    let world = World::new().await;
    let user = &world.user;
    let job = world.plain_jobs(1).await[0];
    let session = world.session().await;
    user.acquire(session, &json!({})).await;
    user.report(session, job, &["RUNNING"]).await;
    user.post("/jobs/cancel", &json!({})).await.ok();
    user.delete(&format!("/sessions/{session}")).await.deleted();
    assert_eq!(user.state(job).await, "FAILED");
}

#[tokio::test]
async fn a_job_acquired_but_not_started_is_cancelled_at_once() {
    let world = World::new().await;
    let user = &world.user;
    let job = world.plain_jobs(1).await[0];
    let session = world.session().await;
    user.acquire(session, &json!({})).await;
    user.post("/jobs/cancel", &json!({})).await.ok();
    let row = user.get_job(job).await;
    if row["state"] == "FAILED" {
        assert_eq!(row["session_id"], json!(null));
    }
    let late = user.update(session, &[json!({"job_id": job, "state": "RUNNING"})]).await;
    let signals = user.get(&format!("/sessions/{session}/signals")).await.ok();
    assert!(
        late["accepted"] == 0 || signals["cancel"] == json!([job]),
        "the holder must learn of it in one of two ways: {late} {signals}"
    );
}

#[tokio::test]
async fn a_batch_job_that_its_owner_wants_gone_stops_its_launcher() {
    let world = World::new().await;
    let user = &world.user;
    let batch_job = user.batch_job(world.site, &json!({})).await;
    user.put(&format!("/batch-jobs/{batch_job}"), &json!({"state": "running"})).await.ok();
    let session = user.session(world.site, Some(batch_job)).await;
    let listener = {
        let user = user.clone();
        tokio::spawn(async move { user.get(&format!("/sessions/{session}/signals?wait_sec=30")).await.ok() })
    };
    let start = Instant::now();
    user.put(&format!("/batch-jobs/{batch_job}"), &json!({"state": "pending_deletion"})).await.ok();
    assert_eq!(listener.await.unwrap()["stop"], true);
    assert!(start.elapsed() < Duration::from_secs(10), "the launcher heard of it only after {:?}", start.elapsed());
}
