//! What guards leave of workers and launchers that are killed: nothing, also on a node where the head is the ancestor of no
//! process, and before a Job of theirs runs again.

use std::{
    fs::{self, OpenOptions},
    os::{fd::AsRawFd, unix::process::CommandExt},
    process::Command,
    sync::mpsc::{Receiver, channel},
};

use copal_client::processes;
use copal_launcher::process::group::{Group, Groups};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

use crate::{
    allocation,
    support::{
        is_alive, read_pid,
        service::{Launcher, Service},
        wait_for_file, wait_until,
    },
    trees::STUBBORN,
};

/// A launcher on two other nodes. The command that starts a worker there only passes the order on, as `ssh` does, and
/// ends with the worker; this process stands in for the daemon of each node.
const SETTINGS: &str = "launcher:\n  idle_ttl_sec: 60\n  kill_grace_sec: 0.5\n  cpus_per_node: 2\n  mpi: template\n  \
                        mpi_template: \"bash -c 'echo $* > $COPAL_HOME/order.$0; cat $COPAL_HOME/ended.$0' {{hosts}}\"\n";

/// The second run of a Job tells which processes of the first it still sees, and ends.
const ONCE: &str = "echo $COPAL_TEST_NODE >> nodes
if [ -e ready ]; then
  for pid in $(cat leader session orphan); do grep -qs '^State:.[^ZX]' /proc/$pid/status && echo $pid >> twice; done; exit 0
fi
";

struct Scene {
    service: Service,
    launcher: Launcher,
    /// The guard and the worker on the node that has the Job.
    guard: i32,
    worker: i32,
    /// The processes of the Job's first run.
    run: Vec<i32>,
    /// The guards of both nodes, and the control groups that these are in.
    nodes: Vec<(i32, Option<(Group, Groups)>)>,
}

impl Scene {
    fn set() -> Self {
        let service = Service::start(SETTINGS);
        let daemons = ["far1", "far2"].map(|node| daemon(&service, node));
        let command = format!("{ONCE}{STUBBORN}");
        service.job_with(1, 1, json!({"parameters": {"cmd": command}, "node_packing_count": 1}));
        let env = allocation("far[1-2]");
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let launcher = service.launch_with(&["-j", "serial", "-t", "10", "--batch-job-id", "7"], &env);
        let path = |name: &str| service.path(&format!("site/data/job/1/{name}")).to_str().unwrap().to_owned();
        wait_for_file(&path("ready"));
        service.wait_for(1, "RUNNING");
        let node = service.read("site/data/job/1/nodes");
        let nodes = daemons.map(|(started, groups)| (started.recv().unwrap(), groups));
        let guard = nodes[usize::from(node.trim() == "far2")].0;
        let all = processes::snapshot();
        let worker = all.iter().find(|process| process.parent == guard).unwrap().pid;
        let run: Vec<i32> = ["leader", "session", "orphan"].iter().map(|name| read_pid(&path(name))).collect();
        // None of them comes from the launcher.
        let own = launcher.children();
        assert!(run.iter().all(|pid| is_alive(*pid) && !own.contains(pid)), "{run:?} of {own:?}");
        Self { service, launcher, guard, worker, run, nodes: nodes.into() }
    }

    fn kill(pid: i32) {
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }

    fn living(&self) -> Vec<i32> {
        self.run.iter().copied().filter(|pid| is_alive(*pid)).collect()
    }

    /// The Job runs again, on the other node, when all of its first run is over.
    fn runs_again(mut self) {
        assert_eq!(self.service.wait_for(1, "RUN_TIMEOUT")["state_data"]["reason"], "worker_lost");
        // What the service was told was true at that moment.
        assert_eq!(self.living(), Vec::<i32>::new());
        self.service.wait_for(1, "RUN_DONE");
        assert!(!self.service.path("site/data/job/1/twice").exists(), "{}", self.service.read("site/data/job/1/twice"));
        let nodes = self.service.read("site/data/job/1/nodes");
        let nodes: Vec<&str> = nodes.lines().collect();
        assert!(nodes.len() == 2 && nodes[0] != nodes[1], "{nodes:?}");
        wait_until(|| !is_alive(self.guard) && !is_alive(self.worker), "guard and worker are gone");
        self.launcher.signal(Signal::SIGTERM);
        assert_eq!(self.launcher.wait(), Some(0), "{}", self.service.read("log"));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.launcher.child.kill();
        if !std::thread::panicking() {
            wait_until(|| self.nodes.iter().all(|(guard, _)| !is_alive(*guard)), "the guards are gone");
        }
        for (group, groups) in self.nodes.drain(..).filter_map(|(_, groups)| groups) {
            drop(group);
            groups.remove();
        }
    }
}

/// Does one order on a node: starts a process, tells its number, and says when it has ended. Whatever it starts is in a
/// control group, since what a node has in its own the head must not reach by their names.
fn daemon(service: &Service, node: &'static str) -> (Receiver<i32>, Option<(Group, Groups)>) {
    let pipe = |name: &str| {
        let path = service.path(&format!("home/{name}.{node}"));
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        path
    };
    let (order, ended) = (pipe("order"), pipe("ended"));
    let log = OpenOptions::new().create(true).append(true).open(service.path("log")).unwrap();
    let groups = Groups::make(&format!("copal-test-{node}-{}", std::process::id()))
        .and_then(|groups| Some((groups.group(0)?, groups)));
    let folder =
        groups.as_ref().map(|(group, _)| format!("/proc/{}/fd/{}", std::process::id(), group.fd().as_raw_fd()));
    let (started, heard) = channel();
    std::thread::spawn(move || {
        let order = fs::read_to_string(order).unwrap();
        let enter = "[ -z \"$0\" ] || echo $$ > \"$0/cgroup.procs\"; exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", enter, &folder.unwrap_or_default()]).args(order.split_whitespace());
        let mut child = command.env("COPAL_TEST_NODE", node).process_group(0).stderr(log).spawn().unwrap();
        started.send(i32::try_from(child.id()).unwrap()).unwrap();
        child.wait().unwrap();
        drop(OpenOptions::new().write(true).open(ended));
    });
    (heard, groups)
}

#[test]
fn pitfall_093_a_worker_that_is_killed_on_another_node_leaves_nothing_when_its_job_runs_again() {
    let scene = Scene::set();
    Scene::kill(scene.worker);
    scene.runs_again();
}

#[test]
fn a_worker_whose_guard_is_killed_ends_its_runs_before_they_run_again() {
    let scene = Scene::set();
    Scene::kill(scene.guard);
    scene.runs_again();
}

#[test]
fn pitfall_093_a_head_that_is_killed_leaves_nothing_on_another_node() {
    let mut scene = Scene::set();
    scene.launcher.signal(Signal::SIGKILL);
    scene.launcher.wait();
    let gone = || scene.living().is_empty() && !is_alive(scene.guard) && !is_alive(scene.worker);
    wait_until(gone, "the run, its worker and its guard are gone");
}

#[test]
fn a_head_and_a_worker_that_are_killed_at_once_leave_nothing_on_another_node() {
    let mut scene = Scene::set();
    scene.launcher.signal(Signal::SIGKILL);
    Scene::kill(scene.worker);
    scene.launcher.wait();
    wait_until(|| scene.living().is_empty() && !is_alive(scene.guard), "the run and its guard are gone");
}
