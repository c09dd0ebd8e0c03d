//! `POST /sessions/{id}/updates`: row by row, in order, idempotent, fenced (DESIGN, section 4).

use copal_tests::{World, id};
use serde_json::{Value, json};

/// A Session that holds these new Jobs.
async fn holder(world: &World, count: usize) -> (i64, Vec<i64>) {
    let jobs = world.plain_jobs(count).await;
    let session = world.session().await;
    assert_eq!(world.user.acquire(session, &json!({})).await.len(), count);
    (session, jobs)
}

#[tokio::test]
async fn many_jobs_and_several_steps_of_one_in_a_call() {
    let world = World::new().await;
    let (session, jobs) = holder(&world, 3).await;
    let updates = [
        json!({"job_id": jobs[0], "state": "RUNNING", "state_timestamp": "2026-11-30T10:00:00.000001"}),
        json!({"job_id": jobs[1], "state": "RUNNING"}),
        json!({"job_id": jobs[0], "state": "RUN_DONE", "state_timestamp": "2026-11-30T10:00:01.000002",
            "return_code": 0, "state_data": {"message": "fine"}}),
        json!({"job_id": jobs[2], "state": "RUNNING"}),
        json!({"job_id": jobs[1], "state": "RUN_ERROR", "return_code": 3,
            "state_data": {"reason": "exit code 3", "error_tail": "last\nlines"}}),
    ];
    assert_eq!(world.user.update(session, &updates).await, json!({"accepted": 5, "rejected": []}));
    let states: Vec<Value> = world.user.list("/jobs/").await.iter().map(|row| row["state"].clone()).collect();
    assert_eq!(states, ["JOB_FINISHED", "FAILED", "RUNNING"]);
    let done = world.user.list(&format!("/events/?job_id={}&to_state=RUN_DONE", jobs[0])).await.remove(0);
    assert_eq!((&done["timestamp"], &done["data"]["message"]), (&json!("2026-11-30T10:00:01.000002"), &json!("fine")));
    let error = world.user.list(&format!("/events/?job_id={}&to_state=RUN_ERROR", jobs[1])).await.remove(0);
    assert_eq!(error["data"]["error_tail"], "last\nlines");
    let history = world.user.history(jobs[1]).await;
    assert_eq!(history[history.len() - 3..], ["RUNNING", "RUN_ERROR", "FAILED"]);
}

#[tokio::test]
async fn one_bad_row_does_not_block_the_others() {
    let world = World::new().await;
    let (session, jobs) = holder(&world, 3).await;
    let (_, others) = holder_of_others(&world).await;
    let updates = [
        json!({"job_id": jobs[0], "state": "RUN_DONE"}),
        json!({"job_id": jobs[1], "state": "RUNNING"}),
        json!({"job_id": others, "state": "RUNNING"}),
        json!({"job_id": 999_999, "state": "RUNNING"}),
        json!({"job_id": jobs[2], "state": "RUNNING"}),
        json!({"job_id": jobs[2], "state": "PREPROCESSED"}),
    ];
    let answer = world.user.update(session, &updates).await;
    assert_eq!(answer["accepted"], 2, "{answer}");
    let rejected: Vec<Value> = answer["rejected"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| json!([row["index"], row["job_id"], row["reason"]]))
        .collect();
    assert_eq!(
        rejected,
        [
            json!([0, jobs[0], "illegal_transition"]),
            json!([2, others, "not_held"]),
            json!([3, 999_999, "not_held"]),
            json!([5, jobs[2], "illegal_transition"]),
        ]
    );
    for (job, state) in
        [(jobs[0], "PREPROCESSED"), (jobs[1], "RUNNING"), (others, "PREPROCESSED"), (jobs[2], "RUNNING")]
    {
        assert_eq!(world.user.state(job).await, state);
    }
}

async fn holder_of_others(world: &World) -> (i64, i64) {
    let job = id(&world.plain_job(&json!({"workdir": "others"})).await);
    let session = world.session().await;
    assert_eq!(world.user.acquire(session, &json!({})).await.len(), 1);
    (session, job)
}

#[tokio::test]
async fn the_same_batch_key_again_changes_nothing() {
    let world = World::new().await;
    let (session, jobs) = holder(&world, 2).await;
    let body = json!({"batch_key": uuid::Uuid::new_v4(), "updates": [
        {"job_id": jobs[0], "state": "RUNNING"},
        {"job_id": jobs[1], "state": "RUN_DONE"},
        {"job_id": jobs[0], "state": "RUN_TIMEOUT"}]});
    let path = format!("/sessions/{session}/updates");
    let first = world.user.post(&path, &body).await.ok();
    assert_eq!(first["accepted"], 2);
    let (events, rows) = (world.user.list("/events/").await, world.user.list("/jobs/").await);
    let second = world.user.post(&path, &body).await.ok();
    assert_eq!(second, first);
    assert_eq!(world.user.list("/events/").await, events);
    assert_eq!(world.user.list("/jobs/").await, rows);
    assert_eq!(world.user.get(&format!("/jobs/{}/attempts", jobs[0])).await.ok().as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn one_key_sent_twice_at_once_counts_once() {
    let world = World::new().await;
    let (session, jobs) = holder(&world, 1).await;
    let body = json!({"batch_key": uuid::Uuid::new_v4(), "updates": [
        {"job_id": jobs[0], "state": "RUNNING"}, {"job_id": jobs[0], "state": "RUN_TIMEOUT"}]});
    let path = format!("/sessions/{session}/updates");
    let calls = (0..8).map(|_| world.user.post(&path, &body));
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.ok(), json!({"accepted": 2, "rejected": []}));
    }
    let runs = world.user.count(&format!("/events/?job_id={}&to_state=RUNNING", jobs[0])).await;
    assert_eq!(runs, 1);
}

#[tokio::test]
async fn a_job_that_went_to_another_session_is_fenced() {
    let world = World::new().await;
    let user = &world.user;
    let (first, jobs) = holder(&world, 1).await;
    user.report(first, jobs[0], &["RUNNING"]).await;
    // The owner says that the run is over; another Session gets the Job.
    user.set_state(jobs[0], "RUN_TIMEOUT").await;
    let second = world.session().await;
    assert_eq!(user.acquire(second, &json!({})).await.len(), 1);
    user.report(second, jobs[0], &["RUNNING"]).await;
    let late = user.update(first, &[json!({"job_id": jobs[0], "state": "RUN_DONE"})]).await;
    assert_eq!((&late["accepted"], &late["rejected"][0]["reason"]), (&json!(0), &json!("not_held")));
    assert_eq!(user.state(jobs[0]).await, "RUNNING");
    assert_eq!(user.get_job(jobs[0]).await["session_id"], second);
}

#[tokio::test]
async fn the_end_of_a_run_frees_the_job() {
    let world = World::new().await;
    let (session, jobs) = holder(&world, 1).await;
    world.user.report(session, jobs[0], &["RUNNING", "RUN_TIMEOUT"]).await;
    assert_eq!(world.user.get_job(jobs[0]).await["session_id"], json!(null));
    let late = world.user.update(session, &[json!({"job_id": jobs[0], "state": "RUNNING"})]).await;
    assert_eq!(late["rejected"][0]["reason"], "not_held");
    assert_eq!(world.user.acquire(session, &json!({})).await.len(), 1);
}

#[tokio::test]
async fn a_finished_jobs_children_follow_in_the_same_call() {
    let world = World::new().await;
    let (session, jobs) = holder(&world, 2).await;
    let child = id(&world.plain_job(&json!({"workdir": "child", "parent_ids": jobs})).await);
    let updates: Vec<Value> = ["RUNNING", "RUN_DONE"]
        .iter()
        .flat_map(|state| jobs.iter().map(move |job| json!({"job_id": job, "state": state})))
        .collect();
    world.user.update(session, &updates).await;
    assert_eq!(world.user.state(child).await, "PREPROCESSED");
}

#[tokio::test]
async fn bad_calls_change_nothing() {
    let world = World::new().await;
    let (session, jobs) = holder(&world, 1).await;
    let path = format!("/sessions/{session}/updates");
    let good = json!({"job_id": jobs[0], "state": "RUNNING"});
    let key = uuid::Uuid::new_v4();
    for (body, field) in [
        (json!({"updates": [good]}), "batch_key"),
        (json!({"batch_key": "no uuid", "updates": [good]}), "batch_key"),
        (json!({"batch_key": key}), "updates"),
        (json!({"batch_key": key, "updates": [good, {"job_id": jobs[0], "state": "DONE"}]}), "state"),
        (json!({"batch_key": key, "updates": [good, {"state": "RUN_DONE"}]}), "job_id"),
    ] {
        world.user.post(&path, &body).await.invalid(field);
    }
    let flood: Vec<&Value> = std::iter::repeat_n(&good, 5001).collect();
    let answer = world.user.post(&path, &json!({"batch_key": key, "updates": flood})).await;
    assert!(matches!(answer.status, 400 | 422), "{answer:?}");
    assert_eq!(world.user.state(jobs[0]).await, "PREPROCESSED");
    world.user.report(session, jobs[0], &["RUNNING"]).await;
}
