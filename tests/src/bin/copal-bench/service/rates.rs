//! Bulk calls over HTTP and, by turns, with the same statements from this process straight to the same Postgres.

use std::time::{Duration, Instant};

use copal_schemas::job::{JobCreate, JobPatchItem};
use copal_server::db;
use copal_tests::id;
use reqwest::Method;
use serde_json::{Value, json};

use super::{bench::Bench, sent};
use crate::table::Table;

/// Jobs in one call.
const CALL: usize = 1_000;

fn new_jobs(bench: &mut Bench) -> Value {
    let app = bench.stepwise;
    let job = |workdir: String| json!({"app_id": app, "workdir": workdir, "tags": {"set": "x", "campaign": "bench"}, "parameters": {}});
    Value::Array((0..CALL).map(|_| job(bench.workdir())).collect())
}

/// Bulk creates.
pub(super) async fn creates(bench: &mut Bench, table: &mut Table, calls: usize, size: &str) {
    let (mut http, mut straight) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..calls {
        let body = new_jobs(bench);
        http += sent(bench.api.request(Method::POST, "/jobs/").json(&body)).await;
        let jobs: Vec<JobCreate> = serde_json::from_value(new_jobs(bench)).expect("Jobs");
        let start = Instant::now();
        let made = db::transact(&bench.pool, async |tx| db::job_create::create(tx, bench.scope, jobs.clone()).await);
        made.await.expect("the Jobs are made");
        straight += start.elapsed();
    }
    compare(table, &format!("create 1,000 a call, {size}"), calls, (http, calls), (straight, calls));
}

/// Bulk PATCHes.
pub(super) async fn updates(bench: &mut Bench, table: &mut Table, calls: usize, size: &str) {
    let mut batches = Vec::new();
    for _ in 0..calls {
        let body = new_jobs(bench);
        let made = bench.api.post("/jobs/", &body).await.created();
        batches.push(made.as_array().expect("a list").iter().map(id).collect::<Vec<i64>>());
    }
    for (from, to) in [("STAGED_IN", "RUNNING"), ("RUNNING", "RUN_DONE")] {
        let (mut http, mut straight, mut turns) = (Duration::ZERO, Duration::ZERO, [0, 0]);
        for (turn, batch) in batches.iter().enumerate() {
            let patches: Vec<Value> = batch.iter().map(|job| json!({"id": job, "state": to})).collect();
            turns[turn % 2] += 1;
            if turn % 2 == 0 {
                http += sent(bench.api.request(Method::PATCH, "/jobs/").json(&patches)).await;
            } else {
                let items: Vec<JobPatchItem> = serde_json::from_value(json!(patches)).expect("patches");
                let start = Instant::now();
                let done = db::transact(&bench.pool, async |tx| {
                    db::job_patch::update_many(tx, bench.scope, items.clone()).await
                });
                done.await.expect("the Jobs are updated");
                straight += start.elapsed();
            }
        }
        let what = format!("PATCH 1,000 from {from} to {to}, {size}");
        compare(table, &what, calls, (http, turns[0]), (straight, turns[1]));
    }
}

fn compare(table: &mut Table, what: &str, calls: usize, http: (Duration, usize), straight: (Duration, usize)) {
    let rate = |(time, calls): (Duration, usize)| (calls * CALL) as f64 / time.as_secs_f64();
    let (http, straight) = (rate(http), rate(straight));
    let raw = format!("{http:.0}/s by HTTP, {straight:.0}/s straight to Postgres, {calls} calls");
    table.at_least(what, http / straight, 0.7, raw);
}
