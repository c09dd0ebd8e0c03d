//! The whole agent against PBS, LSF, Cobalt and Flux: the same life of a Site, from `site init` to `queue rm`, on
//! stand-ins for the schedulers' commands that keep a queue in a folder and really run the scripts. What Slurm
//! does is tested on Slurm (`tests/slurm`).
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test's helper fails as a test does")]

mod bed;

use std::{fs, path::Path};

use copal_tests::{at_site::AtSite, wait::wait_blocking};

use crate::bed::{Bed, LIMIT};

/// The part of a Site's life that every scheduler must allow.
fn a_site_on(kind: &'static str) {
    let bed = Bed::new(kind);
    // What `site init` found out needs no editing.
    let settings = bed.settings();
    assert!(settings.contains(r#"allowed_queues: {"debug":{"max_nodes":"#), "{settings}");
    // Any queue may be asked for, so that the scheduler gets to refuse one.
    bed.set_settings(&[("sync_period", "0.5"), ("idle_ttl_sec", "2"), ("allowed_queues", "{}")]);
    bed.copal(&["site", "start"]);
    bed.app("Hello", "command: echo hello");
    bed.app("Long", "command: echo up > up; exec sleep 600");
    if kind != "pbs" {
        // Of PBS's nodes nobody knows which a queue may use that the Site does not name.
        what_could_start_now(&bed);
    }

    // Waiting, then running, then over, with everything that the scheduler says about it.
    bed.set("hold", Some(""));
    let first = bed.submit("debug");
    let hello = bed.job("Hello", "hello");
    let queued = bed.wait_batch_job(first, "queued");
    assert!(!queued["scheduler_id"].is_null() && queued["start_time"].is_null(), "{queued}");
    bed.set("hold", None);
    bed.wait_job(hello, "JOB_FINISHED");
    let finished = bed.wait_batch_job(first, "finished");
    assert_eq!(finished["status_info"]["reason"], "completed", "{finished}");
    assert!(!finished["start_time"].is_null() && !finished["end_time"].is_null(), "{finished}");
    assert_eq!(fs::read_to_string(bed.site().join("data/hello/job.out")).unwrap(), "hello\n");

    refusals(&bed, kind);
    let long = bed.job("Long", "long");
    removed_by_its_owner(&bed, long);
    a_time_limit(&bed, long);
    an_outage(&bed, long);
    a_lost_answer(&bed);
    a_job_that_is_forgotten(&bed);
}

/// The hole in the queue that the idle machine is.
fn what_could_start_now(bed: &Bed) {
    let hole = serde_json::json!([{"num_nodes": 1, "wall_time_min": 60}]);
    wait_blocking(
        "the holes in the queues",
        LIMIT,
        || match &bed.json(&["site", "ls"])[0]["backfill_windows"]["debug"] {
            holes if *holes == hole => Ok(()),
            holes => Err(format!("{holes}\n{}", bed.ends_of_logs())),
        },
    );
}

/// The scheduler's own words for what it refuses.
fn refusals(bed: &Bed, kind: &str) {
    let refused = bed.wait_batch_job(bed.submit("nosuch"), "submit_failed");
    let words = match kind {
        "pbs" => "Unknown queue",
        "lsf" => "nosuch: No such queue. Job not submitted.",
        "cobalt" => "Queue 'nosuch' does not exist",
        _ => "Invalid queue 'nosuch' specified",
    };
    assert_eq!(refused["status_info"]["error"], words, "{refused}");
}

/// `queue rm` ends a running launcher well: its Job can run again elsewhere.
fn removed_by_its_owner(bed: &Bed, long: i64) {
    let id = bed.submit("debug");
    bed.wait_job(long, "RUNNING");
    // Its id at the scheduler names it, too, whatever that looks like.
    let name = match &bed.wait_batch_job(id, "running")["scheduler_id"] {
        serde_json::Value::String(name) => name.clone(),
        number => number.to_string(),
    };
    let found = bed.json(&["queue", "ls", "--scheduler-id", &name]);
    assert_eq!(found.as_array().unwrap().iter().map(|row| &row["id"]).collect::<Vec<_>>(), [id], "{found}");
    bed.copal(&["queue", "rm", "--scheduler-id", &name]);
    let finished = bed.wait_batch_job(id, "finished");
    assert!(finished["status_info"]["reason"].as_str().unwrap().starts_with("cancelled"), "{finished}");
    bed.wait_job(long, "RESTART_READY");
}

/// The scheduler ends a job whose time is over; the launcher gets its signal in time.
fn a_time_limit(bed: &Bed, long: i64) {
    let id = bed.submit("debug");
    bed.wait_job(long, "RUNNING");
    bed.set("limit", Some("0"));
    let finished = bed.wait_batch_job(id, "finished");
    assert!(finished["status_info"]["reason"].as_str().unwrap().starts_with("time limit"), "{finished}");
    bed.set("limit", None);
    bed.wait_job(long, "RESTART_READY");
}

/// While the scheduler does not answer nothing is marked finished and nothing is submitted, and it mends itself.
fn an_outage(bed: &Bed, long: i64) {
    let running = bed.submit("debug");
    bed.wait_job(long, "RUNNING");
    bed.wait_batch_job(running, "running");
    let before = bed.submitted();
    bed.set("down", Some(""));
    let waiting = bed.submit("debug");
    bed.wait_status("the scheduler does not answer");
    assert_eq!(bed.batch_job(running)["state"], "running");
    assert_eq!(bed.batch_job(waiting)["state"], "pending_submission");
    assert_eq!(bed.submitted(), before);
    bed.set("down", None);
    bed.wait_batch_job(waiting, "queued");
    assert_eq!(bed.batch_job(running)["state"], "running");
    for id in [waiting, running] {
        bed.copal(&["queue", "rm", &id.to_string()]);
        bed.wait_batch_job(id, "finished");
    }
    assert_eq!(bed.submitted(), before + 1);
    bed.wait_job(long, "RESTART_READY");
    bed.copal(&["job", "cancel", &long.to_string(), "-y"]);
}

/// A submission whose answer gets lost is found by its name and not made twice.
fn a_lost_answer(bed: &Bed) {
    let before = bed.submitted();
    bed.set("lose-answer", Some(""));
    let id = bed.submit("debug");
    let finished = bed.wait_batch_job(id, "finished");
    assert_eq!((finished["status_info"]["reason"].as_str(), bed.submitted()), (Some("completed"), before + 1));
}

/// Of a job that is purged from the scheduler's memory at once, the launcher's own record tells.
fn a_job_that_is_forgotten(bed: &Bed) {
    bed.set("forget", Some(""));
    let id = bed.submit("debug");
    let hello = bed.job("Hello", "again");
    bed.wait_job(hello, "JOB_FINISHED");
    let finished = bed.wait_batch_job(id, "finished");
    assert_eq!(finished["status_info"]["reason"], "completed", "{finished}");
    bed.set("forget", None);
}

#[test]
fn a_site_on_lsf() {
    a_site_on("lsf");
}

#[test]
fn a_site_on_cobalt() {
    a_site_on("cobalt");
}

#[test]
fn a_site_on_flux() {
    a_site_on("flux");
}

#[test]
fn a_site_on_pbs() {
    a_site_on("pbs");
}

/// Files and folders below a folder.
fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| 1 + entries(&entry.path())).sum()
}

#[test]
fn pitfall_051_076_a_flood_of_jobs_is_one_job_of_the_scheduler_and_makes_no_files() {
    let bed = Bed::new("pbs");
    // What `site init` found out needs no editing.
    let settings = bed.settings();
    assert!(settings.contains(r#""debug":{"max_nodes":2,"max_walltime":60,"max_queued_jobs":5}"#), "{settings}");
    assert!(!settings.contains("closed"), "{settings}");
    bed.set_settings(&[("sync_period", "0.5"), ("idle_ttl_sec", "2")]);
    bed.copal(&["site", "start"]);
    bed.app("Seed", "command: 'true'\noutput: none");
    let array = ["--array", "0-299", "-w", "seeds/{index:03}", "--node-packing-count", "8"];
    bed.copal(&[&["job", "create", "-y", "-a", "Seed"], &array[..]].concat());
    let id = bed.submit("debug");
    wait_blocking("the flood to be over", LIMIT, || {
        match bed.json(&["job", "ls", "--state", "JOB_FINISHED", "--limit", "1000"]).as_array().map(Vec::len) {
            Some(300) => Ok(()),
            done => Err(format!("{done:?}")),
        }
    });
    bed.wait_batch_job(id, "finished");
    assert_eq!(bed.submitted(), 1);
    let below = entries(&bed.site().join("data"));
    assert!(below <= 301, "{below} files and folders for 300 Jobs, each of which has a folder");
    // What the machine's nodes do is in the Site's record, which the agent tells anew when it is asked to.
    bed.copal(&["site", "sync"]);
    wait_blocking("the states of the nodes", LIMIT, || match &bed.json(&["site", "ls"])[0]["node_states"]["*"] {
        states if states["idle"] == 1 && states["allocated"] == 0 => Ok(()),
        states => Err(states.to_string()),
    });
}

#[test]
fn pitfall_063_070_a_node_on_which_jobs_fail_at_once_gets_no_more_batch_jobs() {
    let bed = Bed::new("lsf");
    // Two nodes: this machine and another process of it, which knows that it is n8.
    let here = nix::unistd::gethostname().unwrap().into_string().unwrap();
    bed.set("nodes", Some(&format!("{here}\nn8\n")));
    let template = "template\n  mpi_template: env STANDIN_NODE={{hosts}}";
    bed.set_settings(&[("sync_period", "0.5"), ("idle_ttl_sec", "2"), ("mpi", template), ("allowed_queues", "{}")]);
    bed.copal(&["site", "start"]);
    // `site init` saw one node.
    bed.copal(&["site", "sync"]);
    bed.app("Picky", "command: test \"$STANDIN_NODE\" != n8");
    let array = ["job", "create", "-y", "-a", "Picky", "--array", "0-19", "-w", "picky/{index}"];
    bed.copal(&array);
    let ask = ["queue", "submit", "-n", "2", "-t", "10", "-q", "debug", "-A", "proj", "-j", "serial"];
    let wide = bed.json(&ask)["id"].as_i64().unwrap();
    bed.wait_batch_job(wide, "finished");
    // Some went well here, some failed there; the agent is told to look.
    bed.copal(&["site", "sync"]);
    bed.wait_status("n8 is set aside until");
    let status = bed.copal(&["site", "status"]);
    assert!(status.contains("Jobs in a row failed at once there and not elsewhere; first Job"), "{status}");
    // So does the Site's record, from anywhere.
    wait_blocking("the node in the Site's record", LIMIT, || match bed.copal(&["site", "ls", "-o", "wide"]) {
        table if table.contains("n8 until") && table.contains("Jobs in a row failed at once there") => Ok(()),
        table => Err(table),
    });
    bed.set("hold", Some(""));
    let next = bed.submit("debug");
    let id = bed.wait_batch_job(next, "queued")["scheduler_id"].to_string();
    let job = fs::read(bed.folder("queue").join(format!("{id}.json"))).unwrap();
    let job: serde_json::Value = serde_json::from_slice(&job).unwrap();
    assert_eq!(job["avoid"], serde_json::json!(["n8"]), "{job}");
    bed.copal(&["queue", "rm", &next.to_string()]);
    bed.wait_batch_job(next, "finished");
}

/// Its Jobs have nowhere to run, and more of the same nodes would not change that.
#[test]
fn pitfall_133_the_elastic_queue_asks_no_more_for_what_its_nodes_gave_back() {
    let bed = Bed::new("lsf");
    bed.set_settings(&[("sync_period", "0.5"), ("idle_ttl_sec", "1")]);
    let elastic = "\nelastic_queue: {service_period: 1, submit_project: proj, submit_queue: debug, job_mode: serial, \
                   use_backfill: false, min_wall_time_min: 5, max_wall_time_min: 10, max_num_nodes: 1}\n";
    fs::write(bed.site().join("settings.yml"), bed.settings() + elastic).unwrap();
    bed.copal(&["site", "start"]);
    bed.app("Hello", "command: echo hello");
    let wide = ["job", "create", "-y", "-a", "Hello", "-w", "wide", "--gpus-per-rank", "4"];
    let job = bed.json(&wide)[0]["id"].as_i64().unwrap();
    wait_blocking("two allocations to have given it back", LIMIT, || match bed.json(&["queue", "ls", "--history"]) {
        all if all.as_array().unwrap().iter().filter(|row| row["state"] == "finished").count() == 2 => Ok(()),
        all => Err(format!("{all}\n{}", bed.ends_of_logs())),
    });
    bed.wait_status("Jobs need 0 nodes");
    assert_eq!(bed.submitted(), 2);
    let why = bed.copal(&["job", "why", &job.to_string()]);
    assert!(why.contains("GPU"), "{why}");
    // Work that the nodes can hold still makes demand.
    let small = bed.job("Hello", "small");
    bed.wait_job(small, "JOB_FINISHED");
    wait_blocking("the third allocation to end", LIMIT, || match bed.json(&["queue", "ls"]) {
        open if open.as_array().unwrap().is_empty() => Ok(()),
        open => Err(open.to_string()),
    });
    assert_eq!(bed.submitted(), 3);
}

/// So many of its BatchJobs wait at any time, whatever there is to run, up to the cap an hour.
#[test]
fn the_queue_maintainer_keeps_batch_jobs_waiting() {
    let bed = Bed::new("pbs");
    bed.set_settings(&[("sync_period", "0.5"), ("idle_ttl_sec", "1")]);
    let maintainer = "\nqueue_maintainer: {service_period: 1, submit_period: 1, submit_project: proj, submit_queue: debug, \
                      job_mode: serial, num_queued_jobs: 2, num_nodes: 1, wall_time_min: 10, max_requests_per_hour: 4}\n";
    fs::write(bed.site().join("settings.yml"), bed.settings() + maintainer).unwrap();
    bed.set("hold", Some(""));
    bed.copal(&["site", "start"]);
    let queued = || bed.json(&["queue", "ls", "--state", "queued"]);
    let two_wait = || {
        wait_blocking("two BatchJobs to wait", LIMIT, || match queued() {
            rows if rows.as_array().unwrap().len() == 2 => Ok(rows),
            rows => Err(format!("{rows}\n{}", bed.ends_of_logs())),
        })
    };
    let first = two_wait();
    bed.wait_status("2 of 2 wait");
    assert_eq!((bed.submitted(), &first[0]["num_nodes"], &first[0]["wall_time_min"]), (2, &1.into(), &10.into()));
    // Whoever takes one away gets another.
    bed.copal(&["queue", "rm", &first[0]["id"].to_string()]);
    two_wait();
    assert_eq!(bed.submitted(), 3);
    bed.set("hold", None);
    bed.wait_status("4 BatchJobs were asked for within an hour, which is the most allowed");
    wait_blocking("all to end", LIMIT, || match bed.json(&["queue", "ls"]) {
        open if open.as_array().unwrap().is_empty() => Ok(()),
        open => Err(open.to_string()),
    });
    assert_eq!(bed.submitted(), 4);
}
