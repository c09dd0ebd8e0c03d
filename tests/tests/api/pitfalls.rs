//! Faults that users of such systems really met, one test each, named by the number that the
//! project's list of pitfalls gives it. Here are those of leases, the service and auth that show in its API.

use std::time::{Duration, Instant};

use copal_tests::{LIMIT, Settings, World, id, wait_for};
use serde_json::{Value, json};

/// A returned result counts as a sign of life, so that many results can't starve the heartbeat.
#[tokio::test]
async fn pitfall_100_returning_results_is_a_heartbeat() {
    let world = World::with(Settings { lease_sec: 1.0, sweep_sec: 0.1, ..Settings::default() }).await;
    let session = world.session().await;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        let job = id(&world.plain_job(&json!({"workdir": format!("w/{}", start.elapsed().as_micros())})).await);
        world.user.acquire(session, &json!({})).await;
        world.user.report(session, job, &["RUNNING", "RUN_DONE"]).await;
    }
    world.user.put(&format!("/sessions/{session}"), &json!({})).await.ok();
}

/// A Job at an end does not come back to life by a late report.
#[tokio::test]
async fn pitfall_101_an_end_is_an_end() {
    let world = World::new().await;
    let user = &world.user;
    let job = world.plain_jobs(1).await[0];
    let session = world.session().await;
    user.acquire(session, &json!({})).await;
    user.report(session, job, &["RUNNING"]).await;
    user.set_state(job, "FAILED").await;
    // The first report says that the run which was taken away is over; who no longer holds the Job is refused.
    for (state, is_taken) in [("RUN_DONE", true), ("RUNNING", false), ("RUN_TIMEOUT", false)] {
        let answer = user.update(session, &[json!({"job_id": job, "state": state})]).await;
        assert_eq!(answer["accepted"], i32::from(is_taken), "{state}: {answer}");
        assert_eq!(user.state(job).await, "FAILED");
    }
    assert_eq!(user.ids(&format!("/events/?job_id={job}&from_state=FAILED")).await, [0; 0]);
}

/// Beats alone do not make a result: while the holder beats, its Job stays RUNNING and nobody else gets it.
#[tokio::test]
async fn pitfall_102_a_beating_holder_keeps_its_job() {
    let world = World::with(Settings { lease_sec: 0.8, sweep_sec: 0.1, ..Settings::default() }).await;
    let user = &world.user;
    let job = world.plain_jobs(1).await[0];
    let (holder, other) = (world.session().await, world.session().await);
    user.acquire(holder, &json!({})).await;
    user.report(holder, job, &["RUNNING"]).await;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        user.put(&format!("/sessions/{holder}"), &json!({})).await.ok();
        assert!(user.acquire(other, &json!({"states": ["RUNNING", "RESTART_READY"]})).await.is_empty());
    }
    assert_eq!(user.state(job).await, "RUNNING");
}

/// A holder that was declared dead but lives is told so by the first call it makes.
#[tokio::test]
async fn pitfall_104_a_lapsed_holder_is_told_to_stop() {
    let world = World::with(Settings { lease_sec: 0.5, sweep_sec: 0.1, ..Settings::default() }).await;
    let user = &world.user;
    let job = world.plain_jobs(1).await[0];
    let holder = world.session().await;
    user.acquire(holder, &json!({})).await;
    user.report(holder, job, &["RUNNING"]).await;
    wait_for("the lease to run out", LIMIT, || async {
        let state = user.state(job).await;
        if state == "RESTART_READY" { Ok(()) } else { Err(state) }
    })
    .await;
    let late = json!({"batch_key": uuid::Uuid::new_v4(), "updates": [{"job_id": job, "state": "RUN_DONE"}]});
    let answer = user.post(&format!("/sessions/{holder}/updates"), &late).await.refused(404);
    assert_eq!(answer["code"], "session_ended");
    assert_eq!(user.state(job).await, "RESTART_READY");
}

/// There is no time after which a run that is alive is given away.
#[tokio::test]
async fn pitfall_105_a_run_longer_than_the_lease_runs_once() {
    let world = World::with(Settings { lease_sec: 0.6, sweep_sec: 0.1, ..Settings::default() }).await;
    let user = &world.user;
    let job = world.plain_jobs(1).await[0];
    let holder = world.session().await;
    user.acquire(holder, &json!({})).await;
    user.report(holder, job, &["RUNNING"]).await;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        user.get(&format!("/sessions/{holder}/signals?wait_sec=0.2")).await.ok();
    }
    user.report(holder, job, &["RUN_DONE"]).await;
    assert_eq!(user.count(&format!("/events/?job_id={job}&to_state=RUNNING")).await, 1);
}

/// The only launcher of an owner dies at night: its Jobs are freed though nobody calls.
#[tokio::test]
async fn pitfall_107_the_service_sweeps_by_itself() {
    let world = World::with(Settings { lease_sec: 0.5, sweep_sec: 0.1, ..Settings::default() }).await;
    let job = world.plain_jobs(1).await[0];
    let holder = world.session().await;
    world.user.acquire(holder, &json!({})).await;
    world.user.report(holder, job, &["RUNNING"]).await;
    let mut database = world.service.database().connect().await;
    let start = Instant::now();
    loop {
        let left: i64 = sqlx::query_scalar("select count(*) from sessions where id = $1")
            .bind(holder)
            .fetch_one(&mut database)
            .await
            .unwrap();
        if left == 0 {
            break;
        }
        assert!(start.elapsed() < LIMIT, "nobody swept");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.user.state(job).await, "RESTART_READY");
}

/// One illegal transition among many is reported; the others are made.
#[tokio::test]
async fn pitfall_108_one_bad_row_of_five_hundred() {
    let world = World::new().await;
    let jobs = world.plain_jobs(500).await;
    let session = world.session().await;
    world.user.acquire(session, &json!({"max_num_jobs": 500})).await;
    let mut updates: Vec<Value> = jobs.iter().map(|job| json!({"job_id": job, "state": "RUNNING"})).collect();
    updates[250]["state"] = json!("JOB_FINISHED");
    let answer = world.user.update(session, &updates).await;
    assert_eq!((&answer["accepted"], &answer["rejected"][0]["index"]), (&json!(499), &json!(250)));
    assert_eq!(answer["rejected"].as_array().unwrap().len(), 1);
}

/// A POST whose answer was lost is sent again with its key and makes nothing twice.
#[tokio::test]
async fn pitfall_110_a_repeated_post_makes_no_duplicates() {
    let world = World::new().await;
    let body: Value = (0..100).map(|index| json!({"app_id": world.plain, "workdir": format!("w/{index}")})).collect();
    let mut answers = Vec::new();
    for _ in 0..3 {
        let request = world.user.request(reqwest::Method::POST, "/jobs/").header("Idempotency-Key", "lost").json(&body);
        answers.push(world.user.send(request).await.created());
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(world.user.count("/jobs/").await, 100);
}

/// Old Jobs do not starve: without an aggregate the order is priority, then age.
#[tokio::test]
async fn pitfall_111_serial_acquire_is_ordered() {
    let world = World::new().await;
    let jobs = world.plain_jobs(50).await;
    world.user.put(&format!("/jobs/{}", jobs[40]), &json!({"priority": 1})).await.ok();
    let session = world.session().await;
    let mut order = Vec::new();
    for _ in 0..10 {
        let wanted = json!({"max_num_jobs": 5, "serial_only": true, "max_nodes_per_job": 1});
        order.extend(world.user.acquire(session, &wanted).await.iter().map(id));
    }
    let mut expected = jobs.clone();
    let first = expected.remove(40);
    expected.insert(0, first);
    assert_eq!(order, expected);
}

/// A client that never reads its answer holds no transaction and blocks nobody's heartbeat.
#[tokio::test]
async fn pitfall_114_slow_readers_block_nobody() {
    let world = World::new().await;
    let user = &world.user;
    world.plain_jobs(3000).await;
    let session = world.session().await;
    let mut slow = Vec::new();
    for _ in 0..40 {
        // The body is never read.
        slow.push(user.request(reqwest::Method::GET, "/jobs/").send().await.unwrap());
    }
    let start = Instant::now();
    for _ in 0..20 {
        user.put(&format!("/sessions/{session}"), &json!({})).await.ok();
    }
    assert!(start.elapsed() < Duration::from_secs(10), "20 heartbeats took {:?}", start.elapsed());
    let mut database = world.service.database().connect().await;
    let stuck: i64 = sqlx::query_scalar(
        "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'
         and now() - state_change > interval '1 second'",
    )
    .fetch_one(&mut database)
    .await
    .unwrap();
    assert_eq!(stuck, 0);
    drop(slow);
}

/// Cancelling thousands is one statement's work and leaves nothing locked.
#[tokio::test]
async fn pitfall_115_cancel_ten_thousand() {
    let world = World::new().await;
    let user = &world.user;
    for batch in 0..2 {
        let jobs: Vec<Value> =
            (0..5000).map(|index| json!({"app_id": world.plain, "workdir": format!("{batch}/{index}")})).collect();
        user.jobs(&jobs).await;
    }
    let session = world.session().await;
    user.acquire(session, &json!({"max_num_jobs": 2000})).await;
    let answer = user.post("/jobs/cancel", &json!({})).await.ok();
    let total = answer["cancelled"].as_i64().unwrap() + answer["stopping"].as_i64().unwrap();
    assert_eq!(total, 10_000, "{answer}");
    user.delete(&format!("/sessions/{session}")).await.deleted();
    assert_eq!(user.get("/jobs/by-state").await.ok(), json!({"FAILED": 10_000}));
}

/// A database that takes no changes says so; what can be read is read, and all goes on once it takes changes again.
#[tokio::test]
async fn pitfall_115_a_read_only_database_is_called_that() {
    let world = World::new().await;
    let user = &world.user;
    let job = world.plain_jobs(1).await[0];
    let mut database = world.service.database().connect().await;
    let name: String = sqlx::query_scalar("select current_database()").fetch_one(&mut database).await.unwrap();
    for (setting, status) in [("on", 503), ("off", 200)] {
        // New connections have the setting; the service's are cut, as when a standby takes over.
        let alter = format!("alter database \"{name}\" set default_transaction_read_only = {setting}");
        // This connection may have been opened read-only itself.
        sqlx::query("set default_transaction_read_only = off").execute(&mut database).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(alter)).execute(&mut database).await.unwrap();
        cut_connections(&mut database).await;
        let answer = wait_for("the service's new connections", LIMIT, || async {
            let answer = user.post("/jobs/cancel", &json!({})).await;
            let settled =
                answer.status == status && (status == 200 || answer.body["detail"].to_string().contains("read-only"));
            if settled { Ok(answer) } else { Err(format!("{answer:?}")) }
        })
        .await;
        if status == 503 {
            assert_eq!(answer.refused(503)["code"], "unavailable");
            assert_eq!(user.state(job).await, "PREPROCESSED");
        }
    }
    assert_eq!(user.state(job).await, "FAILED");
}

async fn cut_connections(database: &mut sqlx::PgConnection) {
    sqlx::query(
        "select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid()",
    )
    .execute(database)
    .await
    .unwrap();
}

/// Wake-ups are an accelerator, not the mechanism: with notifications lost, Jobs are still found.
#[tokio::test]
async fn pitfall_118_a_dead_listener_does_not_stop_work() {
    let world = World::new().await;
    let session = world.session().await;
    let user = world.user.clone();
    let waiting = tokio::spawn(async move {
        let wanted = json!({"max_num_jobs": 1, "filter_tags": {}, "wait_sec": 5});
        loop {
            // A call that meets a cut connection may say 503; a launcher calls again.
            let answer = user.post(&format!("/sessions/{session}"), &wanted).await;
            if answer.status == 503 || answer.body == json!([]) {
                continue;
            }
            return answer.ok()[0].clone();
        }
    });
    // Cut every connection of the service, the listening one too.
    cut_connections(&mut world.service.database().connect().await).await;
    let job = wait_for("a Job to be made on new connections", LIMIT, || async {
        let body = json!([{"app_id": world.plain, "workdir": "w"}]);
        let answer = world.user.post("/jobs/", &body).await;
        if answer.status == 201 { Ok(id(&answer.body[0])) } else { Err(format!("{answer:?}")) }
    })
    .await;
    let found = tokio::time::timeout(LIMIT, waiting).await.expect("the waiting Session finds the Job").unwrap();
    assert_eq!(id(&found), job);
}

/// Outputs belong on disk: what goes to the service is bounded.
#[tokio::test]
async fn pitfall_119_blobs_are_refused() {
    let world = World::new().await;
    let job = id(&world.plain_job(&json!({})).await);
    let blob = "x".repeat(600_000);
    for field in ["serialized_return_value", "serialized_exception", "serialized_parameters"] {
        world.user.put(&format!("/jobs/{job}"), &json!({ field: blob })).await.invalid(field);
        world.user.put(&format!("/jobs/{job}"), &json!({ field: &blob[..512_000] })).await.ok();
    }
}

/// A fails; B waits for A; C waits for B: both fail, with a reason.
#[tokio::test]
async fn pitfall_120_failure_reaches_grandchildren() {
    let world = World::new().await;
    let user = &world.user;
    let a = world.plain_jobs(1).await[0];
    let b = id(&world.plain_job(&json!({"workdir": "b", "parent_ids": [a]})).await);
    let c = id(&world.plain_job(&json!({"workdir": "c", "parent_ids": [b]})).await);
    let session = world.session().await;
    user.acquire(session, &json!({})).await;
    user.report(session, a, &["RUNNING", "RUN_ERROR"]).await;
    for job in [a, b, c] {
        assert_eq!(user.state(job).await, "FAILED");
    }
}

/// The last report hangs in the database and its sender gives up waiting: sent again, it counts once, and the Job does
/// not stay RUNNING.
#[tokio::test]
async fn pitfall_135_a_report_that_hangs_is_sent_again_and_counts_once() {
    let world = World::new().await;
    let user = &world.user;
    let job = world.plain_jobs(1).await[0];
    let session = world.session().await;
    user.acquire(session, &json!({})).await;
    user.report(session, job, &["RUNNING"]).await;
    let mut database = world.service.database().connect().await;
    let mut blocker = sqlx::Connection::begin(&mut database).await.unwrap();
    sqlx::query("select id from jobs where id = $1 for update").bind(job).execute(&mut *blocker).await.unwrap();

    let report = json!({"batch_key": uuid::Uuid::new_v4(),
        "updates": [{"job_id": job, "state": "RUN_DONE", "return_code": 0}]});
    let path = format!("/sessions/{session}/updates");
    let impatient = user.request(reqwest::Method::POST, &path).json(&report).timeout(Duration::from_millis(300));
    assert!(impatient.send().await.unwrap_err().is_timeout());
    let again = {
        let (user, path, report) = (user.clone(), path.clone(), report.clone());
        tokio::spawn(async move { user.post(&path, &report).await })
    };
    blocker.rollback().await.unwrap();
    let answer = again.await.unwrap().ok();
    assert_eq!(answer, json!({"accepted": 1, "rejected": []}));
    assert_eq!(user.state(job).await, "JOB_FINISHED");
    assert_eq!(user.post(&path, &report).await.ok(), answer);
    assert_eq!(user.count(&format!("/events/?job_id={job}&to_state=RUN_DONE")).await, 1);
    assert_eq!(user.get(&format!("/jobs/{job}/attempts")).await.ok().as_array().unwrap().len(), 1);
}
