//! The service is not there: connections are refused. `COPAL_AWAY_SEC=300` makes it minutes, in which leases run out.

use std::{fs, time::Duration};

use copal_tests::wait::wait_for;
use serde_json::json;

use crate::bed::{Bed, LIMIT};

const GATED: &str =
    "command: echo up > up; while [ ! -e $COPAL_SITE_PATH/gate ]; do sleep 0.05; done; echo down > down";

fn away() -> Duration {
    Duration::from_secs(std::env::var("COPAL_AWAY_SEC").ok().and_then(|text| text.parse().ok()).unwrap_or(0))
}

#[tokio::test]
async fn pitfall_109_runs_that_end_while_connections_are_refused_are_told_later() {
    const JOBS: usize = 4;
    // A launcher without a BatchJob would be cut off after 300 s; the time in which the service is down counts for it,
    // since it can't tell that from a cut network.
    let patience = (300 + 2 * away().as_secs()).to_string();
    let arguments = ["--lease", &patience];
    let mut bed = Bed::with_server(&arguments, &[("Gated", GATED)]).await;
    bed.settings(&json!({"cpus_per_node": JOBS, "idle_ttl_sec": 600}));
    let jobs = bed.jobs("Gated", JOBS, &json!({"node_packing_count": JOBS})).await;
    let launcher = bed.launch("launcher", &["-j", "serial"], &[]);
    bed.wait_count("RUNNING", JOBS as u64).await;

    let server = bed.laptop.server.take().unwrap();
    assert_eq!(server.stop(), 0);
    // Time itself must pass here.
    tokio::time::sleep(away()).await;
    fs::write(bed.path("gate"), "").unwrap();
    let everywhere = |name: &str| (0..JOBS).all(|job| bed.path(&format!("data/Gated/{job:05}/{name}")).exists());
    let spooled = || fs::read_dir(bed.path("spool")).is_ok_and(|mut files| files.next().is_some());
    wait_for("all ends, in the spool", LIMIT, async || match everywhere("down") && spooled() {
        true => Ok(()),
        false => Err(launcher.log()),
    })
    .await;

    let (server, _) = bed.laptop.programs.start_server(bed.laptop.port, &arguments);
    bed.laptop.server = Some(server);
    bed.wait_count("JOB_FINISHED", JOBS as u64).await;
    for state in ["RUNNING", "RUN_DONE"] {
        assert_eq!(bed.events(state).await.len(), JOBS, "{state}: {}", launcher.log());
    }
    // The same launcher in the same Session takes what is next.
    let next = bed.jobs("Gated", 1, &json!({"workdir": "next"})).await[0];
    bed.wait_state(next, "JOB_FINISHED").await;
    assert_eq!(bed.events("RUNNING").await.len(), jobs.len() + 1);
    assert_eq!(launcher.stop().matches("opened a Session").count(), 1);
}
