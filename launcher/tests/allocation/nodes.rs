//! Many nodes, each with a worker of its own that connects back.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    allocation, far_settings,
    support::{
        is_alive,
        service::{Launcher, Service},
        wait_for_file, wait_until,
    },
};

fn launch(service: &Service, nodes: &str, mode: &str) -> Launcher {
    let env = allocation(nodes);
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    service.launch_with(&["-j", mode, "-t", "10", "--batch-job-id", "7"], &env)
}

/// Kills the worker on a node, by the variable that its processes have there.
fn kill_worker(launcher: &Launcher, node: &str) {
    let is_there = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        String::from_utf8_lossy(&environment).contains(&format!("COPAL_TEST_NODE={node}\0"))
    };
    let worker = launcher.workers().into_iter().find(is_there);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(worker.unwrap()), Signal::SIGKILL).unwrap();
}

#[test]
fn sixty_four_nodes_have_workers_of_their_own() {
    const NODES: i64 = 64;
    let service = Service::start(&far_settings(2));
    for id in 1..=NODES {
        let say = "echo $COPAL_TEST_NODE > node.new; mv node.new node; exec sleep 600";
        service.job_with(id, 1, json!({"parameters": {"cmd": say}, "node_packing_count": 1}));
    }
    // By loopback addresses, which all are this machine's.
    let mut launcher = launch(&service, "127.0.0.[2-65]", "serial");
    service.wait_until("a Job on each node", |state| {
        (state.updates.iter().filter(|update| update["state"] == "RUNNING").count() == 64).then_some(())
    });
    let node = |id: i64| {
        let path = service.path(&format!("site/data/job/{id}/node")).to_str().unwrap().to_owned();
        wait_for_file(&path);
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    };
    let nodes: BTreeSet<String> = (1..=NODES).map(node).collect();
    assert_eq!(nodes.len(), 64, "{nodes:?}");
    let processes = launcher.children();
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.wait(), Some(0), "{}", service.read("log"));
    for id in 1..=NODES {
        assert_eq!(service.states(id), ["RUNNING", "RUN_TIMEOUT"]);
    }
    wait_until(|| processes.iter().all(|pid| !is_alive(*pid)), "all processes are gone");
}

#[test]
fn pitfall_099_jobs_of_every_node_save_their_state_when_only_the_head_is_told_to_stop() {
    let service = Service::start(&far_settings(2));
    for id in 1..=3 {
        let save = "bash -c 'trap \"echo saved > state; exit 0\" USR1; echo > ready; while :; do sleep 0.02; done'";
        service.job_with(
            id,
            1,
            json!({"parameters": {"cmd": save}, "node_packing_count": 1,
                   "checkpoint": {"signal": "SIGUSR1", "grace_sec": 20.0}}),
        );
    }
    let mut launcher = launch(&service, "far[1-3]", "serial");
    for id in 1..=3 {
        wait_for_file(service.path(&format!("site/data/job/{id}/ready")).to_str().unwrap());
        service.wait_for(id, "RUNNING");
    }
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.wait(), Some(0), "{}", service.read("log"));
    for id in 1..=3 {
        assert_eq!(service.read(&format!("site/data/job/{id}/state")), "saved\n");
        assert_eq!(service.wait_for(id, "RUN_TIMEOUT")["state_data"]["reason"], "walltime");
    }
}

#[test]
fn pitfall_093_a_worker_of_another_node_that_dies_is_noticed_and_its_job_runs_elsewhere() {
    let service = Service::start(&far_settings(2));
    // It ends by itself in its second run.
    let once = "echo $COPAL_TEST_NODE >> nodes; test -e ran && exit 0; echo > ran; exec sleep 600";
    service.job_with(1, 1, json!({"parameters": {"cmd": once}, "node_packing_count": 1}));
    let mut launcher = launch(&service, "far[1-2]", "serial");
    service.wait_for(1, "RUNNING");
    wait_for_file(service.path("site/data/job/1/ran").to_str().unwrap());
    let first = service.read("site/data/job/1/nodes").trim().to_owned();
    kill_worker(&launcher, &first);
    assert_eq!(service.wait_for(1, "RUN_TIMEOUT")["state_data"]["reason"], "worker_lost");
    service.wait_for(1, "RUN_DONE");
    let nodes = service.read("site/data/job/1/nodes");
    assert_eq!(nodes.lines().collect::<BTreeSet<_>>(), BTreeSet::from(["far1", "far2"]));
    // Two nodes are not there any more: what needs both is given back.
    service.job_with(2, 1, json!({"parameters": {"cmd": "true"}, "mem_mb": 1_000_000_000}));
    service.wait_until("a Job that is given back", |state| state.released.first().cloned());
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.wait(), Some(0));
}

#[test]
fn a_worker_that_is_lost_does_not_take_those_along_that_are_still_to_come() {
    let settings = "launcher:\n  idle_ttl_sec: 60\n  cpus_per_node: 2\n  mpi: template\n  mpi_template: \"bash -c \
                    'case $0 in far2) while [ ! -e $COPAL_HOME/gate ]; do sleep 0.02; done;; esac; \
                    COPAL_TEST_NODE=$0 exec $@' {{hosts}}\"\n";
    let service = Service::start(settings);
    let once = "test -e ran && exit 0; echo > ran; exec sleep 600";
    service.job_with(1, 1, json!({"parameters": {"cmd": once}, "node_packing_count": 1}));
    let mut launcher = launch(&service, "far[1-2]", "serial");
    service.wait_for(1, "RUNNING");
    wait_for_file(service.path("site/data/job/1/ran").to_str().unwrap());
    kill_worker(&launcher, "far1");
    // By then all is over that was killed with it.
    wait_until(|| service.read("log").contains("its nodes are not used any more"), "the loss is told");
    service.write("home/gate", "", 0o644);
    service.wait_for(1, "RUN_DONE");
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.wait(), Some(0), "{}", service.read("log"));
}

/// Launches on two nodes of which the second does not come: a Job runs on the first, and one that only the second could
/// hold is given back.
fn only_the_first_is_used(service: &Service) -> Launcher {
    service.job_with(1, 1, json!({"parameters": {"cmd": "true"}, "gpus_per_rank": 1.0}));
    service.job_with(2, 1, json!({"parameters": {"cmd": "true"}, "node_packing_count": 1}));
    let launcher = launch(service, "far[1-2]", "serial");
    service.wait_for(2, "RUN_DONE");
    let given_back = service.wait_until("a Job that is given back", |state| state.released.first().cloned());
    assert_eq!(given_back["job_id"], 1);
    launcher
}

#[test]
fn pitfall_067_a_node_that_can_t_be_reached_is_told_and_the_others_are_used() {
    let reach = |unreachable: &str| {
        format!(
            "launcher:\n  idle_ttl_sec: 60\n  cpus_per_node: 2\n  mpi: template\n  mpi_template: \"bash -c \
             'case $0 in {unreachable}) exit 3;; esac; COPAL_TEST_NODE=$0 exec $@' {{{{hosts}}}}\"\n"
        )
    };
    let service = Service::start(&reach("far2"));
    let mut launcher = only_the_first_is_used(&service);
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.wait(), Some(0));

    let service = Service::start(&reach("*"));
    let mut launcher = launch(&service, "far[1-2]", "serial");
    assert_eq!(launcher.wait(), Some(1));
    assert!(service.read("log").contains("no worker is left"), "{}", service.read("log"));
}

/// The command that should start a worker hangs, as it does when a node's daemon is ill.
#[test]
fn a_node_whose_worker_never_comes_is_told_and_the_others_are_used() {
    let settings = "launcher:\n  idle_ttl_sec: 60\n  cpus_per_node: 2\n  worker_start_sec: 4\n  mpi: template\n  \
                    mpi_template: \"bash -c 'case $0 in far2) echo $$ > $COPAL_HOME/hung; exec sleep 6000;; esac; exec $@' {{hosts}}\"\n";
    let service = Service::start(settings);
    let mut launcher = only_the_first_is_used(&service);
    let hung: i32 = service.read("home/hung").trim().parse().unwrap();
    wait_until(|| !is_alive(hung), "the command that hung is gone");
    let log = service.read("log");
    assert!(log.contains("no worker came in 4 s; its node is not used") && log.contains("far2"), "{log}");
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.wait(), Some(0));
}

#[test]
fn forty_runs_of_open_mpi_start_at_once() {
    let settings = "launcher: {idle_ttl_sec: 1, cpus_per_node: 40, mpi: openmpi}\n";
    let service = Service::start(settings);
    for id in 1..=40 {
        service.job_with(id, 2, json!({"node_packing_count": 40}));
    }
    let mut launcher = service.launch(&["-j", "mpi", "-t", "10", "--batch-job-id", "7"]);
    assert_eq!(launcher.wait(), Some(0), "{}", service.read("log"));
    for id in 1..=40 {
        assert_eq!(service.states(id), ["RUNNING", "RUN_DONE"], "{}", service.read("log"));
    }
}
