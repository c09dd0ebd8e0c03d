//! Two launchers on one Site. `COPAL_SHARE_JOBS=10000` makes it as many Jobs as one would do in earnest.

use std::collections::BTreeMap;

use copal_tests::wait::wait_for;
use serde_json::{Value, json};

use crate::bed::{Bed, LIMIT};

const SLOTS: u64 = 4;

fn job_count() -> usize {
    std::env::var("COPAL_SHARE_JOBS").ok().and_then(|text| text.parse().ok()).unwrap_or(600)
}

/// Whose run a Job was: the launcher's own mark, which its Jobs inherit.
const TRACE: &str = "command: echo $MARK >> trace";
/// Ends when its own gate is opened.
const GATED: &str = "command: echo $MARK > mark; while [ ! -e open ]; do sleep 0.02; done";

async fn two(bed: &Bed) -> [crate::bed::Launcher; 2] {
    bed.settings(&json!({"cpus_per_node": SLOTS, "idle_ttl_sec": 600}));
    ["one", "two"].map(|mark| bed.launch(mark, &["-j", "serial"], &[("MARK", mark)]))
}

fn packed() -> Value {
    json!({"node_packing_count": SLOTS})
}

#[tokio::test]
async fn all_jobs_run_and_each_runs_once() {
    let count = job_count();
    let bed = Bed::new(&[("Trace", TRACE)]).await;
    let launchers = two(&bed).await;
    // Both are there before there is work, so that neither has a start.
    wait_for("both Sessions", LIMIT, async || match bed.sessions().await {
        2 => Ok(()),
        count => Err(format!("{count} Sessions")),
    })
    .await;
    let jobs = bed.jobs("Trace", count, &packed()).await;
    wait_for("all Jobs to be finished", LIMIT * 5, async || match bed.counts().await {
        counts if counts.get("JOB_FINISHED") == Some(&(count as u64)) => Ok(()),
        counts => Err(format!("{counts:?}; {}", launchers[0].log())),
    })
    .await;
    for launcher in launchers {
        launcher.stop();
    }
    let mut shares: BTreeMap<String, usize> = BTreeMap::new();
    for (index, job) in jobs.iter().enumerate() {
        let trace = std::fs::read_to_string(bed.path(&format!("data/Trace/{index:05}/trace"))).unwrap();
        // One line says that it ran, and once.
        assert!(["one\n", "two\n"].contains(&trace.as_str()), "Job {job}: {trace:?}");
        *shares.entry(trace).or_default() += 1;
    }
    println!("{count} Jobs: {shares:?}");
    assert_eq!(bed.events("RUNNING").await.len(), count);
    // Equal launchers have about equal shares; one that stood idle would have far less.
    assert!(shares.len() == 2 && shares.values().all(|share| *share >= count / 5), "{shares:?}");
}

#[tokio::test]
async fn none_is_idle_while_there_is_work() {
    let bed = Bed::new(&[("Gated", GATED)]).await;
    let jobs = bed.jobs("Gated", 14, &packed()).await;
    let launchers = two(&bed).await;
    let running = || -> BTreeMap<String, Vec<usize>> {
        let mut of: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for index in 0..jobs.len() {
            let folder = bed.path(&format!("data/Gated/{index:05}"));
            if let Ok(mark) = std::fs::read_to_string(folder.join("mark"))
                && mark.ends_with('\n')
                && !folder.join("open").exists()
            {
                of.entry(mark.trim().into()).or_default().push(index);
            }
        }
        of
    };
    // Both are full at once, and each place that becomes free is filled again, by either, until nothing waits.
    for round in 0..=jobs.len() - 2 * SLOTS as usize {
        let full = wait_for("both launchers to be full", LIMIT, async || match running() {
            of if of.len() == 2 && of.values().all(|jobs| jobs.len() == SLOTS as usize) => Ok(of),
            of => Err(format!("{of:?}; {}; {}", launchers[0].log(), launchers[1].log())),
        })
        .await;
        let next = &full[["one", "two"][round % 2]][0];
        std::fs::write(bed.path(&format!("data/Gated/{next:05}/open")), "").unwrap();
    }
    for index in 0..jobs.len() {
        std::fs::create_dir_all(bed.path(&format!("data/Gated/{index:05}"))).unwrap();
        std::fs::write(bed.path(&format!("data/Gated/{index:05}/open")), "").unwrap();
    }
    bed.wait_count("JOB_FINISHED", jobs.len() as u64).await;
    assert_eq!(bed.events("RUNNING").await.len(), jobs.len());
    for launcher in launchers {
        launcher.stop();
    }
}
