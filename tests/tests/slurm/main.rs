//! A Site on a real Slurm cluster of four simulated nodes (`tests/slurm-cluster`), driven as a user does:
//! submitting, running, refusals, cancelling from both sides, an agent that dies between sbatch and its
//! record, a controller that does not answer. That cluster has no accounting, which is the harder case:
//! what has left the queue, no history tells of. `campaign` has one with accounting.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test's helper fails as a test does"
)]

mod campaign;
mod cluster;
mod launcher;
mod scripts;

use std::time::Duration;

use copal_tests::{at_site::AtSite, wait::wait_blocking};

use crate::cluster::Cluster;

const LIMIT: Duration = Duration::from_secs(90);
/// How long the controller is away; 60 makes it the outage of a restart.
const OUTAGE: &str = "COPAL_SLURM_OUTAGE_SEC";

#[test]
fn a_site_on_slurm() {
    let cluster = Cluster::new();
    // Allocations without work outlast the outages.
    cluster.launcher_settings("idle_ttl_sec: 600");
    cluster.app("Hello", "command: echo Hello, {{name}}!\nparameters: {name: {required: true}}");
    cluster.app("Long", "command: sleep 600");
    cluster.app("Gated", "command: until [ -e ../../gate ]; do sleep 0.2; done");

    // Slurm's own words for what it refuses, where the Site has no rule against it.
    cluster.allow_any_queue();
    let unknown = cluster.submit(&["-n", "1", "-q", "nowhere"]);
    let error = cluster.wait_batch_job(unknown, "submit_failed");
    assert!(
        error["status_info"]["error"].as_str().unwrap().contains("invalid partition specified: nowhere"),
        "{error}"
    );
    let wide = cluster.submit(&["-n", "9"]);
    let error = cluster.wait_batch_job(wide, "submit_failed");
    assert!(error["status_info"]["error"].as_str().unwrap().contains("Node count specification invalid"), "{error}");
    let table = cluster.copal(&["queue", "ls"]);
    assert!(table.contains("nowhere") && table.contains("Node count specification invalid"), "{table}");

    // Two nodes run a short Job and one of two nodes; scancel from outside ends it well.
    let allocation = cluster.submit(&["-n", "2"]);
    let hello = cluster.job(&["-a", "Hello", "-w", "hello", "-p", "name=Slurm"]);
    let long = cluster.job(&["-a", "Gated", "-w", "long", "-n", "2"]);
    cluster.wait_job(hello, "JOB_FINISHED");
    cluster.wait_job(long, "RUNNING");
    let running = cluster.wait_batch_job(allocation, "running");
    let id = running["scheduler_id"].to_string();
    cluster.slurm("scancel", &[&id]);
    let finished = cluster.wait_batch_job(allocation, "finished");
    assert_eq!(finished["status_info"]["reason"], "cancelled", "{finished}");
    cluster.wait_job(long, "RESTART_READY");

    // The Job runs again elsewhere, and its owner gives the nodes back.
    let allocation = cluster.submit(&["-n", "2"]);
    cluster.wait_job(long, "RUNNING");
    cluster.copal(&["queue", "rm", &allocation.to_string()]);
    cluster.wait_batch_job(allocation, "finished");
    cluster.wait_job(long, "RESTART_READY");

    // Both ended it well, so a third allocation finishes it.
    std::fs::write(cluster.site_path().join("gate"), "").unwrap();
    let allocation = cluster.submit(&["-n", "2"]);
    cluster.wait_job(long, "JOB_FINISHED");
    let events = cluster.json(&["events", "ls", "--job-id", &long.to_string(), "--to-state", "RUN_TIMEOUT"]);
    assert_eq!(events.as_array().unwrap().len(), 2, "{events}");
    cluster.copal(&["queue", "rm", &allocation.to_string()]);
    cluster.wait_batch_job(allocation, "finished");

    a_crash_between_sbatch_and_its_record_makes_no_second_allocation(&cluster);
    a_controller_that_does_not_answer_changes_nothing(&cluster);
    an_sbatch_that_times_out_submits_once(&cluster);
}

fn a_crash_between_sbatch_and_its_record_makes_no_second_allocation(cluster: &Cluster) {
    cluster.copal(&["site", "stop"]);
    cluster.start_agent_that_dies_after_sbatch();
    let allocation = cluster.submit(&["-n", "1"]);
    wait_blocking("the agent to die", LIMIT, || match cluster.copal(&["site", "status"]) {
        text if text.contains("does not run") => Ok(()),
        text => Err(text),
    });
    cluster.copal(&["site", "start"]);
    let running = cluster.wait_batch_job(allocation, "running");
    assert_eq!(cluster.jobs_of_slurm("RUNNING,PENDING"), [running["scheduler_id"].to_string()]);
    cluster.copal(&["queue", "rm", &allocation.to_string()]);
    cluster.wait_batch_job(allocation, "finished");
}

fn a_controller_that_does_not_answer_changes_nothing(cluster: &Cluster) {
    let running = cluster.submit(&["-n", "1"]);
    cluster.wait_batch_job(running, "running");
    cluster.freeze_controller();
    let waiting = cluster.submit(&["-n", "1"]);
    wait_blocking("the outage to show", LIMIT, || match cluster.copal(&["site", "status"]) {
        text if text.contains("the scheduler does not answer") => Ok(()),
        text => Err(text),
    });
    assert_eq!(cluster.batch_job(running)["state"], "running");
    assert_eq!(cluster.batch_job(waiting)["state"], "pending_submission");
    // Time itself must pass here: the longer the outage, the more of the agent's own limits come into play.
    std::thread::sleep(Duration::from_secs(std::env::var(OUTAGE).map_or(0, |text| text.parse().unwrap())));
    assert_eq!(cluster.batch_job(running)["state"], "running");
    cluster.thaw_controller();
    cluster.wait_batch_job(waiting, "running");
    let ids: Vec<String> =
        [running, waiting].iter().map(|id| cluster.batch_job(*id)["scheduler_id"].to_string()).collect();
    assert_eq!(cluster.jobs_of_slurm("RUNNING,PENDING"), ids, "one allocation for each");
    for id in [running, waiting] {
        cluster.copal(&["queue", "rm", &id.to_string()]);
        cluster.wait_batch_job(id, "finished");
    }
}

/// The controller takes the submission in before it is frozen and answers when sbatch has given up.
fn an_sbatch_that_times_out_submits_once(cluster: &Cluster) {
    cluster.freeze_controller();
    let allocation = cluster.submit(&["-n", "1"]);
    wait_blocking("sbatch to give up", LIMIT, || match cluster.copal(&["site", "status"]) {
        text if text.contains("nobody knows whether it was submitted") => Ok(()),
        text => Err(text),
    });
    cluster.thaw_controller();
    let running = cluster.wait_batch_job(allocation, "running");
    assert_eq!(cluster.jobs_of_slurm("RUNNING,PENDING"), [running["scheduler_id"].to_string()]);
    cluster.copal(&["queue", "rm", &allocation.to_string()]);
    cluster.wait_batch_job(allocation, "finished");
}
