//! A clock that jumps by days, forth and back, changes no lease: the launcher's own clock is a steady one, and
//! leases are judged by the database's.

use std::{fs, path::Path};

use serde_json::json;

use crate::bed::Bed;

/// The library that makes a process's clock wrong; the variant for programs with threads.
fn library() -> String {
    let folders = ["/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib/faketime"];
    let found =
        folders.iter().map(|folder| format!("{folder}/libfaketimeMT.so.1")).find(|file| Path::new(file).exists());
    found.expect("libfaketime is missing; install the package faketime")
}

#[tokio::test]
async fn a_clock_that_jumps_changes_no_lease() {
    let bed = Bed::new(&[
        ("Gated", "command: 'while [ ! -e $COPAL_SITE_PATH/gate ]; do sleep 0.05; done'"),
        ("Date", "command: date +%s"),
    ])
    .await;
    bed.settings(&json!({"cpus_per_node": 2, "idle_ttl_sec": 600}));
    let offset = bed.path("offset");
    fs::write(&offset, "+0d\n").unwrap();
    let (library, file) = (library(), offset.display().to_string());
    let env = [
        ("LD_PRELOAD", library.as_str()),
        ("FAKETIME_TIMESTAMP_FILE", file.as_str()),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    let launcher = bed.launch("launcher", &["-j", "serial"], &env);
    let packed = |workdir: &str| json!({"node_packing_count": 2, "workdir": workdir});
    let long = bed.jobs("Gated", 1, &packed("long")).await[0];
    bed.wait_state(long, "RUNNING").await;
    for (jump, days) in [("+3d", 3), ("-3d", -3), ("+0d", 0)] {
        fs::write(&offset, format!("{jump}\n")).unwrap();
        let job = bed.jobs("Date", 1, &packed(jump)).await[0];
        bed.wait_state(job, "JOB_FINISHED").await;
        // The jump was there.
        let text = fs::read_to_string(bed.path(&format!("data/{jump}/job.out"))).unwrap();
        let seen = (text.trim().parse::<i64>().unwrap() - chrono::Utc::now().timestamp()) as f64 / 86_400.0;
        assert!((seen - f64::from(days)).abs() < 0.1, "{seen} days off");
        assert_eq!(bed.api.get(&format!("/jobs/{long}")).await.ok()["state"], "RUNNING", "{}", launcher.log());
    }
    fs::write(bed.path("gate"), "").unwrap();
    bed.wait_state(long, "JOB_FINISHED").await;
    assert_eq!(bed.api.list("/sessions/").await.len(), 1);
    assert_eq!(bed.events("RUN_TIMEOUT").await.len(), 0);
    assert_eq!(bed.events("RUNNING").await.len(), 4);
    let log = launcher.stop();
    assert_eq!(log.matches("opened a Session").count(), 1, "{log}");
}
