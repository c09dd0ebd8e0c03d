//! How long single requests take: the same on a small and on a large database, by turns, and those with a limit of their own.

use std::time::{Duration, Instant};

use copal_tests::{id, world::with};
use reqwest::Method;
use serde_json::{Value, json};

use super::{bench::Bench, percentile, timed};
use crate::table::Table;

/// Calls before those that count: the first ones read from disk, and make statements ready.
const WARM_UP: usize = 5;

/// Times of one request in milliseconds, small and large.
struct Row {
    what: &'static str,
    small: Vec<f64>,
    large: Vec<f64>,
}

/// Latencies that should not grow with the database.
pub(super) struct Latencies(Vec<Row>);

impl Latencies {
    pub(super) async fn take(small: &Bench, large: &Bench, samples: usize) -> Self {
        let mut rows = Vec::new();
        for (what, most, fields) in [
            ("acquire 1", 1, json!({})),
            ("acquire 100", 100, json!({})),
            ("acquire 100 with max_aggregate_nodes", 100, json!({"max_aggregate_nodes": 1_000})),
            ("acquire 100 by the tag of a tenth", 100, json!({"filter_tags": {"set": "7"}})),
            ("acquire 100 by the tag of all", 100, json!({"filter_tags": {"campaign": "bench"}})),
            ("acquire 100 by two tags", 100, json!({"filter_tags": {"set": "3", "campaign": "bench"}})),
            ("acquire by a tag that no Job has", 100, json!({"filter_tags": {"set": "none"}})),
            ("acquire 100 of an hour at most, the last tenth", 100, json!({"max_wall_time_min": 60})),
            ("the same with max_aggregate_nodes", 100, json!({"max_wall_time_min": 60, "max_aggregate_nodes": 1_000})),
            (
                "acquire 100 of two hours at most by the tag of all",
                100,
                json!({"max_wall_time_min": 120, "filter_tags": {"campaign": "bench"}}),
            ),
            ("acquire as short as no Job is", 100, json!({"max_wall_time_min": 1, "serial_only": true})),
        ] {
            // What is taken from the small one must stay a small part of it.
            let takes_a_part = fields["filter_tags"]["set"].is_string() || fields["max_wall_time_min"].is_number();
            let samples = if most > 1 && takes_a_part { samples.min(8) } else { samples.min(20) };
            rows.push(acquires(what, small, large, samples, &with(json!({"max_num_jobs": most}), &fields)).await);
        }
        for (what, path) in [
            ("list 100 Jobs by tag and state", "/jobs/?tags=set:3&state=PREPROCESSED&limit=100"),
            ("list 100 Jobs by the tag of a tenth", "/jobs/?tags=set:3&limit=100"),
            ("list 100 Jobs by two tags", "/jobs/?tags=set:3&tags=campaign:bench&limit=100"),
            ("list 100 Jobs", "/jobs/?limit=100"),
            ("list 100 Jobs by -last_update", "/jobs/?ordering=-last_update&limit=100"),
            ("count by state", "/jobs/by-state"),
            ("list 100 events", "/events/?limit=100"),
            ("list 100 events by state", "/events/?to_state=PREPROCESSED&limit=100"),
        ] {
            rows.push(by_turns(what, samples, small, large, |bench| bench.api.request(Method::GET, path)).await);
        }
        Self(rows)
    }

    pub(super) fn compare(mut self, table: &mut Table) {
        for Row { what, small, large } in &mut self.0 {
            let goal = if what.starts_with("acquire") { 1.3 } else { 2.0 };
            let (before, after) = (percentile(small, 0.5), percentile(large, 0.5));
            let raw = format!("medians {before:.2} ms, then {after:.2} ms");
            table.at_most(format!("{what}: large against small"), after / before, goal, "", raw);
        }
        for Row { what, large, .. } in self.0.iter_mut().filter(|row| !row.what.starts_with("acquire")) {
            let raw = format!("p99 {:.2} ms", percentile(large, 0.99));
            table.at_most(format!("{what}, large: median"), percentile(large, 0.5), 10.0, " ms", raw);
        }
    }
}

async fn by_turns(
    what: &'static str,
    samples: usize,
    small: &Bench,
    large: &Bench,
    request: impl Fn(&Bench) -> reqwest::RequestBuilder,
) -> Row {
    let mut row = Row { what, small: Vec::new(), large: Vec::new() };
    for index in 0..samples + WARM_UP {
        let times = (timed(request(small)).await, timed(request(large)).await);
        if index >= WARM_UP {
            row.small.push(times.0);
            row.large.push(times.1);
        }
    }
    row
}

/// Acquires again and again, and gives everything back at the end.
async fn acquires(what: &'static str, small: &Bench, large: &Bench, samples: usize, fields: &Value) -> Row {
    let sessions = (small.api.session(small.site, None).await, large.api.session(large.site, None).await);
    let wanted = with(json!({"filter_tags": {}}), fields);
    let row = by_turns(what, samples, small, large, |bench| {
        let session = if std::ptr::eq(bench, small) { sessions.0 } else { sessions.1 };
        bench.api.request(Method::POST, &format!("/sessions/{session}")).json(&wanted)
    })
    .await;
    small.api.delete(&format!("/sessions/{}", sessions.0)).await.deleted();
    large.api.delete(&format!("/sessions/{}", sessions.1)).await.deleted();
    row
}

/// Jobs made one by one.
pub(super) async fn singles(bench: &mut Bench, table: &mut Table, samples: usize) {
    let mut times = Vec::new();
    for _ in 0..samples {
        let body = json!([{"app_id": bench.plain, "workdir": bench.workdir(), "tags": {"set": "y"}, "parameters": {}}]);
        times.push(timed(bench.api.request(Method::POST, "/jobs/").json(&body)).await);
    }
    let raw = format!("p99 {:.2} ms", percentile(&mut times, 0.99));
    table.at_most("create 1, median", percentile(&mut times, 0.5), 2.0, " ms", raw);
}

/// From a Job's creation to its arrival at a Session that waits.
pub(super) async fn wake_ups(bench: &mut Bench, table: &mut Table, samples: usize) {
    // What an earlier run left there would be acquired at once.
    bench.api.delete(&format!("/jobs/?site_id={}", bench.idle_site)).await.deleted();
    let session = bench.api.session(bench.idle_site, None).await;
    let mut times = Vec::new();
    for index in 0..samples + WARM_UP {
        let api = bench.api.clone();
        let waiting = tokio::spawn(async move {
            let taken = api.acquire(session, &json!({"max_num_jobs": 1, "wait_sec": 30})).await;
            (Instant::now(), taken.len())
        });
        // Until it surely waits.
        tokio::time::sleep(Duration::from_millis(30)).await;
        let workdir = bench.workdir();
        let start = Instant::now();
        bench.api.job(bench.idle, &json!({"workdir": workdir, "parameters": {}})).await;
        let (arrived, count) = waiting.await.expect("the Session waits");
        assert_eq!(count, 1, "the Session got no Job");
        if index >= WARM_UP {
            times.push((arrived - start).as_secs_f64() * 1e3);
        }
    }
    bench.api.delete(&format!("/sessions/{session}")).await.deleted();
    let (median, late) = (percentile(&mut times, 0.5), percentile(&mut times, 0.99));
    table.at_most("creation to acquired, median", median, 10.0, " ms", format!("{} samples", times.len()));
    table.at_most(
        "creation to acquired, p99",
        late,
        50.0,
        " ms",
        format!("longest {:.2} ms", percentile(&mut times, 1.0)),
    );
}

/// The deletion of a Site with 100,000 Jobs: until it is answered, and until the last of its Jobs is gone.
pub(super) async fn deletion(bench: &mut Bench, table: &mut Table) {
    const JOBS: i64 = 100_000;
    let site = bench.api.site("doomed").await;
    let app = bench.api.app(site, "Work", &json!({"command": "true"})).await;
    let job = json!({"app_id": app, "workdir": "doomed/{index}", "tags": {"campaign": "doomed"}, "parameters": {}});
    bench.api.post("/job-arrays/", &json!({"last": JOBS - 1, "job": job})).await.created();
    assert_eq!(bench.api.count(&format!("/jobs/?limit=0&site_id={site}")).await, JOBS);
    let last = id(&bench.api.list(&format!("/jobs/?site_id={site}&ordering=-id&limit=1")).await[0]);
    let start = Instant::now();
    let time = timed(bench.api.request(Method::DELETE, &format!("/sites/{site}"))).await;
    assert_eq!(
        bench.api.count(&format!("/jobs/?limit=0&site_id={site}")).await,
        0,
        "its Jobs are out of sight at once"
    );
    const LEFT: &str = "select exists (select from job_details where site_id = $1 and job_id <= $2)";
    loop {
        let left: bool =
            sqlx::query_scalar(LEFT).bind(site).bind(last).fetch_one(&bench.pool).await.expect("Postgres answers");
        if !left {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let raw = format!("its Jobs were removed {:.1} s later", start.elapsed().as_secs_f64());
    table.at_most("delete a Site of 100,000 Jobs", time, 100.0, " ms", raw);
}
