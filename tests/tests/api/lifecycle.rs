//! Copal Apps: steps with nothing to do are passed over, parameters are checked, retries follow the
//! policy (DESIGN, sections 3 and 6).

use copal_tests::{World, id};
use serde_json::{Value, json};

/// A Job of an App with these fields, and the App.
async fn job_of(world: &World, app: &Value, job: &Value) -> i64 {
    let name = format!("App{}", world.user.count("/apps/").await);
    let app = world.user.app(world.site, &name, &copal_tests::world::with(json!({"command": "true"}), app)).await;
    id(&world.user.job(app, job).await)
}

/// Acquires the Job and reports these states, the last with an exit code.
async fn run(world: &World, job: i64, states: &[&str], return_code: Option<i64>) {
    let session = world.session().await;
    let held = world.user.acquire(session, &json!({})).await;
    assert!(held.iter().any(|row| row["id"] == job), "{job} is not among the acquired {held:?}");
    let mut updates: Vec<Value> = states.iter().map(|state| json!({"job_id": job, "state": state})).collect();
    if let Some(last) = updates.last_mut() {
        last["return_code"] = json!(return_code);
    }
    let answer = world.user.update(session, &updates).await;
    assert_eq!(answer, json!({"accepted": states.len(), "rejected": []}));
    world.user.delete(&format!("/sessions/{session}")).await.deleted();
}

#[tokio::test]
async fn a_plain_job_is_runnable_as_soon_as_it_is_made() {
    let world = World::new().await;
    let job = world.plain_job(&json!({})).await;
    assert_eq!(job["state"], "PREPROCESSED");
    assert_eq!(world.user.history(id(&job)).await, ["CREATED", "STAGED_IN", "PREPROCESSED"]);
}

#[tokio::test]
async fn a_plain_job_is_finished_as_soon_as_its_exit_code_arrives() {
    let world = World::new().await;
    let job = id(&world.plain_job(&json!({})).await);
    run(&world, job, &["RUNNING", "RUN_DONE"], Some(0)).await;
    let history = ["CREATED", "STAGED_IN", "PREPROCESSED", "RUNNING", "RUN_DONE", "POSTPROCESSED", "JOB_FINISHED"];
    assert_eq!(world.user.history(job).await, history);
    let row = world.user.get_job(job).await;
    assert_eq!(
        (&row["state"], &row["return_code"], &row["session_id"]),
        (&json!("JOB_FINISHED"), &json!(0), &json!(null))
    );
}

#[tokio::test]
async fn a_job_of_a_balsam_app_takes_every_step() {
    let world = World::new().await;
    let job = id(&world.job(&json!({})).await);
    let session = world.session().await;
    let steps = [("STAGED_IN", "PREPROCESSED"), ("RUN_DONE", "POSTPROCESSED")];
    assert!(world.user.acquire(session, &json!({})).await.is_empty());
    let staged = json!({"states": ["STAGED_IN"]});
    assert_eq!(id(&world.user.acquire(session, &staged).await[0]), job);
    world.user.report(session, job, &[steps[0].1]).await;
    world.user.acquire(session, &json!({})).await;
    world.user.report(session, job, &["RUNNING", "RUN_DONE"]).await;
    assert_eq!(world.user.state(job).await, "RUN_DONE");
    assert_eq!(world.user.acquire(session, &json!({"states": ["RUN_DONE"]})).await.len(), 1);
    world.user.report(session, job, &[steps[1].1]).await;
    assert_eq!(world.user.state(job).await, "JOB_FINISHED");
}

#[tokio::test]
async fn a_declared_hook_stops_a_job_at_its_step() {
    let world = World::new().await;
    let hooks =
        json!({"hooks": {"preprocess": true, "postprocess": true, "handle_error": true, "handle_timeout": true}});
    let job = job_of(&world, &hooks, &json!({})).await;
    assert_eq!(world.user.state(job).await, "STAGED_IN");
    world.user.set_state(job, "PREPROCESSED").await;
    for state in ["RUN_DONE", "RUN_ERROR", "RUN_TIMEOUT"] {
        run(&world, job, &["RUNNING", state], None).await;
        assert_eq!(world.user.state(job).await, state);
        world.user.set_state(job, "RESTART_READY").await;
    }
}

#[tokio::test]
async fn an_error_ends_a_job_and_a_time_out_does_not() {
    let world = World::new().await;
    let job = job_of(&world, &json!({}), &json!({})).await;
    for _ in 0..5 {
        run(&world, job, &["RUNNING", "RUN_TIMEOUT"], None).await;
        assert_eq!(world.user.state(job).await, "RESTART_READY");
    }
    run(&world, job, &["RUNNING", "RUN_ERROR"], Some(3)).await;
    let row = world.user.get_job(job).await;
    assert_eq!((&row["state"], &row["return_code"], &row["num_attempts"]), (&json!("FAILED"), &json!(3), &json!(6)));
    let history = world.user.history(job).await;
    assert_eq!(history[history.len() - 3..], ["RUNNING", "RUN_ERROR", "FAILED"]);
}

#[tokio::test]
async fn restarts_are_counted_by_the_jobs_policy_before_the_apps() {
    let world = World::new().await;
    let by_app = job_of(&world, &json!({"max_restarts": 2}), &json!({})).await;
    for _ in 0..2 {
        run(&world, by_app, &["RUNNING", "RUN_ERROR"], Some(1)).await;
        assert_eq!(world.user.state(by_app).await, "RESTART_READY");
    }
    run(&world, by_app, &["RUNNING", "RUN_ERROR"], Some(1)).await;
    assert_eq!(world.user.state(by_app).await, "FAILED");

    let by_job = job_of(&world, &json!({"max_restarts": 5}), &json!({"max_restarts": 1})).await;
    run(&world, by_job, &["RUNNING", "RUN_TIMEOUT"], None).await;
    assert_eq!(world.user.state(by_job).await, "RESTART_READY");
    run(&world, by_job, &["RUNNING", "RUN_ERROR"], Some(1)).await;
    assert_eq!(world.user.state(by_job).await, "RESTART_READY", "errors and time-outs are counted apart");
    run(&world, by_job, &["RUNNING", "RUN_TIMEOUT"], None).await;
    assert_eq!(world.user.state(by_job).await, "FAILED", "one restart after a time-out was allowed");
}

#[tokio::test]
async fn every_run_is_kept_with_what_it_used() {
    let world = World::new().await;
    let batch_job = world.user.batch_job(world.site, &json!({})).await;
    let job = job_of(&world, &json!({}), &json!({})).await;
    let session = world.user.session(world.site, Some(batch_job)).await;
    world.user.acquire(session, &json!({})).await;
    let usage = json!({"start": "2026-11-30T10:00:00.000001", "end": "2026-11-30T10:00:05", "signal": "SIGKILL",
        "peak_memory_bytes": 1_234_567, "cpu_sec": 4.5, "nodes": ["n1", "n2"], "gpus": ["0"]});
    let updates = [
        json!({"job_id": job, "state": "RUNNING"}),
        json!({"job_id": job, "state": "RUN_TIMEOUT", "return_code": 137, "usage": usage}),
    ];
    world.user.update(session, &updates).await;
    world.user.acquire(session, &json!({})).await;
    world.user.report(session, job, &["RUNNING", "RUN_DONE"]).await;
    let attempts = world.user.get(&format!("/jobs/{job}/attempts")).await.ok();
    let attempts = attempts.as_array().unwrap();
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    let first = copal_tests::world::with(
        json!({"number": 1, "batch_job_id": batch_job, "state": "RUN_TIMEOUT", "return_code": 137}),
        &usage,
    );
    assert_eq!(attempts[0], first);
    assert_eq!((&attempts[1]["number"], &attempts[1]["state"]), (&json!(2), &json!("RUN_DONE")));
}

/// A run that its owner took away counts as one, and what it came to is told once its launcher has killed it.
#[tokio::test]
async fn what_a_run_used_that_its_owner_took_away_is_kept() {
    let world = World::new().await;
    let user = &world.user;
    let usage = json!({"start": "2026-11-30T10:00:00", "end": "2026-11-30T10:00:05", "signal": "SIGKILL",
        "peak_memory_bytes": 1_234_567, "cpu_sec": 4.5, "nodes": ["n1"], "gpus": ["0"]});
    let attempts = |job: i64| async move {
        let rows = user.get(&format!("/jobs/{job}/attempts")).await.ok();
        rows.as_array().unwrap().clone()
    };
    for way in ["RESTART_READY", "FAILED"] {
        let job = job_of(&world, &json!({}), &json!({})).await;
        let (told, silent) = (world.session().await, world.session().await);
        user.acquire(told, &json!({})).await;
        user.report(told, job, &["RUNNING"]).await;
        user.set_state(job, way).await;
        assert_eq!(attempts(job).await, [Value::Null; 0], "{way}: it still runs");
        let end = json!({"job_id": job, "state": "RUN_ERROR", "return_code": 137, "usage": usage});
        assert_eq!(user.update(told, &[end]).await, json!({"accepted": 1, "rejected": []}));
        let first = copal_tests::world::with(
            json!({"number": 1, "batch_job_id": null, "state": "RUN_ERROR", "return_code": 137}),
            &usage,
        );
        assert_eq!(attempts(job).await, [first], "{way}");
        assert_eq!(user.state(job).await, way);
        // Of the next one its launcher tells nothing any more.
        user.set_state(job, "RESTART_READY").await;
        user.acquire(silent, &json!({})).await;
        user.report(silent, job, &["RUNNING"]).await;
        user.set_state(job, way).await;
        user.delete(&format!("/sessions/{silent}")).await.deleted();
        let rows = attempts(job).await;
        assert_eq!(rows.len(), 2, "{way}: {rows:?}");
        assert_eq!((&rows[1]["number"], &rows[1]["state"]), (&json!(2), &json!("RUN_TIMEOUT")), "{way}");
        assert_eq!((&rows[1]["return_code"], &rows[1]["cpu_sec"]), (&Value::Null, &Value::Null), "{way}");
        assert_eq!(user.state(job).await, way);
        user.set_state(job, "JOB_FINISHED").await;
    }
}

#[tokio::test]
async fn parameters_of_a_copal_app_are_checked_when_a_job_is_made() {
    let world = World::new().await;
    let app = json!({"command": "echo {{greeting}}, {{name}}!", "parameters": {
        "name": {"required": true}, "greeting": {"required": false, "default": "Hello"}}});
    let app = world.user.app(world.site, "Greet", &app).await;
    let post = |parameters: Value| {
        let body = json!([{"app_id": app, "workdir": "x", "parameters": parameters}]);
        let user = world.user.clone();
        async move { user.post("/jobs/", &body).await }
    };
    post(json!({})).await.invalid("name");
    post(json!({"name": "world", "gretting": "Hi"})).await.invalid("gretting");
    post(json!({"name": null})).await.refused(422);
    assert_eq!(world.user.count("/jobs/").await, 0);
    let job = post(json!({"name": "world & \"co\" ü"})).await.created()[0].clone();
    assert_eq!(job["parameters"]["name"], "world & \"co\" ü");
    let job = post(json!({"name": 7})).await.created()[0].clone();
    assert_eq!(job["parameters"]["name"], "7");
}

#[tokio::test]
async fn a_postprocess_hook_keeps_its_data() {
    let world = World::new().await;
    let job = job_of(&world, &json!({"hooks": {"postprocess": true}}), &json!({"data": {"a": 1}})).await;
    run(&world, job, &["RUNNING", "RUN_DONE"], Some(0)).await;
    let session = world.session().await;
    world.user.acquire(session, &json!({"states": ["RUN_DONE"]})).await;
    let update =
        json!({"job_id": job, "state": "POSTPROCESSED", "data": {"estimate": 2.5}, "state_data": {"message": "kept"}});
    world.user.update(session, &[update]).await;
    let row = world.user.get_job(job).await;
    assert_eq!((&row["state"], &row["data"]), (&json!("JOB_FINISHED"), &json!({"estimate": 2.5})));
}

#[tokio::test]
async fn a_failed_job_is_restarted_by_its_owner() {
    let world = World::new().await;
    let job = job_of(&world, &json!({}), &json!({})).await;
    run(&world, job, &["RUNNING", "RUN_ERROR"], Some(1)).await;
    assert_eq!(world.user.state(job).await, "FAILED");
    world.user.set_state(job, "RESTART_READY").await;
    run(&world, job, &["RUNNING", "RUN_DONE"], Some(0)).await;
    assert_eq!(world.user.state(job).await, "JOB_FINISHED");
}
