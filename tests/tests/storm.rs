//! Many Sessions at two real processes of the service, while one of them is killed and started again and
//! Postgres dies in the middle: every Job runs once, and nothing but a passing 503 is ever answered.
//!
//! `COPAL_STORM_JOBS` and `COPAL_STORM_SESSIONS` make it larger than what fits a test run.
#![expect(clippy::expect_used, reason = "a test's helper fails as a test does")]

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use copal_tests::{
    Api, id,
    process::{Programs, Running, free_port},
    wait::LIMIT,
    world::PASSWORD,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use reqwest::Method;
use serde_json::{Value, json};

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Sends until there is an answer other than "not now", as a launcher does. Both processes are tried in turn.
async fn insist(apis: &[Api; 2], method: Method, path: &str, body: &Value) -> Value {
    let start = Instant::now();
    let key = uuid::Uuid::new_v4().to_string();
    let mut turn = 0;
    loop {
        turn += 1;
        let api = &apis[turn % 2];
        let request = api.request(method.clone(), path).header("Idempotency-Key", &key).json(body);
        let outcome = match request.send().await {
            Ok(answer) => (Some(answer.status().as_u16()), answer.text().await),
            Err(error) => (None, Err(error)),
        };
        match outcome {
            (Some(200 | 201), Ok(text)) => return serde_json::from_str(&text).expect("an answer is JSON"),
            (Some(503) | None, _) | (_, Err(_)) => {}
            (status, Ok(text)) => panic!("{method} {path}: {status:?} {text}"),
        }
        assert!(start.elapsed() < LIMIT * 2, "{method} {path}: no answer in {:?}", start.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The Jobs that launchers ran, in the order of their reports.
type Ran = Arc<Mutex<Vec<i64>>>;

/// Acquires, runs and reports until nothing is found twice in a row.
async fn launcher(apis: [Api; 2], site: i64, ran: Ran) {
    let session = id(&insist(&apis, Method::POST, "/sessions/", &json!({"site_id": site})).await);
    let wanted = json!({"max_num_jobs": 20, "filter_tags": {}, "max_aggregate_nodes": 20, "wait_sec": 1});
    let mut empty = 0;
    while empty < 2 {
        let held = insist(&apis, Method::POST, &format!("/sessions/{session}"), &wanted).await;
        let held: Vec<i64> = held.as_array().expect("a list").iter().map(id).collect();
        empty = if held.is_empty() { empty + 1 } else { 0 };
        let updates: Vec<Value> = held
            .iter()
            .flat_map(|job| ["RUNNING", "RUN_DONE"].map(|state| json!({"job_id": job, "state": state})))
            .collect();
        // One key, however often it is sent.
        let body = json!({"batch_key": uuid::Uuid::new_v4(), "updates": updates});
        let answer = insist(&apis, Method::POST, &format!("/sessions/{session}/updates"), &body).await;
        assert_eq!(answer, json!({"accepted": updates.len(), "rejected": []}));
        ran.lock().expect("no panic holds it").extend(&held);
    }
}

fn start_second(programs: &Programs, listen: &str, url: &str) -> Running {
    let mut second = programs.start("copal-server", &["--listen", listen, "--database-url", url]);
    second.wait_ready(listen);
    second
}

fn postmaster(programs: &Programs) -> Option<i32> {
    programs.left().iter().find(|line| line.contains("bin/postgres -D"))?.split(':').next()?.parse().ok()
}

async fn wait_for_count(ran: &Ran, count: usize) {
    let start = Instant::now();
    while ran.lock().expect("no panic holds it").len() < count {
        assert!(start.elapsed() < Duration::from_secs(600), "the storm stands still");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_runs_once_through_crashes_of_service_and_postgres() {
    let (total, sessions) = (setting("COPAL_STORM_JOBS", 8_000), setting("COPAL_STORM_SESSIONS", 64));
    let programs = Programs::new();
    let (first, base) = programs.start_server(free_port(), &[]);
    let url = programs.run_ok("copal-server", &["database-url"]).trim().to_owned();
    let listen = format!("127.0.0.1:{}", free_port());
    let second = start_second(&programs, &listen, &url);

    let anonymous = Api::new(&base);
    anonymous.post("/auth/password/register", &json!({"username": "ann", "password": PASSWORD})).await.created();
    let form = [("username", "ann"), ("password", PASSWORD)];
    let token = anonymous.post_form("/auth/password/login", &form).await.ok();
    let ann = anonymous.with_token(token["access_token"].as_str().expect("a token"));
    let apis = [ann.clone(), ann.at(&format!("http://{listen}"))];
    let site = ann.site("laptop").await;
    let app = ann.app(site, "Plain", &json!({"command": "true"})).await;
    let jobs: Vec<Value> = (0..total).map(|index| json!({"app_id": app, "workdir": format!("w/{index}")})).collect();
    for chunk in jobs.chunks(5_000) {
        ann.jobs(chunk).await;
    }

    let ran = Ran::default();
    let launchers: Vec<_> =
        (0..sessions).map(|_| tokio::spawn(launcher(apis.clone(), site, Arc::clone(&ran)))).collect();
    wait_for_count(&ran, total / 5).await;
    second.signal(Signal::SIGKILL);
    drop(second);
    let second = start_second(&programs, &listen, &url);
    wait_for_count(&ran, total / 2).await;
    let killed = postmaster(&programs).expect("Postgres runs");
    kill(Pid::from_raw(killed), Signal::SIGKILL).expect("Postgres runs");
    for launcher in launchers {
        launcher.await.expect("no launcher saw an error");
    }
    assert_ne!(postmaster(&programs), Some(killed));

    // An acquire that was answered into a cut connection leaves its Jobs with the Session until that ends.
    for session in ann.ids("/sessions/").await {
        ann.delete(&format!("/sessions/{session}")).await.deleted();
    }
    launcher(apis, site, Arc::clone(&ran)).await;
    let mut distinct = ran.lock().expect("no panic holds it").clone();
    let runs = distinct.len();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!((runs, distinct.len()), (total, total), "a Job ran twice or not at all");
    assert_eq!(ann.get("/jobs/by-state").await.ok(), json!({"JOB_FINISHED": total}));
    assert_eq!(ann.count("/events/?to_state=RUNNING").await, total as i64);
    assert_eq!(second.stop(), 0);
    assert_eq!(first.stop(), 0);
}
