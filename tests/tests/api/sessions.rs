//! `/sessions/`: leases, how they live and how they end (contract, section 8; DESIGN, section 4).

use std::time::Duration;

use copal_tests::{LIMIT, Settings, World, id, wait_for};
use serde_json::{Value, json};

/// Leases that lapse within a test.
fn short_lease() -> Settings {
    Settings { lease_sec: 0.6, sweep_sec: 0.1, ..Settings::default() }
}

#[tokio::test]
async fn a_session_is_made_listed_ticked_and_ended() {
    let world = World::new().await;
    let user = &world.user;
    let batch_job = user.batch_job(world.site, &json!({})).await;
    let before = chrono::Utc::now().naive_utc();
    let made = user.post("/sessions/", &json!({"site_id": world.site, "batch_job_id": batch_job})).await.created();
    let after = chrono::Utc::now().naive_utc();
    assert_eq!((&made["site_id"], &made["batch_job_id"]), (&json!(world.site), &json!(batch_job)));
    let heartbeat: chrono::NaiveDateTime = made["heartbeat"].as_str().unwrap().parse().unwrap();
    let slack = chrono::TimeDelta::milliseconds(1);
    assert!(before - slack <= heartbeat && heartbeat <= after + slack, "{before} {heartbeat} {after}");
    let second = world.session().await;
    let path = format!("/sessions/{}", id(&made));
    assert_eq!(user.ids("/sessions/").await, [id(&made), second]);
    assert_eq!(user.ids(&format!("/sessions/?id={second}&limit=1&offset=0")).await, [second]);

    for body in ["{}", ""] {
        let request = user.request(reqwest::Method::PUT, &path).header("content-type", "application/json").body(body);
        assert_eq!(user.send(request).await.ok(), json!(null));
    }
    assert_eq!(user.send(user.request(reqwest::Method::PUT, &path)).await.ok(), json!(null));
    let ticked = user.list(&format!("/sessions/?id={}", id(&made))).await.remove(0);
    assert!(ticked["heartbeat"].as_str() > made["heartbeat"].as_str());
    user.get(&path).await.refused(405);
    user.delete(&path).await.deleted();
    user.delete(&path).await.refused(404);
    user.put(&path, &json!({})).await.refused(404);
}

#[tokio::test]
async fn unknown_sites_and_foreign_batch_jobs_make_no_session() {
    let world = World::new().await;
    let user = &world.user;
    let other_site = user.site("other").await;
    let elsewhere = user.batch_job(other_site, &json!({})).await;
    user.post("/sessions/", &json!({"site_id": 999_999})).await.refused(400);
    user.post("/sessions/", &json!({"site_id": world.site, "batch_job_id": 999_999})).await.refused(400);
    user.post("/sessions/", &json!({"site_id": world.site, "batch_job_id": elsewhere})).await.refused(400);
    user.post("/sessions/", &json!({})).await.invalid("site_id");
    assert_eq!(user.ids("/sessions/").await, [0; 0]);
}

#[tokio::test]
async fn an_ended_session_frees_its_jobs() {
    let world = World::new().await;
    let user = &world.user;
    let jobs = world.plain_jobs(2).await;
    let session = world.session().await;
    user.acquire(session, &json!({})).await;
    user.report(session, jobs[0], &["RUNNING"]).await;
    user.delete(&format!("/sessions/{session}")).await.deleted();
    for (job, state) in [(jobs[0], "RESTART_READY"), (jobs[1], "PREPROCESSED")] {
        let row = user.get_job(job).await;
        assert_eq!((&row["state"], &row["session_id"]), (&json!(state), &json!(null)));
    }
    let timeout = user.list(&format!("/events/?job_id={}&to_state=RUN_TIMEOUT", jobs[0])).await.remove(0);
    assert_eq!(timeout["data"]["message"], "Session expired: job was stuck in RUNNING state");
}

#[tokio::test]
async fn the_running_job_of_a_balsam_app_stays_a_time_out() {
    let world = World::new().await;
    let job = id(&world.job(&json!({})).await);
    world.user.set_state(job, "PREPROCESSED").await;
    let session = world.session().await;
    world.user.acquire(session, &json!({})).await;
    world.user.set_state(job, "RUNNING").await;
    world.user.delete(&format!("/sessions/{session}")).await.deleted();
    assert_eq!(world.user.state(job).await, "RUN_TIMEOUT");
}

#[tokio::test]
async fn a_silent_session_lapses_without_anybodys_call() {
    let world = World::with(short_lease()).await;
    let session = world.session().await;
    let job = world.running_job(session).await;
    wait_for("the sweeper to free the Job", LIMIT, || async {
        let row = world.user.get_job(job).await;
        if row["state"] == "RESTART_READY" { Ok(()) } else { Err(row["state"].to_string()) }
    })
    .await;
    assert_eq!(world.user.get_job(job).await["session_id"], json!(null));
    world.user.put(&format!("/sessions/{session}"), &json!({})).await.refused(404);
}

#[tokio::test]
async fn any_call_on_a_session_keeps_it_alive() {
    let world = World::with(Settings { lease_sec: 2.0, sweep_sec: 0.1, ..Settings::default() }).await;
    let sessions = [world.session().await, world.session().await, world.session().await, world.session().await];
    let silent = world.session().await;
    let start = std::time::Instant::now();
    let mut turn = 0;
    while start.elapsed() < Duration::from_secs(4) {
        let user = &world.user;
        user.put(&format!("/sessions/{}", sessions[0]), &json!({})).await.ok();
        user.acquire(sessions[1], &json!({})).await;
        user.update(sessions[2], &[]).await;
        user.get(&format!("/sessions/{}/signals?wait_sec=0.2", sessions[3])).await.ok();
        turn += 1;
    }
    let alive = world.user.ids("/sessions/").await;
    assert_eq!(alive, sessions, "after {turn} turns");
    assert!(!alive.contains(&silent));
}

#[tokio::test]
async fn a_long_poll_keeps_its_session_alive() {
    let world = World::with(Settings { lease_sec: 1.0, sweep_sec: 0.1, ..Settings::default() }).await;
    let session = world.session().await;
    let found = world.user.acquire(session, &json!({"wait_sec": 3.0})).await;
    assert!(found.is_empty());
    assert_eq!(world.user.ids("/sessions/").await, [session]);
}

#[tokio::test]
async fn a_silent_session_is_held_while_its_batch_job_runs() {
    let settings = Settings { lease_hold_sec: 3.0, ..short_lease() };
    let world = World::with(settings).await;
    let user = &world.user;
    let batch_job = user.batch_job(world.site, &json!({})).await;
    user.put(&format!("/batch-jobs/{batch_job}"), &json!({"state": "running"})).await.ok();
    let held = user.session(world.site, Some(batch_job)).await;
    let job = world.running_job(held).await;
    let loose = world.session().await;
    world.wait_until_gone(loose).await;
    assert_eq!(user.state(job).await, "RUNNING", "a cut network must not make a Job run twice");
    assert!(user.ids("/sessions/").await.contains(&held));
    world.wait_until_gone(held).await;
    assert_eq!(user.state(job).await, "RESTART_READY");
}

#[tokio::test]
async fn time_in_which_the_service_is_down_does_not_count() {
    let mut world = World::with(Settings { lease_sec: 6.0, sweep_sec: 0.1, ..Settings::default() }).await;
    let session = world.session().await;
    let job = world.running_job(session).await;
    world.service.stop().await;
    // The lease must run out while nobody is there: here time itself must pass.
    tokio::time::sleep(Duration::from_secs(7)).await;
    world.service.restart().await;
    world.user = world.user.at(world.service.base());
    // A Session that is long overdue shows when the first sweep is through.
    let overdue = world.session().await;
    let mut database = world.service.database().connect().await;
    sqlx::query("update sessions set alive_at = alive_at - interval '1 hour' where id = $1")
        .bind(overdue)
        .execute(&mut database)
        .await
        .unwrap();
    world.wait_until_gone(overdue).await;
    world.user.put(&format!("/sessions/{session}"), &json!({})).await.ok();
    assert_eq!(world.user.state(job).await, "RUNNING");
}

#[tokio::test]
async fn calls_on_an_ended_session_say_so() {
    let world = World::new().await;
    let session = world.session().await;
    world.user.delete(&format!("/sessions/{session}")).await.deleted();
    let path = format!("/sessions/{session}");
    let updates = json!({"batch_key": uuid::Uuid::new_v4(), "updates": []});
    let answers: Vec<Value> = vec![
        world.user.put(&path, &json!({})).await.refused(404),
        world.user.post(&path, &json!({"max_num_jobs": 1, "filter_tags": {}})).await.refused(404),
        world.user.post(&format!("{path}/updates"), &updates).await.refused(404),
        world.user.get(&format!("{path}/signals")).await.refused(404),
    ];
    for answer in answers {
        assert_eq!(answer["code"], "session_ended", "{answer}");
    }
}
