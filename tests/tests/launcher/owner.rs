//! What an owner does to Jobs that run.

use copal_tests::wait::wait_for;
use serde_json::json;

use crate::bed::{Bed, LIMIT};

/// Hangs the first time; the second time it says whether its first run is still there.
const TWICE: &str = "command: |\n  if [ -e first ]; then [ -d /proc/$(cat first) ] && touch both; exit 0; fi\n  \
     echo $$ > first.new; mv first.new first; exec sleep 600";

#[tokio::test]
async fn a_job_that_is_put_back_while_it_runs_runs_in_one_place_at_a_time() {
    let bed = Bed::new(&[("Twice", TWICE)]).await;
    bed.settings(&json!({"cpus_per_node": 1, "idle_ttl_sec": 600, "kill_grace_sec": 1}));
    for (round, way) in [&["RESTART_READY"][..], &["FAILED", "RESTART_READY"]].into_iter().enumerate() {
        let workdir = format!("twice/{round}");
        let job = bed.jobs("Twice", 1, &json!({"workdir": workdir})).await[0];
        let first = bed.launch(&format!("first-{round}"), &["-j", "serial"], &[]);
        wait_for("its first run", LIMIT, async || match bed.path(&format!("data/{workdir}/first")).exists() {
            true => Ok(()),
            false => Err(first.log()),
        })
        .await;
        bed.wait_state(job, "RUNNING").await;
        // Another launcher waits for work.
        let second = bed.launch(&format!("second-{round}"), &["-j", "serial"], &[]);
        wait_for("two Sessions", LIMIT, async || match bed.sessions().await {
            2 => Ok(()),
            count => Err(format!("{count}: {}", second.log())),
        })
        .await;
        for state in way {
            bed.api.set_state(job, state).await;
        }
        bed.wait_state(job, "JOB_FINISHED").await;
        let logs = format!("{}{}", first.stop(), second.stop());
        assert!(!bed.path(&format!("data/{workdir}/both")).exists(), "{logs}");
    }
}
