//! Workdirs that can't be used: full, read-only, gone. The Job fails with that reason and the launcher goes on.
//!
//! Disks of their own need a namespace, in which the launcher then runs.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::service::Service;

/// Runs the launcher with two small disks in its Site, one full and one read-only; `false` where no namespace may be
/// made.
fn launch_on_small_disks(service: &Service, arguments: &[&str]) -> bool {
    for folder in ["full", "read-only"] {
        std::fs::create_dir_all(service.path(&format!("site/data/{folder}"))).unwrap();
    }
    // All of its room and all of its files are used up.
    let script = "set -e; cd \"$0\"\n\
                  mount -t tmpfs -o size=64k,nr_inodes=4 none full; mkdir full/old; touch full/old/job.out\n\
                  dd if=/dev/zero of=full/file bs=1k count=128 2>/dev/null || :\n\
                  mount -t tmpfs -o size=64k,ro none read-only\n\
                  exec \"$@\"";
    let inside = |command: &mut Command| {
        command.args(["--mount", "sh", "-c", script]).arg(service.path("site/data"));
    };
    let is_root = nix::unistd::geteuid().is_root();
    let words: &[&str] = if is_root { &["unshare"] } else { &["unshare", "--user", "--map-root-user"] };
    let mut probe = Command::new(words[0]);
    probe.args(&words[1..]);
    inside(&mut probe);
    if !probe.arg("true").status().is_ok_and(|status| status.success()) {
        return false;
    }
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    inside(&mut command);
    let mut launcher = service.launch_by(command, arguments, &[]);
    assert_eq!(launcher.wait(), Some(0), "{}", service.read("log"));
    true
}

#[test]
fn pitfall_075_a_workdir_that_cant_be_used_fails_its_job_with_the_reason() {
    let service = Service::start("launcher: {idle_ttl_sec: 0.5, cpus_per_node: 2}\n");
    let job = |id: i64, workdir: &str, command: &str| {
        service.job_with(id, 1, json!({"parameters": {"cmd": command}, "workdir": workdir}));
    };
    job(1, "full/old", "echo to a file for which there is no room; exit 3");
    job(2, "full/new", "true");
    job(3, "read-only/new", "true");
    // It vanishes while the Job runs, with what it wrote.
    job(4, "gone/4", "rm -r ../4; echo nowhere; exit 4");
    job(5, "plain", "true");
    if !launch_on_small_disks(&service, &["-j", "serial", "-t", "10", "--batch-job-id", "7"]) {
        eprintln!("skipped: disks of its own need a mount namespace, which may not be made here");
        return;
    }
    let data = |id: i64, state: &str| -> Value { service.wait_for(id, state)["state_data"].clone() };
    // Its output is lost, as on any full disk, and its exit code is kept.
    assert_eq!(data(1, "RUN_ERROR")["return_code"], 3);
    assert_eq!(data(2, "RUN_ERROR")["reason"], "disk_full");
    let read_only = data(3, "RUN_ERROR");
    assert_eq!(read_only["reason"], "workdir");
    assert!(read_only["message"].as_str().unwrap().contains("Read-only"), "{read_only}");
    assert_eq!(data(4, "RUN_ERROR")["return_code"], 4);
    service.wait_for(5, "RUN_DONE");
}
