//! A campaign on Slurm with accounting: what `site init` finds out, an allocation in parts, the limits of Slurm and
//! of the Site, two Sites driven from a folder that is neither's, and an elastic queue that grows and shrinks.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use copal_tests::{at_site::AtSite, wait::wait_blocking};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, LAPTOP},
    launcher::may_simulate_nodes,
};

const LIMIT: Duration = Duration::from_secs(120);
/// Jobs of the burst.
const BURST: usize = 500;
/// What the elastic queue may ask for.
const MAX_WAITING: usize = 2;

#[test]
fn a_campaign_on_slurm() {
    let cluster = Cluster::with_accounting();
    cluster.launcher_settings("idle_ttl_sec: 1\n  kill_grace_sec: 1");
    cluster.app("Where", "command: hostname; sleep 0.3");
    cluster.app("Long", "command: sleep 600");
    init_finds_out_all_that_the_settings_need(&cluster);
    parts_run_the_jobs_that_are_theirs(&cluster);
    the_site_refuses_what_is_beyond_its_limits(&cluster);
    // Slurm's limit takes more than a minute to be felt: the rest is done meanwhile, on the other nodes.
    let limited = a_run_that_slurm_will_end(&cluster);
    the_site_tells_what_its_nodes_do(&cluster);
    two_sites_are_driven_from_elsewhere(&cluster);
    the_elastic_queue_grows_and_shrinks(&cluster, limited.0);
    slurm_ended_it_at_its_limit(&cluster, limited);
}

fn init_finds_out_all_that_the_settings_need(cluster: &Cluster) {
    let site = &cluster.json(&["site", "ls"])[0];
    let queues = json!({
        "debug": {"max_nodes": 4, "max_walltime": 120, "max_queued_jobs": 1000},
        "short": {"max_nodes": 2, "max_walltime": 5, "max_queued_jobs": 1000},
    });
    assert_eq!((&site["allowed_queues"], &site["allowed_projects"]), (&queues, &json!(["proj", "root"])), "{site}");
    let text = fs::read_to_string(cluster.site_path().join("settings.yml")).unwrap();
    assert!(text.contains(r#"allowed_projects: ["proj","root"]"#), "{text}");
}

/// Four nodes: a leader on one, workers on three; a Job without their tags runs nowhere.
fn parts_run_the_jobs_that_are_theirs(cluster: &Cluster) {
    let leader = cluster.job(&["-a", "Where", "-w", "parts/leader", "--tag", "role=leader"]);
    let workers: Vec<i64> = (0..6)
        .map(|index| cluster.job(&["-a", "Where", "-w", &format!("parts/{index}"), "--tag", "role=worker"]))
        .collect();
    let other = cluster.job(&["-a", "Where", "-w", "parts/other"]);
    let parts = ["-p", "mpi:1:role=leader", "-p", "serial:3:role=worker"];
    let words = [&["queue", "submit", "-t", "10", "-q", "debug", "-A", "proj"], &parts[..]].concat();
    let allocation = cluster.json(&words)["id"].as_i64().unwrap();
    let table = cluster.copal(&["queue", "ls"]);
    assert!(table.contains("mpi:1:role=leader serial:3:role=worker"), "{table}");
    for job in workers.iter().chain([&leader]) {
        cluster.wait_job(*job, "JOB_FINISHED");
    }
    cluster.wait_batch_job(allocation, "finished");
    assert_eq!(cluster.json(&["job", "ls", "--id", &other.to_string()])[0]["state"], "PREPROCESSED");
    cluster.copal(&["job", "cancel", &other.to_string(), "-y"]);
    if may_simulate_nodes() {
        let host =
            |workdir: &str| fs::read_to_string(cluster.site_path().join("data").join(workdir).join("job.out")).unwrap();
        let hosts: BTreeSet<String> = (0..workers.len()).map(|index| host(&format!("parts/{index}"))).collect();
        assert!(hosts.len() == 3 && !hosts.contains(&host("parts/leader")), "{hosts:?}");
    }
}

/// The command refuses before it sends; Slurm's own words come through where the Site sets no limit.
fn the_site_refuses_what_is_beyond_its_limits(cluster: &Cluster) {
    let submit = |words: &[&str]| cluster.refused(&[&["queue", "submit", "-j", "mpi", "-A", "proj"], words].concat());
    for (words, reason) in [
        (["-n", "5", "-t", "10", "-q", "debug"], "5 nodes are asked for; queue debug allows 4"),
        (["-n", "1", "-t", "6", "-q", "short"], "6 minutes are asked for; queue short allows 5"),
        (["-n", "1", "-t", "6", "-q", "nowhere"], "queue \"nowhere\" is not allowed here; allowed: debug, short"),
    ] {
        let text = submit(&words);
        assert!(text.contains(reason), "{text}");
    }
    assert_eq!(cluster.json(&["queue", "ls", "--history", "--state", "submit_failed"]), json!([]));
}

/// An allocation of ten minutes that an administrator makes one of one minute: Slurm ends it before its launcher would.
fn a_run_that_slurm_will_end(cluster: &Cluster) -> (i64, i64) {
    let job = cluster.job(&["-a", "Long", "-w", "limited", "--tag", "kind=limited"]);
    let allocation = cluster.submit(&["-n", "1", "--tag", "kind=limited"]);
    cluster.wait_job(job, "RUNNING");
    let id = cluster.wait_batch_job(allocation, "running")["scheduler_id"].to_string();
    cluster.slurm("scontrol", &["update", &format!("JobId={id}"), "TimeLimit=1"]);
    (allocation, job)
}

fn slurm_ended_it_at_its_limit(cluster: &Cluster, (allocation, job): (i64, i64)) {
    let finished = cluster.wait_batch_job(allocation, "finished");
    assert_eq!(finished["status_info"]["reason"], "time limit", "{finished}");
    cluster.wait_job(job, "RESTART_READY");
    let events = cluster.json(&["events", "ls", "--job-id", &job.to_string(), "--to-state", "RUN_TIMEOUT"]);
    // Once, by its launcher, to which Slurm gave notice.
    assert_eq!((events.as_array().unwrap().len(), &events[0]["data"]["reason"]), (1, &json!("walltime")), "{events}");
    let table = cluster.copal(&["queue", "ls", "--history"]);
    let row = table.lines().find(|line| line.starts_with(&format!("{allocation} "))).unwrap_or_default();
    assert!(row.contains("finished") && row.contains("time limit"), "{table}");
}

/// One node of four is allocated; the partition that is down has none to give.
fn the_site_tells_what_its_nodes_do(cluster: &Cluster) {
    wait_blocking("the states of the nodes", LIMIT, || {
        cluster.copal(&["site", "sync"]);
        let site = cluster.json(&["site", "ls"])[0].clone();
        let debug = &site["node_states"]["debug"];
        let is_told = debug["idle"] == 3 && debug["allocated"] == 1 && site["node_states"]["closed"]["idle"] == 0;
        let window = &site["backfill_windows"]["debug"][0];
        let has_window = *window == json!({"num_nodes": 3, "wall_time_min": 120});
        if is_told && has_window { Ok(()) } else { Err(site.to_string()) }
    });
    let table = cluster.copal(&["site", "ls", "-o", "wide"]);
    assert!(table.contains("debug: 3 idle, 1 allocated") && table.contains("debug: 3 nodes for 120 min"), "{table}");
}

fn two_sites_are_driven_from_elsewhere(cluster: &Cluster) {
    cluster.outside(&["site", "init", LAPTOP, "--name", LAPTOP, "--platform", "local", "-y"]);
    let settings = cluster.home().join(LAPTOP).join("settings.yml");
    let text = fs::read_to_string(&settings).unwrap().replace("idle_ttl_sec: 60", "idle_ttl_sec: 1");
    fs::write(&settings, text).unwrap();
    fs::copy(cluster.site_path().join("apps/Where.yml"), cluster.home().join(LAPTOP).join("apps/Where.yml")).unwrap();
    cluster.outside(&["site", "start", "--site", LAPTOP]);
    cluster.outside(&["app", "sync", "--site", LAPTOP]);
    let text = cluster.refused_outside(&["queue", "submit", "-n", "1", "-t", "5", "-j", "mpi"], 2);
    assert!(text.contains("hpc (1), laptop (2)"), "{text}");

    let json = |words: &[&str]| -> Value {
        serde_json::from_str(&cluster.outside(&[words, &["-o", "json"]].concat())).unwrap()
    };
    let submit = ["queue", "submit", "-n", "1", "-t", "5", "-j", "mpi", "--tag", "kind=elsewhere"];
    // It's the event that carries it: the next look of its own is far away.
    cluster.change_settings(|text| text.replace("sync_period: 1\n", "sync_period: 600\n"));
    let started = Instant::now();
    let at_slurm = json(&[&submit[..], &["--site", "hpc", "-q", "debug", "-A", "proj"]].concat())["id"].clone();
    wait_blocking("Slurm to have the BatchJob", LIMIT, || {
        match cluster.jobs_of_slurm("PENDING,RUNNING,COMPLETING").len() {
            2 => Ok(()),
            count => Err(format!("{count} jobs at Slurm")),
        }
    });
    eprintln!("a BatchJob submitted outside of any Site was at Slurm after {:?}", started.elapsed());
    cluster.change_settings(|text| text.replace("sync_period: 600\n", "sync_period: 1\n"));
    let at_home = json(&[&submit[..], &["--site", LAPTOP]].concat())["id"].clone();
    let table = cluster.outside(&["queue", "ls", "--site=all", "--tag", "kind=elsewhere"]);
    let rows: BTreeSet<(&str, &str)> = table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?, words.next()?))
        })
        .collect();
    let (slurm_id, home_id) = (at_slurm.to_string(), at_home.to_string());
    assert_eq!(rows, [(slurm_id.as_str(), "hpc"), (home_id.as_str(), LAPTOP)].into(), "{table}");

    let create = ["job", "create", "-a", "Where", "-w", "elsewhere", "--tag", "kind=elsewhere", "-y", "--site"];
    for site in ["hpc", LAPTOP] {
        cluster.outside(&[&create[..], &[site]].concat());
    }
    cluster.outside(&["job", "wait", "--tag", "kind=elsewhere", "--site=all", "--timeout", "120"]);
    for id in [&slurm_id, &home_id] {
        cluster.outside(&["queue", "rm", id]);
    }
    wait_blocking("both BatchJobs to be over", LIMIT, || {
        match json(&["queue", "ls", "--site=all", "--tag", "kind=elsewhere"]) {
            Value::Array(rows) if rows.is_empty() => Ok(()),
            rows => Err(rows.to_string()),
        }
    });
    let sites = cluster.outside(&["site", "ls"]);
    assert_eq!(sites.matches("active").count(), 2, "{sites}");
    cluster.outside(&["site", "stop", "--site", LAPTOP]);
}

/// 500 Jobs come at once. Allocations of one node are asked for, two of which may wait; when nothing is left to run
/// none waits, and those that ran end by themselves. Then once more, only into the holes of the queue.
fn the_elastic_queue_grows_and_shrinks(cluster: &Cluster, limited: i64) {
    cluster.app("Tick", "command: sleep 0.2");
    cluster.change_settings(|text| {
        format!(
            "{text}\nelastic_queue:\n  {{service_period: 1, submit_project: proj, submit_queue: debug, job_mode: serial, \
             use_backfill: false, min_wall_time_min: 5, max_wall_time_min: 10, max_num_nodes: 1, \
             max_queued_jobs: {MAX_WAITING}, max_requests_per_hour: 100}}\n"
        )
    });
    let seen = burst(cluster, limited, BURST);
    eprintln!("elastic queue: {seen:?}");
    assert!(seen.running >= 2 && seen.waiting <= MAX_WAITING, "{seen:?}");
    cluster.change_settings(|text| text.replace("use_backfill: false", "use_backfill: true"));
    let seen = burst(cluster, limited, 40);
    eprintln!("elastic queue with backfill: {seen:?}");
    assert!(!seen.asked.is_empty() && seen.waiting <= MAX_WAITING, "{seen:?}");
    // The limited Job runs where its allocation is: nobody asked for another for it.
    assert!(cluster.json(&["queue", "ls"]).as_array().unwrap().iter().all(|row| row["id"] == limited), "{seen:?}");
    // When its allocation is over it would be demand, and run again elsewhere.
    cluster.change_settings(|text| text.split("\nelastic_queue:").next().unwrap_or_default().to_owned());
}

/// What was seen of an elastic queue while it worked: the most that ran and waited at once, and all that it asked for.
#[derive(Debug, Default)]
struct Seen {
    running: usize,
    waiting: usize,
    asked: BTreeSet<i64>,
}

/// Makes so many Jobs and waits until all have run and no allocation but the limited one is left.
fn burst(cluster: &Cluster, limited: i64, count: usize) -> Seen {
    let (tag, array) = (format!("burst={count}"), format!("0-{}", count - 1));
    let shape = ["-a", "Tick", "-w", "burst/{index}", "--array", &array, "--node-packing-count", "4"];
    cluster.copal(&[&["job", "create", "-y", "--tag", &tag], &shape[..]].concat());
    let mut seen = Seen::default();
    wait_blocking("the burst to be over", Duration::from_secs(180), || {
        let all = cluster.json(&["queue", "ls"]);
        let open: Vec<&Value> = all.as_array().unwrap().iter().filter(|row| row["id"] != limited).collect();
        let waits = |row: &Value| row["state"] == "pending_submission" || row["state"] == "queued";
        seen.running = seen.running.max(open.iter().filter(|row| row["state"] == "running").count());
        seen.waiting = seen.waiting.max(open.iter().filter(|row| waits(row)).count());
        seen.asked.extend(open.iter().map(|row| row["id"].as_i64().unwrap()));
        let jobs = cluster.json(&["job", "ls", "--by-state", "--tag", &tag]);
        let is_over = jobs == json!({"JOB_FINISHED": count}) && open.is_empty();
        if is_over { Ok(()) } else { Err(format!("{jobs}; {open:?}; {}", cluster.ends_of_logs())) }
    });
    assert_eq!(cluster.jobs_of_slurm("PENDING"), [] as [&str; 0]);
    seen
}
