//! What an owner's change of `state` does beside changing it (contract, section 5, "side effects").

use copal_tests::{World, id};
use serde_json::{Value, json};

async fn last_event(world: &World, job: i64) -> Value {
    world.user.list(&format!("/events/?job_id={job}&limit=1")).await.remove(0)
}

#[tokio::test]
async fn an_owner_may_jump_about() {
    let world = World::new().await;
    let job = id(&world.job(&json!({})).await);
    let states = [
        "RUNNING",
        "FAILED",
        "RUN_DONE",
        "JOB_FINISHED",
        "PREPROCESSED",
        "RUN_TIMEOUT",
        "RESTART_READY",
        "RUN_ERROR",
        "STAGED_IN",
    ];
    for state in states {
        world.user.set_state(job, state).await;
        let event = last_event(&world, job).await;
        assert_eq!(event["to_state"], state, "{event}");
        assert_eq!(world.user.state(job).await, state);
    }
    assert_eq!(world.user.count(&format!("/events/?job_id={job}")).await, states.len() as i64 + 1);
}

/// Balsam's clients read back the state that they set. A Copal App's Job would wait for nobody, so it goes on.
#[tokio::test]
async fn a_job_put_back_to_its_beginning_stays_or_goes_on() {
    let world = World::new().await;
    let balsam = id(&world.job(&json!({})).await);
    let copal = id(&world.plain_job(&json!({"workdir": "plain"})).await);
    for (state, left_at) in [("CREATED", "CREATED"), ("AWAITING_PARENTS", "AWAITING_PARENTS"), ("READY", "STAGED_IN")] {
        for (job, after) in [(balsam, left_at), (copal, "PREPROCESSED")] {
            world.user.set_state(job, "RUN_TIMEOUT").await;
            let before = world.user.count(&format!("/events/?job_id={job}")).await;
            world.user.set_state(job, state).await;
            assert_eq!(world.user.state(job).await, after, "put to {state}");
            if job == balsam {
                assert_eq!(world.user.count(&format!("/events/?job_id={job}")).await, before + 1, "put to {state}");
            }
        }
    }
}

/// What waits for a parent is still woken by it.
#[tokio::test]
async fn a_job_put_back_to_await_its_parents_follows_them() {
    let world = World::new().await;
    let parent = id(&world.job(&json!({})).await);
    let child = id(&world.job(&json!({"workdir": "child", "parent_ids": [parent]})).await);
    world.user.set_state(child, "RUN_ERROR").await;
    world.user.set_state(child, "AWAITING_PARENTS").await;
    assert_eq!(world.user.state(child).await, "AWAITING_PARENTS");
    world.user.set_state(parent, "JOB_FINISHED").await;
    assert_eq!(world.user.state(child).await, "STAGED_IN");
}

#[tokio::test]
async fn a_jump_off_the_table_is_marked_forced() {
    let world = World::new().await;
    let job = id(&world.job(&json!({})).await);
    world.user.set_state(job, "RUN_DONE").await;
    assert_eq!(last_event(&world, job).await["data"]["forced"], true);
}

#[tokio::test]
async fn the_same_state_again_is_no_event() {
    let world = World::new().await;
    let user = &world.user;
    let job = id(&world.job(&json!({})).await);
    user.set_state(job, "STAGED_IN").await;
    user.put(&format!("/jobs/{job}"), &json!({"state": null, "num_nodes": 2})).await.ok();
    assert_eq!(user.count(&format!("/events/?job_id={job}")).await, 1);
    assert_eq!(user.get_job(job).await["num_nodes"], 2);
}

#[tokio::test]
async fn the_events_time_and_data_are_kept_to_the_microsecond() {
    let world = World::new().await;
    let job = id(&world.job(&json!({})).await);
    let set = |state: &'static str, time: Value| {
        let change = json!({"state": state, "state_timestamp": time, "state_data": {"message": "OK: done!", "n": 1}});
        let user = world.user.clone();
        async move { user.put(&format!("/jobs/{job}"), &change).await.ok() }
    };
    for (given, kept) in [
        ("2026-11-30T10:06:02.078662", "2026-11-30T10:06:02.078662"),
        ("2026-11-30 10:06:02.5", "2026-11-30T10:06:02.500000"),
        ("2026-11-30T12:06:02.000001+02:00", "2026-11-30T10:06:02.000001"),
        ("2026-11-30T10:06:02Z", "2026-11-30T10:06:02"),
    ] {
        world.user.set_state(job, "STAGED_IN").await;
        set("PREPROCESSED", json!(given)).await;
        let events = world.user.list(&format!("/events/?job_id={job}&to_state=PREPROCESSED&ordering=timestamp")).await;
        assert!(events.iter().any(|event| event["timestamp"] == kept), "{given}: {events:?}");
        assert!(events.iter().all(|event| event["data"]["message"] == "OK: done!" && event["data"]["n"] == 1));
    }
    world.user.set_state(job, "STAGED_IN").await;
    set("RUNNING", json!(null)).await;
    world.user.get("/events/").await.ok();
}

#[tokio::test]
async fn an_owners_change_of_state_frees_the_job_unless_it_runs() {
    let world = World::new().await;
    let user = &world.user;
    let job = id(&world.plain_job(&json!({})).await);
    let batch_job = user.batch_job(world.site, &json!({})).await;
    let session = user.session(world.site, Some(batch_job)).await;
    user.acquire(session, &json!({})).await;
    user.set_state(job, "RUNNING").await;
    let running = user.get_job(job).await;
    assert_eq!((&running["session_id"], &running["batch_job_id"]), (&json!(session), &json!(batch_job)));
    user.set_state(job, "RUN_DONE").await;
    let done = user.get_job(job).await;
    assert_eq!((&done["session_id"], &done["batch_job_id"]), (&json!(null), &json!(batch_job)));
}

#[tokio::test]
async fn ready_without_input_is_staged_in_at_once() {
    let world = World::new().await;
    let job = id(&world.job(&json!({})).await);
    world.user.set_state(job, "RUNNING").await;
    let before = world.user.count(&format!("/events/?job_id={job}")).await;
    world.user.set_state(job, "READY").await;
    assert_eq!(world.user.state(job).await, "STAGED_IN");
    let event = last_event(&world, job).await;
    assert_eq!(event["to_state"], "STAGED_IN");
    assert_eq!(event["data"]["message"], "Skipped stage in");
    assert_eq!(world.user.count(&format!("/events/?job_id={job}")).await, before + 1);
}

#[tokio::test]
async fn postprocessed_and_staged_out_end_a_job_with_nothing_to_stage_out() {
    let world = World::new().await;
    let job = id(&world.job(&json!({})).await);
    world.user.set_state(job, "RUN_DONE").await;
    world.user.set_state(job, "POSTPROCESSED").await;
    assert_eq!(world.user.state(job).await, "JOB_FINISHED");
    assert_eq!(last_event(&world, job).await["data"]["message"], "Skipped stage out");
    world.user.set_state(job, "RUN_DONE").await;
    world.user.set_state(job, "STAGED_OUT").await;
    assert_eq!(world.user.state(job).await, "JOB_FINISHED");
}

#[tokio::test]
async fn one_bulk_call_carries_each_job_its_own_way() {
    let world = World::new().await;
    let user = &world.user;
    let jobs: Vec<i64> = {
        let job = |index: usize| json!({"app_id": world.app, "workdir": format!("w/{index}")});
        user.jobs(&(0..4).map(job).collect::<Vec<_>>()).await.iter().map(id).collect()
    };
    let body = json!([
        {"id": jobs[3], "state": "RUN_DONE", "state_timestamp": "2026-01-01T00:00:00.000007", "return_code": 0},
        {"id": jobs[1], "state": "POSTPROCESSED"},
        {"id": jobs[0], "state": "FAILED", "state_data": {"reason": "cancelled"}},
        {"id": jobs[2], "state": "STAGED_IN"},
    ]);
    assert_eq!(user.patch("/jobs/", &body).await.ok(), json!(4));
    let states: Vec<Value> = user.list("/jobs/").await.iter().map(|job| job["state"].clone()).collect();
    assert_eq!(states, ["FAILED", "JOB_FINISHED", "STAGED_IN", "RUN_DONE"]);
    // By its time it is the oldest of the Job's events.
    let oldest = user.list(&format!("/events/?job_id={}&ordering=timestamp", jobs[3])).await.remove(0);
    assert_eq!((&oldest["to_state"], &oldest["timestamp"]), (&json!("RUN_DONE"), &json!("2026-01-01T00:00:00.000007")));
    assert_eq!(last_event(&world, jobs[0]).await["data"]["reason"], "cancelled");
    assert_eq!(user.count(&format!("/events/?job_id={}", jobs[2])).await, 1);
}

#[tokio::test]
async fn unknown_states_are_refused() {
    let world = World::new().await;
    let job = id(&world.job(&json!({})).await);
    for state in [json!("running"), json!("DONE"), json!(1), json!({})] {
        world.user.put(&format!("/jobs/{job}"), &json!({"state": state})).await.invalid("state");
    }
    world.user.put(&format!("/jobs/{job}"), &json!({"state": "FAILED", "state_timestamp": "soon"})).await.refused(422);
    world.user.put(&format!("/jobs/{job}"), &json!({"state": "FAILED", "state_data": 3})).await.invalid("state_data");
    assert_eq!(world.user.state(job).await, "STAGED_IN");
}
