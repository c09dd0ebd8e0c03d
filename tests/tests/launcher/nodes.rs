//! 64 nodes on one machine, by loopback addresses: a worker on each, through the real service.

use std::collections::BTreeMap;

use serde_json::json;

use crate::bed::Bed;

#[tokio::test]
async fn sixty_four_nodes_run_one_array() {
    const NODES: u64 = 64;
    const JOBS: u64 = 128;
    let bed =
        Bed::new(&[("Where", "command: 'echo $NODE; while [ ! -e $COPAL_SITE_PATH/gate ]; do sleep 0.1; done'")]).await;
    bed.settings(&json!({
        "cpus_per_node": 1, "idle_ttl_sec": 600, "mpi": "template", "mpi_template": "env NODE={{hosts}}",
    }));
    bed.jobs("Where", JOBS as usize, &json!({})).await;
    let nodes = "127.0.0.[2-65]";
    let env = [("SLURM_JOB_ID", "5"), ("SLURM_JOB_NODELIST", nodes), ("SLURM_NODELIST", nodes)];
    let launcher = bed.launch("launcher", &["-j", "serial"], &env);
    // One on each node, and no node has two.
    bed.wait_count("RUNNING", NODES).await;
    std::fs::write(bed.path("gate"), "").unwrap();
    bed.wait_count("JOB_FINISHED", JOBS).await;
    launcher.stop();
    let mut runs: BTreeMap<String, u32> = BTreeMap::new();
    for index in 0..JOBS {
        let text = std::fs::read_to_string(bed.path(&format!("data/Where/{index:05}/job.out"))).unwrap();
        *runs.entry(text.trim().to_owned()).or_default() += 1;
    }
    assert_eq!((runs.len(), runs.values().sum::<u32>()), (NODES as usize, JOBS as u32), "{runs:?}");
    // The service knows where each ran.
    let job = bed.api.ids("/jobs/?limit=1").await[0];
    let attempts = bed.api.get(&format!("/jobs/{job}/attempts")).await.ok();
    assert!(attempts[0]["nodes"][0].as_str().unwrap().starts_with("127.0.0."), "{attempts}");
}
