//! Two launchers on one Site. `COPAL_SHARE_JOBS=10000` makes it as many Jobs as one would do in earnest.

use std::collections::BTreeMap;

use copal_tests::wait::wait_for;
use serde_json::{Value, json};

use crate::bed::{Bed, LIMIT};

const SLOTS: u64 = 4;
/// From so many Jobs on the shares tell whether one stood idle.
const MANY: usize = 10_000;

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

/// Which of the gated Jobs run, by the mark of their launcher.
fn running(bed: &Bed, jobs: usize) -> BTreeMap<String, Vec<usize>> {
    let mut of: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for index in 0..jobs {
        let folder = bed.path(&format!("data/Gated/{index:05}"));
        if let Ok(mark) = std::fs::read_to_string(folder.join("mark"))
            && mark.ends_with('\n')
            && !folder.join("open").exists()
        {
            of.entry(mark.trim().into()).or_default().push(index);
        }
    }
    of
}

/// Opens the gates of all gated Jobs, and waits until these and all others are finished.
async fn finish(bed: &Bed, gated: usize, all: usize) {
    for index in 0..gated {
        std::fs::create_dir_all(bed.path(&format!("data/Gated/{index:05}"))).unwrap();
        std::fs::write(bed.path(&format!("data/Gated/{index:05}/open")), "").unwrap();
    }
    bed.wait_count("JOB_FINISHED", all as u64).await;
    assert_eq!(bed.events("RUNNING").await.len(), all);
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
    // Equal launchers have about equal shares of very many; of few, whoever the machine lets run first has more, up to all of
    // them. How long a launcher stood idle says no more, since a busy machine may keep it from running for any time. That
    // none is idle while there is work is shown without chance by `none_is_idle_while_there_is_work`.
    if count >= MANY {
        assert!(shares.len() == 2 && shares.values().all(|share| *share >= count / 5), "{shares:?}");
    }
}

#[tokio::test]
async fn none_is_idle_while_there_is_work() {
    let bed = Bed::new(&[("Gated", GATED)]).await;
    let jobs = bed.jobs("Gated", 14, &packed()).await;
    let launchers = two(&bed).await;
    let running = || running(&bed, jobs.len());
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
    finish(&bed, jobs.len(), jobs.len()).await;
    for launcher in launchers {
        launcher.stop();
    }
}

/// While Jobs end quickly, a launcher fetches some ahead. When the ones at hand turn out to be long, those that wait
/// behind them go to a launcher that has room.
#[tokio::test]
async fn jobs_fetched_ahead_go_to_others_when_runs_turn_out_long() {
    const QUICK: usize = 300;
    const LONG: usize = 2 * SLOTS as usize;
    let bed = Bed::new(&[("Quick", "command: true\noutput: none"), ("Gated", GATED)]).await;
    bed.settings(&json!({"cpus_per_node": SLOTS, "idle_ttl_sec": 600, "sort_by": "fifo"}));
    bed.jobs("Quick", QUICK, &packed()).await;
    bed.jobs("Gated", LONG, &packed()).await;
    let full = async |mark: &str, log: &dyn Fn() -> String| {
        wait_for(&format!("launcher {mark} to be full"), LIMIT, async || match running(&bed, LONG) {
            of if of.get(mark).map(Vec::len) == Some(SLOTS as usize) => Ok(()),
            of => Err(format!("{of:?}; {}", log())),
        })
        .await;
    };
    let one = bed.launch("one", &["-j", "serial"], &[("MARK", "one")]);
    full("one", &|| one.log()).await;
    let two = bed.launch("two", &["-j", "serial"], &[("MARK", "two")]);
    full("two", &|| format!("{}; {}", one.log(), two.log())).await;
    finish(&bed, LONG, QUICK + LONG).await;
    one.stop();
    two.stop();
}

/// A Job of several nodes waits for its turn at a launcher whose nodes are in use. A launcher that comes with empty nodes
/// gets it.
#[tokio::test]
async fn a_wide_job_that_waits_goes_to_a_launcher_with_empty_nodes() {
    let bed = Bed::new(&[("Gated", GATED), ("Wide", "command: 'true'")]).await;
    let mpi = json!({"cpus_per_node": SLOTS, "idle_ttl_sec": 600, "mpi": "template", "mpi_template": "env"});
    bed.settings(&mpi);
    bed.jobs("Gated", 1, &json!({})).await;
    let nodes = [("COPAL_LOCAL_NODELIST", "local[0-1]")];
    let env = |mark| [("MARK", mark), nodes[0]];
    let one = bed.launch("one", &["-j", "mpi"], &env("one"));
    wait_for("one to run", LIMIT, async || match running(&bed, 1) {
        of if of.contains_key("one") => Ok(()),
        of => Err(format!("{of:?}; {}", one.log())),
    })
    .await;
    let wide = bed.jobs("Wide", 1, &json!({"num_nodes": 2})).await[0];
    wait_for("one to hold it", LIMIT, async || {
        let job = bed.api.get(&format!("/jobs/{wide}")).await.ok();
        if job["session_id"].is_null() { Err(job["state"].to_string()) } else { Ok(()) }
    })
    .await;
    let two = bed.launch("two", &["-j", "mpi"], &env("two"));
    bed.wait_state(wide, "JOB_FINISHED").await;
    assert!(one.log().contains("a Job waits: it needs 2 empty nodes; 1 of 2 are empty"), "{}", one.log());
    finish(&bed, 1, 2).await;
    one.stop();
    two.stop();
}
