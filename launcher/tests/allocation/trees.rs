//! A tree of processes that ignores TERM, forks twice and leaves its session and its environment: gone after a
//! cancel, after the end of time, and after the launcher's kill -9.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{
    is_alive, read_pid,
    service::{Launcher, Service},
    wait_for_file, wait_until,
};

/// Leaves the numbers of three processes: the leader's, one's that left the session, one's that nothing in its
/// environment or parentage ties to the run. All ignore TERM, and none ends by itself.
pub const STUBBORN: &str = "trap '' TERM; echo $$ > leader
( setsid sh -c 'trap \"\" TERM; echo $$ > session
  ( env -i PATH=\"$PATH\" sh -c \"trap \\\"\\\" TERM; echo \\$\\$ > orphan; while :; do sleep 600; done\" & )
  while :; do sleep 600; done' & )
while [ ! -s leader ] || [ ! -s session ] || [ ! -s orphan ]; do sleep 0.01; done
echo > ready; while :; do sleep 600; done";

struct Tree {
    service: Service,
    launcher: Launcher,
    pids: Vec<i32>,
}

impl Tree {
    fn grow(arguments: &[&str]) -> Self {
        let service = Service::start(SETTINGS);
        service.job(1, STUBBORN);
        let launcher = service.launch(arguments);
        let path = |name: &str| service.path(&format!("site/data/job/1/{name}")).to_str().unwrap().to_owned();
        wait_for_file(&path("ready"));
        let pids: Vec<i32> = ["leader", "session", "orphan"].iter().map(|name| read_pid(&path(name))).collect();
        assert!(pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
        service.wait_for(1, "RUNNING");
        Self { service, launcher, pids }
    }

    fn living(&self) -> Vec<i32> {
        self.pids.iter().copied().filter(|pid| is_alive(*pid)).collect()
    }
}

const SETTINGS: &str = "launcher: {idle_ttl_sec: 0.5, kill_grace_sec: 0.5, wall_time_pad_sec: 2, cpus_per_node: 2}\n";
const LONG: &[&str] = &["-j", "serial", "-t", "10", "--batch-job-id", "7"];

#[test]
fn pitfall_094_it_is_gone_after_a_cancel() {
    let mut tree = Tree::grow(LONG);
    let start = Instant::now();
    tree.service.set(|state| state.cancel.push(1));
    let update = tree.service.wait_for(1, "FAILED");
    // What the service is told is true at once, and within the time that is promised.
    assert_eq!(tree.living(), Vec::<i32>::new());
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(update["state_data"]["reason"], "cancelled");
    assert_eq!(tree.launcher.wait(), Some(0));
}

#[test]
fn pitfall_094_it_is_gone_after_the_end_of_time() {
    let mut tree = Tree::grow(&["-j", "serial", "-t", "0.25", "--batch-job-id", "7"]);
    let update = tree.service.wait_for(1, "RUN_TIMEOUT");
    assert_eq!(tree.living(), Vec::<i32>::new());
    assert_eq!(update["state_data"]["reason"], "walltime");
    assert_eq!(tree.launcher.wait(), Some(0));
}

#[test]
fn pitfall_093_it_is_gone_after_the_launcher_was_killed() {
    let mut tree = Tree::grow(LONG);
    tree.launcher.signal(Signal::SIGKILL);
    tree.launcher.wait();
    wait_until(|| tree.living().is_empty(), "the tree is gone");
}
