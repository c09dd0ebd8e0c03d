//! Other requests while many clients wait.

use std::time::Duration;

use copal_tests::wait::{LIMIT, wait_for};
use reqwest::Method;
use serde_json::json;

use super::{bench::Bench, percentile, timed};
use crate::table::Table;

/// Other requests beside so many event streams and as many long polls.
pub(super) async fn measure(bench: &mut Bench, table: &mut Table, waiting: usize, samples: usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..waiting {
        let request = bench.api.request(Method::GET, &format!("/events/stream?site_id={}", bench.idle_site));
        tasks.spawn(async move {
            let mut answer = request.send().await.expect("a stream opens");
            while let Ok(Some(_)) = answer.chunk().await {}
        });
    }
    for _ in 0..waiting {
        let (api, session) = (bench.api.clone(), bench.api.session(bench.idle_site, None).await);
        tasks.spawn(async move {
            loop {
                let path = format!("/sessions/{session}");
                let wanted = json!({"max_num_jobs": 1, "filter_tags": {"never": "there"}, "wait_sec": 30});
                api.post(&path, &wanted).await.ok();
            }
        });
    }
    for gauge in ["copal_event_streams", "copal_long_polls"] {
        let all = |value: f64| value >= waiting as f64;
        wait_for(gauge, LIMIT, || async {
            let value = bench.gauge(gauge).await;
            if all(value) { Ok(()) } else { Err(format!("{value} of {waiting}")) }
        })
        .await;
    }
    let mut times = Vec::new();
    for index in 0..samples {
        let job = |app: i64| json!([{"app_id": app, "workdir": format!("crowd/{index}")}]);
        let request = match index % 4 {
            0 => bench.api.request(Method::GET, "/jobs/?limit=100"),
            1 => bench.api.request(Method::POST, "/jobs/").json(&job(bench.plain)),
            2 => bench.api.request(Method::GET, "/jobs/by-state"),
            // Every twentieth is a change that all streams tell, and that Sessions there could wait for.
            _ if index % 20 == 3 => bench.api.request(Method::POST, "/jobs/").json(&job(bench.idle)),
            _ => bench.api.request(Method::GET, "/sites/"),
        };
        times.push(timed(request).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tasks.shutdown().await;
    let what = format!("other requests beside {waiting} streams and {waiting} long polls, p99");
    let raw = format!("median {:.2} ms", percentile(&mut times, 0.5));
    table.at_most(what, percentile(&mut times, 0.99), 50.0, " ms", raw);
}
