//! Memory that a Job asked for and exceeded. What kills it is the node's or the scheduler's own guard, whose part is
//! played here by the Job itself.

use serde_json::json;

use crate::support::service::Service;

const SETTINGS: &str = "launcher: {idle_ttl_sec: 1, cpus_per_node: 2}\n";
/// Holds 80 MB for a moment in a child, and dies as by the kernel's hand; the shell itself, or only its child.
const ALL: &str = "head -c 80000000 /dev/zero | tail -c 80000000 > /dev/null; kill -KILL $$";
const CHILD: &str = "head -c 80000000 /dev/zero | tail -c 80000000 > /dev/null; sh -c 'kill -KILL $$'";

#[test]
fn memory_asked_and_exceeded_is_named() {
    let service = Service::start(SETTINGS);
    for (id, cmd, mem_mb) in [(1, ALL, 20), (2, CHILD, 20), (3, ALL, 2_000)] {
        service.job_with(id, 1, json!({"parameters": {"cmd": cmd}, "mem_mb": mem_mb, "node_packing_count": 2}));
    }
    let mut launcher = service.launch(&["-j", "serial", "-t", "10", "--batch-job-id", "7"]);
    for id in [1, 2] {
        let ended = service.wait_for(id, "RUN_ERROR");
        assert_eq!(ended["state_data"]["reason"], "memory", "{ended}");
        let message = ended["state_data"]["message"].as_str().unwrap();
        assert!(message.ends_with("20 MiB were asked for"), "{message}");
        assert!(ended["usage"]["peak_memory_bytes"].as_i64().unwrap() > 60_000_000, "{ended}");
    }
    // One that had as much as it used was killed for another reason.
    let ended = service.wait_for(3, "RUN_ERROR");
    assert_eq!((&ended["state_data"]["signal"], &ended["state_data"]["reason"]), (&json!("SIGKILL"), &json!(null)));
    assert_eq!(launcher.wait(), Some(0));
}
