//! The service as a plain Python client sees it, beside the original service's figures with the same client:
//! `tests/python/benchmark.py` sends the requests, here they are put beside the goals.

use std::process::{Command, Stdio};

use copal_tests::python;
use serde_json::Value;

use super::bench::Bench;
use crate::table::Table;

/// How much is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct PythonOptions {
    /// Jobs in the database.
    #[arg(long, default_value_t = 100_000)]
    jobs: usize,
    /// Calls of 1,000 Jobs by which rates are measured; a tenth of the single ones.
    #[arg(long, default_value_t = 20)]
    calls: usize,
}

/// A figure of the original service on 100,000 Jobs, and what is to be reached.
enum Goal {
    /// So many times the Jobs a second.
    Faster { original: f64, times: f64 },
    /// So many milliseconds.
    Within { original_ms: f64, goal_ms: f64 },
}

/// By the names that the script gives.
const GOALS: &[(&str, Goal)] = &[
    ("create 1", Goal::Within { original_ms: 17.0, goal_ms: 2.0 }),
    ("create 1,000 a call", Goal::Faster { original: 2_105.0, times: 8.0 }),
    ("acquire 1 with max_aggregate_nodes", Goal::Within { original_ms: 190.0, goal_ms: 190.0 / 20.0 }),
    ("acquire 100 with max_aggregate_nodes", Goal::Faster { original: 364.0, times: 5.0 }),
    ("acquire 1,000 with max_aggregate_nodes", Goal::Faster { original: 3_776.0, times: 5.0 }),
    ("PATCH 1,000 to RUNNING", Goal::Faster { original: 2_134.0, times: 6.0 }),
    ("PATCH 1,000 to RUN_DONE", Goal::Faster { original: 2_606.0, times: 6.0 }),
    ("list 100 Jobs", Goal::Within { original_ms: 63.0, goal_ms: 10.0 }),
    ("list 100 Jobs by tag", Goal::Within { original_ms: 26.0, goal_ms: 10.0 }),
    ("list 100 Jobs by -last_update", Goal::Within { original_ms: 193.0, goal_ms: 10.0 }),
    ("count by state", Goal::Within { original_ms: 56.0, goal_ms: 10.0 }),
    ("list 100 events", Goal::Within { original_ms: 1_314.0, goal_ms: 10.0 }),
];

pub(super) async fn measure(options: &PythonOptions) -> Table {
    let interpreter = python::environment("balsam").join("python");
    let mut bench = Bench::open(None).await;
    bench.fill(options.jobs, 0).await;
    let mut command = Command::new(interpreter);
    command
        .arg(python::scripts().join("benchmark.py"))
        .env("COPAL_BENCH_URL", bench.api.base())
        .env("COPAL_BENCH_TOKEN", bench.api.token().unwrap_or_default())
        .args([bench.site, bench.stepwise].map(|id| id.to_string()))
        .arg(options.calls.to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command.output().expect("python starts");
    assert!(output.status.success(), "the script failed");
    let mut table = Table::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        add(&mut table, &serde_json::from_str(line).expect("a figure a line"));
    }
    super::latency::deletion(&mut bench, &mut table).await;
    bench.close().await;
    table
}

/// Adds what the script says of one kind of request.
fn add(table: &mut Table, figure: &Value) {
    let what = figure["what"].as_str().expect("a name");
    let number = |key: &str| figure[key].as_f64().expect("a number");
    let (median_ms, p99_ms, rate, json_share) =
        (number("median_ms"), number("p99_ms"), number("rate"), number("json_share"));
    let share = format!("Python's own JSON {:.0} %", json_share * 100.0);
    match GOALS.iter().find(|(name, _)| *name == what).map(|(_, goal)| goal) {
        Some(Goal::Faster { original, times }) => {
            let raw = format!("{rate:.0}/s, the original {original:.0}/s; {share}");
            table.at_least(format!("{what}: times the original's rate"), rate / original, *times, raw);
        }
        Some(Goal::Within { original_ms, goal_ms }) => {
            let raw = format!("p99 {p99_ms:.2} ms, the original {original_ms} ms; {share}");
            table.at_most(format!("{what}: median"), median_ms, *goal_ms, " ms", raw);
        }
        None => panic!("the script measured {what:?}, which has no goal"),
    }
}
