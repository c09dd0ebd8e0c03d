//! Many Sessions at two real processes of the service, in calm and while one of the two is killed and started again
//! and Postgres dies in the middle: every Job runs once, no report is lost, and nothing but a passing 503 is ever
//! answered; in calm not even that.
//!
//! `COPAL_STORM_JOBS` and `COPAL_STORM_SESSIONS` make it larger than what fits a test run.
#![expect(clippy::expect_used, reason = "a test's helper fails as a test does, and tells how fast it was")]

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
use sqlx::Connection as _;

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The two processes, as a launcher knows them.
#[derive(Clone)]
struct Service {
    apis: [Api; 2],
    /// Whether it may be away for a moment.
    stormy: bool,
}

impl Service {
    /// Sends until there is an answer other than "not now", as a launcher does. Both processes are tried in turn.
    async fn insist(&self, method: Method, path: &str, body: &Value) -> Value {
        let start = Instant::now();
        let key = uuid::Uuid::new_v4().to_string();
        // Calls begin at either process.
        let mut turn = usize::from(key.as_bytes()[0]);
        loop {
            turn += 1;
            let api = &self.apis[turn % 2];
            let request = api.request(method.clone(), path).header("Idempotency-Key", &key).json(body);
            let outcome = match request.send().await {
                Ok(answer) => (Some(answer.status().as_u16()), answer.text().await),
                Err(error) => (None, Err(error)),
            };
            match outcome {
                (Some(200 | 201), Ok(text)) => return serde_json::from_str(&text).expect("an answer is JSON"),
                (Some(503) | None, _) | (_, Err(_)) if self.stormy => {}
                (status, text) => panic!("{method} {path}: {status:?} {text:?}"),
            }
            assert!(start.elapsed() < LIMIT * 2, "{method} {path}: no answer in {:?}", start.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The Jobs that launchers ran, in the order of their reports.
type Ran = Arc<Mutex<Vec<i64>>>;

/// Acquires, runs and reports until nothing is found twice in a row.
async fn launcher(service: Service, site: i64, ran: Ran) {
    let session = id(&service.insist(Method::POST, "/sessions/", &json!({"site_id": site})).await);
    let wanted = json!({"max_num_jobs": 20, "filter_tags": {}, "max_aggregate_nodes": 20, "wait_sec": 1});
    let mut empty = 0;
    while empty < 2 {
        let held = service.insist(Method::POST, &format!("/sessions/{session}"), &wanted).await;
        let held: Vec<i64> = held.as_array().expect("a list").iter().map(id).collect();
        empty = if held.is_empty() { empty + 1 } else { 0 };
        let updates: Vec<Value> = held
            .iter()
            .flat_map(|job| ["RUNNING", "RUN_DONE"].map(|state| json!({"job_id": job, "state": state})))
            .collect();
        // One key, however often it is sent.
        let body = json!({"batch_key": uuid::Uuid::new_v4(), "updates": updates});
        let answer = service.insist(Method::POST, &format!("/sessions/{session}/updates"), &body).await;
        assert_eq!(answer["accepted"], updates.len(), "{answer}");
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

/// Two processes on one database, with Jobs that wait to be run by many Sessions.
struct Scene {
    total: usize,
    programs: Programs,
    first: Running,
    second: Running,
    /// Where the second listens, and the database of both.
    listen: String,
    url: String,
    ann: Api,
    service: Service,
    site: i64,
    ran: Ran,
}

impl Scene {
    async fn set(total: usize, stormy: bool) -> Self {
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
        let service = Service { apis: [ann.clone(), ann.at(&format!("http://{listen}"))], stormy };
        let site = ann.site("laptop").await;
        let app = ann.app(site, "Plain", &json!({"command": "true"})).await;
        let jobs: Vec<Value> =
            (0..total).map(|index| json!({"app_id": app, "workdir": format!("w/{index}")})).collect();
        for chunk in jobs.chunks(5_000) {
            ann.jobs(chunk).await;
        }
        Self { total, programs, first, second, listen, url, ann, service, site, ran: Ran::default() }
    }

    fn launchers(&self) -> Vec<tokio::task::JoinHandle<()>> {
        let sessions = setting("COPAL_STORM_SESSIONS", 64);
        (0..sessions).map(|_| tokio::spawn(launcher(self.service.clone(), self.site, Arc::clone(&self.ran)))).collect()
    }

    async fn wait_for_count(&self, count: usize) {
        let start = Instant::now();
        while self.ran.lock().expect("no panic holds it").len() < count {
            assert!(start.elapsed() < Duration::from_secs(600), "the storm stands still");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Every Job ran once, and the service knows.
    async fn check(&self) {
        let mut distinct = self.ran.lock().expect("no panic holds it").clone();
        let runs = distinct.len();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!((runs, distinct.len()), (self.total, self.total), "a Job ran twice or not at all");
        assert_eq!(self.ann.get("/jobs/by-state").await.ok(), json!({"JOB_FINISHED": self.total}));
        for state in ["RUNNING", "JOB_FINISHED"] {
            assert_eq!(self.ann.count(&format!("/events/?to_state={state}")).await, self.total as i64, "{state}");
        }
    }

    fn stop(self) {
        assert_eq!(self.second.stop(), 0);
        assert_eq!(self.first.stop(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sessions_at_two_processes_run_every_job_once_without_an_error() {
    let scene = Scene::set(setting("COPAL_STORM_JOBS", 4_000), false).await;
    let start = Instant::now();
    for launcher in scene.launchers() {
        launcher.await.expect("no launcher saw an error");
    }
    let rate = scene.total as f64 / start.elapsed().as_secs_f64();
    scene.check().await;
    let mut database = sqlx::PgConnection::connect(&scene.url).await.expect("the database of both");
    // The server's processes tell of theirs at their end, or after a moment.
    let deadlocks: i64 =
        sqlx::query_scalar("select deadlocks from pg_stat_database where datname = current_database()")
            .fetch_one(&mut database)
            .await
            .expect("statistics");
    assert_eq!(deadlocks, 0);
    eprintln!("{} Jobs acquired, run and reported at {rate:.0} a second", scene.total);
    scene.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_runs_once_through_crashes_of_service_and_postgres() {
    let mut scene = Scene::set(setting("COPAL_STORM_JOBS", 8_000), true).await;
    let start = Instant::now();
    let launchers = scene.launchers();
    scene.wait_for_count(scene.total / 5).await;
    scene.second.signal(Signal::SIGKILL);
    assert_eq!(scene.second.wait(LIMIT), -9);
    scene.second = start_second(&scene.programs, &scene.listen, &scene.url);
    scene.wait_for_count(scene.total / 2).await;
    let killed = postmaster(&scene.programs).expect("Postgres runs");
    kill(Pid::from_raw(killed), Signal::SIGKILL).expect("Postgres runs");
    for launcher in launchers {
        launcher.await.expect("no launcher saw an error");
    }
    assert_ne!(postmaster(&scene.programs), Some(killed));
    let rate = scene.total as f64 / start.elapsed().as_secs_f64();

    // An acquire that was answered into a cut connection leaves its Jobs with the Session until that ends.
    for session in scene.ann.ids("/sessions/").await {
        scene.ann.delete(&format!("/sessions/{session}")).await.deleted();
    }
    launcher(scene.service.clone(), scene.site, Arc::clone(&scene.ran)).await;
    scene.check().await;
    eprintln!("{} Jobs through both crashes at {rate:.0} a second", scene.total);
    scene.stop();
}
