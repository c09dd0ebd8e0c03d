//! Packing by GPUs and MIG slices, as the Jobs themselves see it. The tool's lists are recorded ones.

use std::collections::{BTreeMap, BTreeSet};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    allocation, far_settings,
    support::{
        service::{Launcher, Service},
        wait_until,
    },
};

/// Lists of each node, by the name that the node has in the allocation; `head` is this machine.
const CUT: [(&str, &str); 2] =
    [("far1", include_str!("nvidia-smi-mig-far1.txt")), ("far2", include_str!("nvidia-smi-mig-far2.txt"))];
const WHOLE: &str = include_str!("nvidia-smi-whole.txt");

/// Two nodes of 64 CPUs with the GPUs of these lists, Jobs of one shape on them, and the launcher.
struct Pair {
    service: Service,
    launcher: Launcher,
}

impl Pair {
    fn start(mode: &str, lists: &[(&str, &str)], jobs: i64, shape: &Value) -> Self {
        Self::launch(Self::set(lists, jobs, shape), mode)
    }

    /// `jobs` Jobs that say where they are and what they see, and go on until they are killed.
    fn set(lists: &[(&str, &str)], jobs: i64, shape: &Value) -> Service {
        let service = Service::start(&far_settings(64));
        for (node, list) in lists {
            service.write(&format!("bin/list-{node}"), list, 0o644);
        }
        // Without a list the tool says, as it does, that it finds no driver.
        let tool = "#!/bin/sh\nlist=\"$(dirname \"$0\")/list-${COPAL_TEST_NODE:-head}\"\n\
                    while [ -e \"$list.hold\" ]; do touch \"$list.asked\"; sleep 0.02; done\n\
                    if [ \"$1\" = -L ] && [ -e \"$list\" ]; then cat \"$list\"; else echo 'no driver' >&2; exit 9; fi\n";
        service.write("bin/nvidia-smi", tool, 0o755);
        let say = "echo $COPAL_TEST_NODE ${CUDA_VISIBLE_DEVICES-none} > seen.new; mv seen.new seen; exec sleep 600";
        for id in 1..=jobs {
            let mut fields = json!({"parameters": {"cmd": say}});
            fields.as_object_mut().unwrap().extend(shape.as_object().unwrap().clone());
            service.job_with(id, 1, fields);
        }
        service
    }

    fn launch(service: Service, mode: &str) -> Self {
        let path = format!("{}:{}", service.path("bin").display(), std::env::var("PATH").unwrap());
        let mut env = allocation("far[1-2]");
        env.push(("PATH", path));
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let launcher = service.launch_with(&["-j", mode, "-t", "10", "--batch-job-id", "7"], &env);
        Self { service, launcher }
    }

    /// Waits until so many Jobs run, and gives the node and the devices that each sees.
    fn seen(&self, count: usize) -> Vec<(String, Vec<String>)> {
        let service = &self.service;
        let running = service.wait_until(&format!("{count} Jobs to run"), |state| {
            let running: BTreeSet<i64> =
                state.updates.iter().map(|update| update["job_id"].as_i64().unwrap()).collect();
            (running.len() >= count).then_some(running)
        });
        assert_eq!(running.len(), count, "no more than that at once");
        let read = |job: &i64| {
            let path = service.path(&format!("site/data/job/{job}/seen"));
            wait_until(|| path.exists(), "what a Job sees");
            let text = std::fs::read_to_string(path).unwrap();
            let (node, devices) = text.trim().split_once(' ').unwrap();
            (node.to_owned(), devices.split(',').map(str::to_owned).collect())
        };
        running.iter().map(read).collect()
    }

    /// Ends the launcher; everything that ran was cut off, and nothing else had started. What a lost worker ran is told
    /// apart: it may have begun to run something.
    fn end(mut self, count: usize) {
        self.launcher.signal(Signal::SIGTERM);
        assert_eq!(self.launcher.wait(), Some(0), "{}", self.service.read("log"));
        let is_end =
            |update: &&Value| update["state"] == "RUN_TIMEOUT" && update["state_data"]["reason"] != "worker_lost";
        assert_eq!(self.service.state().updates.iter().filter(is_end).count(), count);
    }
}

fn one_gpu(packing: i32) -> Value {
    json!({"gpus_per_rank": 1.0, "node_packing_count": packing})
}

/// The slices of both lists.
fn slices() -> BTreeSet<String> {
    let ids = |list: &str| {
        let ids = list.lines().filter_map(|line| line.split_once("UUID: MIG-")).map(|(_, id)| id.trim_end_matches(')'));
        ids.map(|id| format!("MIG-{id}")).collect::<Vec<_>>()
    };
    CUT.iter().flat_map(|(_, list)| ids(list)).collect()
}

fn run_on_slices(mode: &str) {
    let mut lists = CUT.to_vec();
    // In mpi mode the launcher knows of slices when its own node has some. It is not in the allocation here.
    lists.push(("head", CUT[0].1));
    let pair = Pair::start(mode, &lists, 60, &one_gpu(24));
    let seen = pair.seen(48);
    let devices: BTreeSet<String> = seen.iter().flat_map(|(_, devices)| devices.clone()).collect();
    assert_eq!(devices, slices(), "each has a slice of its own");
    for (node, devices) in &seen {
        let list = CUT.iter().find(|(name, _)| name == node).unwrap().1;
        assert!(devices.len() == 1 && list.contains(&devices[0]), "{node} has no {devices:?}");
    }
    pair.end(48);
}

#[test]
fn pitfall_089_48_jobs_run_at_once_on_the_slices_of_two_nodes() {
    run_on_slices("serial");
}

#[test]
fn pitfall_089_slices_of_other_nodes_go_by_their_own_ids_in_mpi_mode() {
    run_on_slices("mpi");
}

#[test]
fn a_node_that_is_being_asked_for_its_slices_is_used_though_the_worker_is_lost_meanwhile() {
    let lists = [CUT[0], CUT[1], ("head", CUT[0].1)];
    let service = Pair::set(&lists, 2, &one_gpu(1));
    service.write("bin/list-far1.hold", "", 0o644);
    let pair = Pair::launch(service, "mpi");
    wait_until(|| pair.service.path("bin/list-far1.asked").exists(), "a question to a node");
    wait_until(|| pair.launcher.workers().len() == 1, "the worker");
    let lost = pair.launcher.workers();
    kill(Pid::from_raw(lost[0]), Signal::SIGKILL).unwrap();
    wait_until(|| pair.launcher.workers().iter().any(|pid| !lost.contains(pid)), "another worker");
    std::fs::remove_file(pair.service.path("bin/list-far1.hold")).unwrap();
    let nodes: BTreeSet<String> = pair.seen(2).into_iter().map(|(node, _)| node).collect();
    assert_eq!(nodes.len(), 2, "{nodes:?}");
    pair.end(2);
}

/// How often each device of each node is seen.
fn users(seen: &[(String, Vec<String>)]) -> BTreeMap<(String, String), usize> {
    let mut users = BTreeMap::new();
    for (node, devices) in seen {
        devices.iter().for_each(|device| *users.entry((node.clone(), device.clone())).or_default() += 1);
    }
    users
}

fn whole(jobs: i64, shape: &Value) -> Pair {
    Pair::start("serial", &[("far1", WHOLE), ("far2", WHOLE)], jobs, shape)
}

#[test]
fn sixteen_jobs_of_one_gpu_run_at_once_on_two_nodes_of_eight() {
    let pair = whole(20, &one_gpu(8));
    let users = users(&pair.seen(16));
    assert!(users.len() == 16 && users.values().all(|count| *count == 1), "{users:?}");
    pair.end(16);
}

#[test]
fn pitfall_084_a_packing_above_the_gpus_waits_and_one_below_leaves_some_free() {
    let pair = whole(20, &one_gpu(4));
    let users = users(&pair.seen(8));
    assert!(users.len() == 8 && users.values().all(|count| *count == 1), "{users:?}");
    pair.end(8);
    // Ten may share a node, but there are eight GPUs.
    let pair = whole(20, &one_gpu(10));
    assert_eq!(pair.seen(16).len(), 16);
    pair.end(16);
}

#[test]
fn jobs_of_all_gpus_run_one_on_a_node() {
    let pair = whole(4, &json!({"gpus_per_rank": 8.0, "node_packing_count": 8}));
    let seen = pair.seen(2);
    assert!(seen.iter().all(|(_, devices)| devices.len() == 8), "{seen:?}");
    assert_ne!(seen[0].0, seen[1].0);
    pair.end(2);
}

#[test]
fn pitfall_086_half_a_gpu_is_shared_by_two() {
    let pair = whole(40, &json!({"gpus_per_rank": 0.5, "node_packing_count": 16}));
    let users = users(&pair.seen(32));
    assert!(users.len() == 16 && users.values().all(|count| *count == 2), "{users:?}");
    pair.end(32);
}

#[test]
fn pitfall_085_what_only_an_awaited_node_can_hold_waits_for_it() {
    // This machine has no GPU and one of the nodes has: a Job is not turned away before both have told.
    let pair = Pair::start("serial", &[("far2", WHOLE)], 1, &one_gpu(1));
    assert_eq!(pair.seen(1)[0].0, "far2");
    assert!(pair.service.state().released.is_empty());
    pair.service.job_with(9, 1, json!({"parameters": {"cmd": "true"}, "gpus_per_rank": 9.0}));
    let given_back = pair.service.wait_until("a Job that is given back", |state| state.released.first().cloned());
    assert_eq!(given_back["job_id"], 9);
    assert!(given_back["message"].as_str().unwrap().contains("9 GPUs"), "{given_back}");
    pair.end(1);
}
