//! The real launcher with real processes against a service that is broken on purpose: no result is
//! lost, none counts twice, no run outlives its right to run. Named after the faults where there is one.

mod support;

use std::{collections::HashMap, time::Duration, time::Instant};

use copal_client::{
    launcher_exit::{ExitReason, LauncherExit},
    spool,
};
use copal_schemas::BatchJobId;
use nix::sys::signal::Signal;
use serde_json::json;
use support::{
    is_alive, read_pid,
    service::{Mood, Service, State},
    wait_for_file, wait_until,
};

const QUICK: &str = "launcher: {idle_ttl_sec: 0.5, kill_grace_sec: 1, cpus_per_node: 4}\n";
/// Ends when the test makes the file `gate` at the Site.
const GATED: &str = "while [ ! -e ../../../gate ]; do sleep 0.02; done";
const SERIAL: &[&str] = &["-j", "serial", "-t", "10", "--batch-job-id", "7"];

#[test]
fn jobs_run_once_each_and_their_ends_are_told_apart() {
    let service = Service::start(QUICK);
    (1..=200).for_each(|id| service.job_with(id, 2, json!({})));
    service.job(201, "echo 'caf\\303\\251' ; exit 3");
    service.job(202, "no-such-program-here");
    service.job_with(203, 1, json!({}));
    service.job_with(204, 3, json!({}));
    service.job_with(205, 1, json!({"parameters": {"cmd": "true"}, "gpus_per_rank": 1.0}));
    let mut launcher = service.launch(SERIAL);
    assert_eq!(launcher.wait(), Some(0), "{}", service.read("log"));
    for id in 1..=200 {
        assert_eq!(service.states(id), ["RUNNING", "RUN_DONE"], "{id}");
    }
    let failed = service.wait_for(201, "RUN_ERROR");
    assert_eq!(failed["return_code"], 3);
    assert_eq!(failed["state_data"]["return_code"], 3);
    assert_eq!(service.wait_for(202, "RUN_ERROR")["state_data"]["reason"], "missing_program");
    assert_eq!(service.states(202), ["RUNNING", "RUN_ERROR"]);
    let parameter = service.wait_for(203, "FAILED");
    assert!(parameter["state_data"]["message"].as_str().unwrap().contains("cmd"), "{parameter}");
    assert_eq!(service.wait_for(204, "FAILED")["state_data"]["reason"], "app");
    // One that no node here can hold is another launcher's: it is given back, once.
    let released = service.state().released.clone();
    assert_eq!(released.len(), 1, "{released:?}");
    assert_eq!(released[0]["job_id"], 205);
    assert!(released[0]["message"].as_str().unwrap().contains("GPUs"), "{released:?}");
    assert!(service.states(205).is_empty());
    let exit = LauncherExit::read(&service.path("site/qsubmit"), BatchJobId(7)).unwrap();
    assert_eq!((exit.reason, exit.runs), (ExitReason::Idle, 201));
    assert_eq!(service.state().deleted, [1]);
    let usage = &service.wait_for(1, "RUN_DONE")["usage"];
    assert!(usage["cpu_sec"].is_number() && usage["nodes"].is_array(), "{usage}");
}

/// How long the service is away at least: minutes where somebody wants to see it, else as long as it takes to notice.
fn away_sec() -> u64 {
    std::env::var("COPAL_AWAY_SEC").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[test]
fn pitfall_109_134_a_service_that_is_away_for_a_while_loses_nothing_and_kills_nothing() {
    for mood in [Mood::Away, Mood::Busy, Mood::Unauthenticated, Mood::Slow] {
        let service = Service::start(QUICK);
        (1..=4).for_each(|id| service.job(id, &format!("{GATED}; echo whole > end")));
        let mut launcher = service.launch(SERIAL);
        (1..=4).for_each(|id| drop(service.wait_for(id, "RUNNING")));
        service.mood(mood);
        std::thread::sleep(Duration::from_secs(away_sec()));
        std::fs::write(service.path("site/gate"), "").unwrap();
        (1..=4).for_each(|id| wait_for_file(service.path(&format!("site/data/job/{id}/end")).to_str().unwrap()));
        // While it is away the results are on the disk; one that may still answer is waited for first.
        if mood != Mood::Slow {
            let spooled = || spool::list(&service.path("site/spool")).is_ok_and(|files| !files.is_empty());
            wait_until(spooled, "a spool file");
        }
        service.mood(Mood::Well);
        (1..=4).for_each(|id| drop(service.wait_for(id, "RUN_DONE")));
        service.job(5, "true");
        drop(service.wait_for(5, "RUN_DONE"));
        assert_eq!(launcher.wait(), Some(0));
        assert!(spool::list(&service.path("site/spool")).unwrap().is_empty());
        for id in 1..=5 {
            assert_eq!(service.states(id), ["RUNNING", "RUN_DONE"], "{mood:?}");
        }
    }
}

#[test]
fn pitfall_135_a_service_that_is_away_at_the_end_leaves_the_results_in_the_spool() {
    let service = Service::start(QUICK);
    service.job(1, &format!("{GATED}; exit 5"));
    let mut launcher = service.launch(&["-j", "serial", "-t", "0.1", "--batch-job-id", "7"]);
    service.wait_for(1, "RUNNING");
    service.mood(Mood::Away);
    std::fs::write(service.path("site/gate"), "").unwrap();
    assert_eq!(launcher.wait(), Some(0));
    let files = spool::list(&service.path("site/spool")).unwrap();
    let left = spool::read(&files[0]).unwrap().unwrap();
    assert_eq!(left.header.session_id.0, 1);
    let updates: Vec<_> = left.batches.iter().flat_map(|batch| &batch.updates).collect();
    assert_eq!(updates.len(), 1);
    assert_eq!((updates[0].job_id.0, updates[0].return_code), (1, Some(5)));
    // The Session stays, so that the agent's delivery counts.
    assert!(service.state().deleted.is_empty());
}

#[test]
fn pitfall_110_an_answer_that_is_lost_counts_once() {
    let service = Service::start(QUICK);
    service.mood(Mood::LosesUpdateAnswers);
    service.job(1, "true");
    let mut launcher = service.launch(SERIAL);
    service.wait_until("a second try", |state| (state.doubled_keys > 0).then_some(()));
    service.mood(Mood::Well);
    service.wait_for(1, "RUN_DONE");
    assert_eq!(launcher.wait(), Some(0));
    assert_eq!(service.states(1), ["RUNNING", "RUN_DONE"]);
}

#[test]
fn jobs_in_an_answer_that_is_lost_are_found_again() {
    let service = Service::start(QUICK);
    service.mood(Mood::LosesAcquireAnswers);
    service.job(1, "true");
    let mut launcher = service.launch(SERIAL);
    service.wait_until("an acquire", |state| state.acquires.first().map(drop));
    service.mood(Mood::Well);
    service.wait_for(1, "RUN_DONE");
    assert_eq!(launcher.wait(), Some(0));
}

#[test]
fn jobs_that_began_and_ended_while_the_service_was_away_run_once() {
    let service = Service::start(QUICK);
    (1..=8).for_each(|id| service.job(id, &format!("{GATED}; echo run >> runs")));
    let mut launcher = service.launch(SERIAL);
    service.wait_for(1, "RUNNING");
    service.mood(Mood::Away);
    std::fs::write(service.path("site/gate"), "").unwrap();
    // The end of a Job that the service holds to be waiting is in the spool with the others.
    let ended = || {
        let files = spool::list(&service.path("site/spool")).unwrap_or_default();
        let batches = files.iter().filter_map(|file| spool::read(file).ok().flatten()).flat_map(|file| file.batches);
        batches.flat_map(|batch| batch.updates).filter(|update| update.return_code == Some(0)).count()
    };
    wait_until(|| ended() >= 2, "two ends in the spool");
    service.mood(Mood::Well);
    for id in 1..=8 {
        service.wait_for(id, "RUN_DONE");
    }
    assert_eq!(launcher.wait(), Some(0));
    for id in 1..=8 {
        assert_eq!(std::fs::read_to_string(service.path(&format!("site/data/job/{id}/runs"))).unwrap(), "run\n");
    }
}

#[test]
fn a_job_whose_end_is_not_delivered_yet_does_not_run_again() {
    let service = Service::start("launcher: {idle_ttl_sec: 20, kill_grace_sec: 1, cpus_per_node: 4}\n");
    service.job(1, GATED);
    let mut launcher = service.launch(SERIAL);
    service.wait_for(1, "RUNNING");
    // This one begins and ends, but the service hears nothing of that, and so holds it to be waiting.
    service.mood(Mood::RefusesUpdates);
    service.job(2, "echo run >> runs");
    wait_for_file(service.path("site/data/job/2/runs").to_str().unwrap());
    let again = |what: &str, count: fn(&State) -> usize| {
        let before = count(&service.state());
        service.wait_until(what, |state| (count(state) > before + 2).then_some(()));
    };
    again("reports that are refused", |state| state.refused_updates);
    // A question fails, so the launcher thinks that an answer with Jobs may be lost and asks which it holds.
    service.mood(Mood::Away);
    again("calls that fail", |state| state.turned_away);
    service.mood(Mood::RefusesUpdates);
    again("more reports that are refused", |state| state.refused_updates);
    service.mood(Mood::Well);
    service.wait_for(2, "RUN_DONE");
    std::fs::write(service.path("site/gate"), "").unwrap();
    service.wait_for(1, "RUN_DONE");
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.wait(), Some(0));
    assert_eq!(service.read("site/data/job/2/runs"), "run\n");
    assert_eq!(service.states(2), ["RUNNING", "RUN_DONE"]);
}

#[test]
fn pitfall_108_one_bad_row_does_not_block_the_others() {
    let service = Service::start(QUICK);
    service.set(|state| state.poison = Some(3));
    (1..=6).for_each(|id| service.job(id, "true"));
    let mut launcher = service.launch(SERIAL);
    for id in [1, 2, 4, 5, 6] {
        service.wait_for(id, "RUN_DONE");
    }
    assert_eq!(launcher.wait(), Some(0));
}

#[test]
fn pitfall_104_a_run_that_lost_its_lease_is_killed_and_does_not_count() {
    let service = Service::start(QUICK);
    service.job(1, "echo $$ > pid; exec sleep 600");
    service.job(2, "echo $$ > pid; exec sleep 600");
    let mut launcher = service.launch(SERIAL);
    service.wait_for(1, "RUNNING");
    service.wait_for(2, "RUNNING");
    let pid = read_pid(service.path("site/data/job/1/pid").to_str().unwrap());
    let second = read_pid(service.path("site/data/job/2/pid").to_str().unwrap());
    // The service took the Job away: whatever is reported of it next says so.
    service.set(|state| {
        state.not_held.insert(1);
        state.cancel.push(2);
    });
    service.wait_for(2, "FAILED");
    assert!(!is_alive(second));
    // The Session is gone altogether: the run is killed, a new Session goes on.
    service.set(|state| drop(state.sessions.remove(&1)));
    wait_until(|| !is_alive(pid), "the run is killed");
    service.job(3, "true");
    service.wait_for(3, "RUN_DONE");
    assert_eq!(launcher.wait(), Some(0));
    assert_eq!(service.states(1), ["RUNNING"]);
    assert_eq!(service.state().deleted, [2]);
}

#[test]
fn pitfall_104_a_launcher_that_is_cut_off_kills_by_itself() {
    let service = Service::start(QUICK);
    service.job(1, "echo $$ > pid; exec sleep 600");
    service.set(|state| state.held_sec = Some(2.0));
    let mut launcher = service.launch(SERIAL);
    service.wait_for(1, "RUNNING");
    let pid = read_pid(service.path("site/data/job/1/pid").to_str().unwrap());
    service.mood(Mood::Away);
    wait_until(|| !is_alive(pid), "the run is killed");
    service.mood(Mood::Well);
    let update = service.wait_for(1, "RUN_TIMEOUT");
    assert_eq!(update["state_data"]["reason"], "cut_off");
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.wait(), Some(0));
}

#[test]
fn a_cancelled_tree_is_gone_within_five_seconds() {
    let service = Service::start(QUICK);
    service.job(1, "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ > pid; while :; do sleep 600; done' & while :; do sleep 600; done");
    let mut launcher = service.launch(SERIAL);
    let pid = read_pid(service.path("site/data/job/1/pid").to_str().unwrap());
    service.wait_for(1, "RUNNING");
    let start = Instant::now();
    service.set(|state| state.cancel.push(1));
    let update = service.wait_for(1, "FAILED");
    assert_eq!(update["state_data"]["reason"], "cancelled");
    assert!(start.elapsed() < Duration::from_secs(5) && !is_alive(pid));
    assert_eq!(launcher.wait(), Some(0));
}

#[test]
fn pitfall_097_the_end_of_time_is_a_timeout_and_everything_is_delivered() {
    let service = Service::start("launcher: {wall_time_pad_sec: 2, kill_grace_sec: 1, cpus_per_node: 4}\n");
    service.job(1, "exec sleep 600");
    service.job_with(
        2,
        1,
        json!({
            "parameters": {"cmd": "bash -c 'trap \"echo saved > state; exit 0\" USR1; echo > ready; while :; do sleep 0.02; done'"},
            "checkpoint": {"signal": "SIGUSR1", "grace_sec": 1.0}
        }),
    );
    let mut launcher = service.launch(&["-j", "serial", "-t", "0.1", "--batch-job-id", "7"]);
    assert_eq!(launcher.wait(), Some(0));
    for id in [1, 2] {
        assert_eq!(service.states(id), ["RUNNING", "RUN_TIMEOUT"]);
        assert_eq!(service.wait_for(id, "RUN_TIMEOUT")["state_data"]["reason"], "walltime");
    }
    assert_eq!(service.read("site/data/job/2/state"), "saved\n");
    assert_eq!(service.state().deleted, [1]);
    let exit = LauncherExit::read(&service.path("site/qsubmit"), BatchJobId(7)).unwrap();
    assert_eq!(exit.reason, ExitReason::EndOfTime);
}

#[test]
fn pitfall_098_signals_of_the_scheduler_mean_the_end_of_time() {
    for signal in [Signal::SIGTERM, Signal::SIGUSR1] {
        let service = Service::start(QUICK);
        service.job(1, "exec sleep 600");
        let mut launcher = service.launch(SERIAL);
        service.wait_for(1, "RUNNING");
        launcher.signal(signal);
        assert_eq!(launcher.wait(), Some(0));
        assert_eq!(service.states(1), ["RUNNING", "RUN_TIMEOUT"]);
        assert_eq!(service.state().deleted, [1]);
    }
}

#[test]
fn the_owner_s_stop_ends_the_launcher() {
    let service = Service::start(QUICK);
    service.job(1, "exec sleep 600");
    let mut launcher = service.launch(SERIAL);
    service.wait_for(1, "RUNNING");
    service.set(|state| state.stop = true);
    assert_eq!(launcher.wait(), Some(0));
    assert_eq!(service.states(1), ["RUNNING", "RUN_TIMEOUT"]);
    let exit = LauncherExit::read(&service.path("site/qsubmit"), BatchJobId(7)).unwrap();
    assert_eq!(exit.reason, ExitReason::Stopped);
}

#[test]
fn a_job_s_own_limit_is_kept() {
    let service = Service::start(QUICK);
    // No minute is that short on the wire; 0 means at once.
    service.job_with(1, 1, json!({"parameters": {"cmd": "exec sleep 600"}, "walltime_limit_min": 0}));
    let mut launcher = service.launch(SERIAL);
    assert_eq!(service.wait_for(1, "RUN_TIMEOUT")["state_data"]["reason"], "walltime_limit");
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.wait(), Some(0));
}

#[test]
fn pitfall_093_a_killed_launcher_leaves_no_process() {
    let service = Service::start(QUICK);
    service.job(1, "setsid sleep 600 & exec sleep 600");
    let mut launcher = service.launch(SERIAL);
    service.wait_for(1, "RUNNING");
    wait_until(|| launcher.children().len() >= 4, "guard, worker, run and its child");
    let processes = launcher.children();
    launcher.signal(Signal::SIGKILL);
    launcher.wait();
    wait_until(|| processes.iter().all(|pid| !is_alive(*pid)), "all processes are gone");
}

#[test]
fn pitfall_093_a_killed_worker_is_noticed_and_its_jobs_run_again() {
    let service = Service::start(QUICK);
    service.job(1, "test -e ran && exit 0; echo > ran; setsid sleep 600 & exec sleep 600");
    let mut launcher = service.launch(SERIAL);
    service.wait_for(1, "RUNNING");
    wait_until(|| launcher.children().len() >= 4, "guard, worker, run and its child");
    let processes = launcher.children();
    let worker = nix::unistd::Pid::from_raw(processes[1]);
    nix::sys::signal::kill(worker, Signal::SIGKILL).unwrap();
    assert_eq!(service.wait_for(1, "RUN_TIMEOUT")["state_data"]["reason"], "worker_lost");
    service.wait_for(1, "RUN_DONE");
    assert!(processes.iter().all(|pid| !is_alive(*pid)));
    assert_eq!(launcher.wait(), Some(0));
}

#[test]
fn the_output_of_every_attempt_is_kept() {
    let service = Service::start(QUICK);
    service.job(1, "echo $COPAL_BATCH_JOB_ID $COPAL_JOB_ID; test -e ran && exit 0; echo > ran; exec sleep 600");
    let mut launcher = service.launch(SERIAL);
    service.wait_for(1, "RUNNING");
    wait_until(|| service.path("site/data/job/1/ran").exists(), "the first run");
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.wait(), Some(0));
    let mut launcher = service.launch(SERIAL);
    service.wait_for(1, "RUN_DONE");
    assert_eq!(launcher.wait(), Some(0));
    assert_eq!(service.read("site/data/job/1/job.out.1"), "7 1\n");
    assert_eq!(service.read("site/data/job/1/job.out"), "7 1\n");
}

#[test]
fn partitions_have_their_own_sessions_tags_and_fates() {
    let service = Service::start(&format!("scheduler: {{local_nodes: 3}}\n{QUICK}"));
    service.job_with(1, 1, json!({"parameters": {"cmd": "exec sleep 600"}, "tags": {"role": "a"}}));
    service.job_with(2, 1, json!({"parameters": {"cmd": "exec sleep 600"}, "tags": {"role": "b"}}));
    let arguments =
        ["-j", "serial", "-t", "10", "--batch-job-id", "7", "-p", "serial:1:role=a", "-p", "serial:2:role=b"];
    let mut launcher = service.launch(&arguments);
    service.wait_for(1, "RUNNING");
    service.wait_for(2, "RUNNING");
    assert_eq!(service.state().sessions.len(), 2);
    // Direct children of the parent are the partitions' launchers.
    let all = copal_client::processes::snapshot();
    let own = i32::try_from(launcher.child.id()).unwrap();
    let first = all.iter().find(|process| process.parent == own).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first.pid), Signal::SIGKILL).unwrap();
    // The other one goes on, and hears the parent's signals.
    service.job_with(3, 1, json!({"parameters": {"cmd": "true"}, "tags": {"role": "a"}}));
    service.job_with(4, 1, json!({"parameters": {"cmd": "true"}, "tags": {"role": "b"}}));
    service.wait_until("the other partition's Job", |state| {
        state.updates.iter().find(|update| update["state"] == "RUN_DONE").map(drop)
    });
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.wait(), Some(1), "one partition failed");
    let exit = LauncherExit::read(&service.path("site/qsubmit"), BatchJobId(7)).unwrap();
    assert_eq!(exit.reason, ExitReason::Failed);

    let mut wrong = service.launch(&["-j", "serial", "-t", "10", "-p", "serial:1", "-p", "mpi:1"]);
    assert_eq!(wrong.wait(), Some(1));
    assert!(service.read("log").contains("the allocation has 3"));
}

#[test]
fn other_nodes_have_workers_of_their_own() {
    // Nodes that are not this machine, and a command that "reaches" them by running here.
    let settings = "launcher:\n  idle_ttl_sec: 1\n  cpus_per_node: 4\n  mpi: template\n  \
                    mpi_template: 'env COPAL_TEST_NODE={{hosts}}'\n";
    let service = Service::start(settings);
    for id in 1..=3 {
        service.job_with(
            id,
            1,
            json!({"parameters": {"cmd": "echo $COPAL_TEST_NODE; exec sleep 600"}, "node_packing_count": 1}),
        );
    }
    let nodes = [("SLURM_JOB_ID", "5"), ("SLURM_JOB_NODELIST", "far[1-3]"), ("SLURM_NODELIST", "far[1-3]")];
    let mut launcher = service.launch_with(SERIAL, &nodes);
    (1..=3).for_each(|id| drop(service.wait_for(id, "RUNNING")));
    let outputs = || -> Vec<String> {
        let mut lines: Vec<String> = (1..=3).map(|id| service.read(&format!("site/data/job/{id}/job.out"))).collect();
        lines.sort();
        lines
    };
    wait_until(|| outputs() == ["far1\n", "far2\n", "far3\n"], "each Job on its node");
    // Only the user can read the key, and it is gone at the end.
    let keys = || -> Vec<std::path::PathBuf> {
        let files = std::fs::read_dir(service.path("site/qsubmit")).unwrap();
        files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|end| end == "key")).collect()
    };
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&keys()[0]).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let processes = launcher.children();
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.wait(), Some(0));
    assert!(keys().is_empty());
    (1..=3).for_each(|id| assert_eq!(service.states(id), ["RUNNING", "RUN_TIMEOUT"]));
    wait_until(|| processes.iter().all(|pid| !is_alive(*pid)), "all processes are gone");
}

#[test]
fn mpi_mode_runs_ranks_side_by_side() {
    let service = Service::start(&format!("scheduler: {{local_nodes: 2}}\n{QUICK}"));
    let ranks = "bash -c 'echo rank ${PMI_RANK:-$OMPI_COMM_WORLD_RANK} of ${PMI_SIZE:-$OMPI_COMM_WORLD_SIZE}'";
    service.job_with(
        1,
        1,
        json!({"parameters": {"cmd": ranks}, "num_nodes": 2, "ranks_per_node": 2, "node_packing_count": 1}),
    );
    service.job_with(2, 1, json!({"parameters": {"cmd": "exit 4"}, "node_packing_count": 2}));
    service.job_with(3, 1, json!({"parameters": {"cmd": "true"}, "node_packing_count": 2}));
    let mut launcher = service.launch(&["-j", "mpi", "-t", "10"]);
    service.wait_for(1, "RUN_DONE");
    assert_eq!(service.wait_for(2, "RUN_ERROR")["return_code"], 4);
    service.wait_for(3, "RUN_DONE");
    assert_eq!(launcher.wait(), Some(0));
    let mut lines: Vec<String> = service.read("site/data/job/1/job.out").lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["rank 0 of 4", "rank 1 of 4", "rank 2 of 4", "rank 3 of 4"]);
}

#[test]
fn an_idle_launcher_waits_at_the_service_and_starts_what_comes() {
    let service = Service::start("launcher: {idle_ttl_sec: 20, cpus_per_node: 4}\n");
    let launcher = service.launch(SERIAL);
    service.wait_until("a question that waits", |state| {
        state.acquires.iter().find(|wanted| wanted["wait_sec"].as_f64() > Some(1.0)).map(drop)
    });
    let asked = service.state().acquires.len();
    for id in 1..=5 {
        service.job_with(id, 2, json!({}));
        service.wait_for(id, "RUN_DONE");
    }
    // A few questions a Job, not a poll loop.
    assert!(service.state().acquires.len() - asked <= 20, "{}", service.state().acquires.len());
    launcher.signal(Signal::SIGTERM);
}

#[test]
fn an_empty_launcher_waits_for_all_its_nodes_though_a_question_for_a_part_waits_still() {
    let service = Service::start("launcher: {idle_ttl_sec: 60, cpus_per_node: 4}\n");
    service.set(|state| state.holds_questions = true);
    let launcher = service.launch(SERIAL);
    let waits_for = |nodes: &[f64]| {
        service.wait_until(&format!("questions that wait for {nodes:?} nodes"), |state| {
            let asked = |wanted: &serde_json::Value| wanted["max_aggregate_nodes"].as_f64().unwrap();
            let asked: Vec<f64> = state.held_questions.iter().map(asked).collect();
            let is_so = asked.len() == nodes.len() && asked.iter().zip(nodes).all(|(a, b)| (a - b).abs() < 0.01);
            is_so.then_some(())
        });
    };
    waits_for(&[1.0]);
    // It takes half of the node, and the rest is waited for.
    service.job_with(1, 1, json!({"parameters": {"cmd": GATED}, "node_packing_count": 2}));
    waits_for(&[0.5]);
    std::fs::write(service.path("site/gate"), "").unwrap();
    waits_for(&[0.5, 1.0]);
    service.job_with(2, 2, json!({"node_packing_count": 1}));
    service.wait_for(2, "RUN_DONE");
    // Again, though the other was never answered.
    waits_for(&[0.5, 1.0]);
    launcher.signal(Signal::SIGTERM);
}

#[test]
fn a_launcher_without_a_service_sleeps_until_the_next_try() {
    let service = Service::start("launcher: {idle_ttl_sec: 0.1, kill_grace_sec: 1, cpus_per_node: 4}\n");
    let launcher = service.launch(SERIAL);
    service.wait_until("a question", |state| (!state.acquires.is_empty()).then_some(()));
    // With a Session of which nobody knows whether it lives, and with none.
    for is_held in [true, false] {
        service.set(|state| {
            state.mood = Mood::Away;
            state.turned_away = 0;
            if !is_held {
                state.sessions.clear();
            }
        });
        let turned_away =
            |count| service.wait_until("calls", |state| (state.turned_away >= count).then_some(state.turned_away));
        let (first, before) = (turned_away(6), launcher.naps());
        let (last, after) = (turned_away(first + 4), launcher.naps());
        let calls = u64::try_from(last - first).unwrap();
        // Each call takes a few: a name, a connection, a word, the end.
        assert!(after - before < 50 * calls, "{} naps for {calls} calls", after - before);
        if is_held {
            service.mood(Mood::Well);
            let asked = service.state().acquires.len();
            service.wait_until("a question", |state| (state.acquires.len() > asked).then_some(()));
        }
    }
}

#[test]
fn two_launchers_share_the_jobs_of_a_site() {
    let service = Service::start(QUICK);
    (1..=400).for_each(|id| service.job_with(id, 2, json!({})));
    let mut launchers = [service.launch(&["-j", "serial", "-t", "10"]), service.launch(&["-j", "serial", "-t", "10"])];
    for launcher in &mut launchers {
        assert_eq!(launcher.wait(), Some(0));
    }
    let mut runs: HashMap<i64, usize> = HashMap::new();
    for update in &service.state().updates {
        if update["state"] == "RUNNING" {
            *runs.entry(update["job_id"].as_i64().unwrap()).or_default() += 1;
        }
    }
    assert_eq!(runs.len(), 400);
    assert!(runs.values().all(|count| *count == 1));
}
