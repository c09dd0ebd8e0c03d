//! Jobs that one allocation can't hold and another can.

use copal_tests::wait::wait_for;
use serde_json::json;

use crate::bed::{Bed, LIMIT};

#[tokio::test]
async fn pitfall_085_a_job_that_fits_no_node_here_is_left_to_another_launcher() {
    let bed = Bed::new(&[("True", "command: 'true'")]).await;
    let wide = bed.jobs("True", 1, &json!({"ranks_per_node": 6})).await[0];
    bed.settings(&json!({"cpus_per_node": 4, "idle_ttl_sec": 600, "mpi": "template", "mpi_template": "env"}));
    let small = bed.launch("small", &["-j", "mpi"], &[]);
    let why = wait_for("the Job to be given back", LIMIT, async || {
        let why = bed.api.get(&format!("/jobs/{wide}/why")).await.ok();
        let told = why["reasons"].to_string();
        if told.contains("6 CPUs; a node has 4") { Ok(why) } else { Err(told) }
    })
    .await;
    assert_eq!(why["state"], "PREPROCESSED");
    // The launcher is not given it again, and goes on with others.
    let narrow = bed.jobs("True", 1, &json!({"workdir": "narrow"})).await[0];
    bed.wait_state(narrow, "JOB_FINISHED").await;
    assert_eq!(small.log().matches("gives a Job back").count(), 1, "{}", small.log());
    bed.settings(&json!({"cpus_per_node": 8, "idle_ttl_sec": 600, "mpi": "template", "mpi_template": "env"}));
    let large = bed.launch("large", &["-j", "mpi"], &[]);
    bed.wait_state(wide, "JOB_FINISHED").await;
    assert_eq!(bed.events("FAILED").await.len(), 0);
    small.stop();
    large.stop();
}
