//! The launcher on real nodes: MPI programs by srun, Open MPI and MPICH, each of which says where its
//! ranks really are; serial Jobs by workers that srun starts on every node; and what is left after the
//! launcher is killed and the allocation is cancelled.
//!
//! The nodes are simulated on one machine: they have names and process numbers of their own, and the same CPUs.

use std::{
    collections::{BTreeSet, HashSet},
    fs,
    process::Command,
    time::Duration,
};

use copal_tests::{at_site::AtSite, process::describe, wait::wait_blocking};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::cluster::Cluster;

const LIMIT: Duration = Duration::from_secs(120);
/// CPUs of a node: as many as any machine has that runs these tests.
const CPUS: u32 = 2;
const GPUS: [&str; 2] = ["0", "1"];

/// What one rank said.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    rank: usize,
    size: usize,
    host: String,
    cpus: Vec<u32>,
    gpus: Vec<String>,
}

/// A way to start ranks.
struct Way {
    /// `launcher.mpi` in the settings.
    mpi: &'static str,
    /// The MPI that the program is built with.
    app: &'static str,
    /// More words of `job create`.
    params: &'static [&'static str],
    /// Whether Jobs of several nodes are tried. MPICH's ranks hang now and then at their end on simulated nodes.
    is_wide: bool,
}

const WAYS: [Way; 4] = [
    Way { mpi: "srun", app: "RanksOpenmpi", params: &["--launch-param", "mpi=pmix"], is_wide: true },
    Way { mpi: "openmpi", app: "RanksOpenmpi", params: &[], is_wide: true },
    Way { mpi: "srun", app: "RanksMpich", params: &["--launch-param", "mpi=pmi2"], is_wide: false },
    Way { mpi: "mpich", app: "RanksMpich", params: &[], is_wide: false },
];

#[test]
fn ranks_are_where_placement_put_them() {
    if !may_simulate_nodes() {
        return;
    }
    let cluster = Cluster::with_cpus(CPUS);
    for (app, compiler) in [("RanksOpenmpi", "mpicc.openmpi"), ("RanksMpich", "mpicc.mpich")] {
        let program = cluster.site_path().join("apps").join(app);
        compile(compiler, program.to_str().unwrap());
        cluster.app(app, &format!("command: {}", program.display()));
    }
    for (turn, way) in WAYS.iter().enumerate() {
        let _ = fs::remove_file(cluster.site_path().join("gate"));
        cluster.launcher_settings(&format!("mpi: {}\n  gpu_ids: [\"0\", \"1\"]\n  idle_ttl_sec: 1", way.mpi));
        several_share_the_nodes(&cluster, way, turn);
        if way.is_wide {
            one_job_spans_nodes(&cluster, way, turn);
            pitfall_093_ranks_on_every_node_end_with_their_run(&cluster, way, turn);
        }
    }
}

/// Nodes with names of their own need namespaces, which only root may make.
pub(crate) fn may_simulate_nodes() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: the nodes of a simulated cluster have names of their own only when root starts them");
    }
    is_root
}

fn compile(compiler: &str, program: &str) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/slurm/ranks.c");
    let output = Command::new(compiler)
        .args(["-O1", source, "-o", program])
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}; install libopenmpi-dev and libmpich-dev"));
    assert!(output.status.success(), "{compiler}: {}", describe(&output));
}

/// Four Jobs of one rank and one GPU run at once on two nodes: no two have a CPU or a GPU of a node in common.
fn several_share_the_nodes(cluster: &Cluster, way: &Way, turn: usize) {
    let workdirs: Vec<String> = (0..4).map(|number| format!("narrow/{turn}/{number}")).collect();
    let jobs: Vec<i64> = workdirs
        .iter()
        .map(|workdir| {
            let shape = ["-a", way.app, "-w", workdir, "--node-packing-count", "2", "--gpus-per-rank", "1"];
            cluster.job(&[&shape, way.params].concat())
        })
        .collect();
    let allocation = cluster.submit(&["-n", "2"]);
    // All at the same time: none ends before the gate is there.
    let ranks: Vec<Rank> = workdirs.iter().map(|workdir| cluster.ranks(workdir, 1).remove(0)).collect();
    let mut places = HashSet::new();
    for rank in &ranks {
        assert_eq!((rank.rank, rank.size, rank.cpus.len(), rank.gpus.len()), (0, 1, 1, 1), "{}: {ranks:?}", way.mpi);
        assert!(GPUS.contains(&rank.gpus[0].as_str()), "{ranks:?}");
        assert!(places.insert((rank.host.clone(), format!("cpu {}", rank.cpus[0]))), "{}: {ranks:?}", way.mpi);
        assert!(places.insert((rank.host.clone(), format!("gpu {}", rank.gpus[0]))), "{}: {ranks:?}", way.mpi);
    }
    let hosts: BTreeSet<&str> = ranks.iter().map(|rank| rank.host.as_str()).collect();
    assert_eq!(hosts.len(), 2, "{}: {ranks:?}", way.mpi);
    open_gate(cluster, &jobs);
    cluster.wait_batch_job(allocation, "finished");
}

/// One Job of two ranks on each of two nodes: one world of four ranks, each with CPUs of its own.
fn one_job_spans_nodes(cluster: &Cluster, way: &Way, turn: usize) {
    fs::remove_file(cluster.site_path().join("gate")).unwrap();
    let workdir = format!("wide/{turn}");
    let shape = ["-a", way.app, "-w", &workdir, "--num-nodes", "2", "--ranks-per-node", "2", "--gpus-per-rank", "1"];
    let job = cluster.job(&[&shape, way.params].concat());
    let allocation = cluster.submit(&["-n", "2"]);
    let ranks = cluster.ranks(&workdir, 4);
    let numbers: Vec<(usize, usize)> = ranks.iter().map(|rank| (rank.rank, rank.size)).collect();
    assert_eq!(numbers, [(0, 4), (1, 4), (2, 4), (3, 4)], "{}: {ranks:?}", way.mpi);
    // Ranks of a node are neighbours; each has one CPU, and the node's ranks share no CPU.
    assert!(ranks[0].host == ranks[1].host && ranks[2].host == ranks[3].host, "{}: {ranks:?}", way.mpi);
    assert_ne!(ranks[0].host, ranks[2].host, "{}: {ranks:?}", way.mpi);
    for pair in ranks.chunks(2) {
        let cpus: BTreeSet<u32> = pair.iter().flat_map(|rank| rank.cpus.clone()).collect();
        assert_eq!((pair[0].cpus.len(), pair[1].cpus.len(), cpus.len()), (1, 1, 2), "{}: {ranks:?}", way.mpi);
        let gpus: BTreeSet<&String> = pair.iter().flat_map(|rank| &rank.gpus).collect();
        assert_eq!(gpus.len(), 2, "{}: {ranks:?}", way.mpi);
    }
    open_gate(cluster, &[job]);
    cluster.wait_batch_job(allocation, "finished");
}

/// Ranks that take no TERM, on two nodes: gone before their Job runs again when the worker that started them is killed,
/// and before their Job is told to be over when it is cancelled.
fn pitfall_093_ranks_on_every_node_end_with_their_run(cluster: &Cluster, way: &Way, turn: usize) {
    // Recognised among all processes of the machine by its odd number.
    let odd = format!("{}.{turn}5", 5_000_000 + std::process::id());
    let app = format!("Stubborn{turn}");
    cluster.app(&app, &format!("command: sh -c \"trap '' TERM; exec sleep {odd}\""));
    let ranks = || processes(&odd).into_iter().filter(|(_, line)| line.starts_with("sleep ")).collect::<Vec<_>>();
    let four = |what: &str| {
        wait_blocking(what, LIMIT, || match ranks() {
            all if all.len() == 4 => Ok(all),
            some => Err(format!("{some:?}; {}", cluster.ends_of_logs())),
        })
    };
    let workdir = format!("stubborn/{turn}");
    let shape = ["-a", &app, "-w", &workdir, "--num-nodes", "2", "--ranks-per-node", "2"];
    let job = cluster.job(&[&shape, way.params].concat());
    let allocation = cluster.submit(&["-n", "2"]);
    let first = four("ranks on two nodes");
    cluster.wait_job(job, "RUNNING");
    let launchers = processes(&format!("{} --batch-job-id {allocation} ", cluster.site_path().display()));
    assert_eq!(launchers.len(), 1, "{launchers:?}");
    // The head's child is the guard, whose child is the worker.
    let below = |(pid, _): &(Pid, String)| parent(*pid).and_then(parent) == Some(launchers[0].0);
    let workers: Vec<_> = processes("copal-launcher worker").into_iter().filter(below).collect();
    assert_eq!(workers.len(), 1, "{workers:?}");
    kill(workers[0].0, Signal::SIGKILL).unwrap();
    // Before that nothing may be said of the Job.
    wait_blocking("the Job to be out of the lost worker's hands", LIMIT, || {
        let events = cluster.json(&["events", "ls", "--job-id", &job.to_string(), "--to-state", "RUN_TIMEOUT"]);
        if events.as_array().is_some_and(Vec::is_empty) { Err(cluster.ends_of_logs()) } else { Ok(()) }
    });
    let is_left = |pid: &Pid| ranks().iter().any(|(rank, _)| rank == pid);
    let left: Vec<_> = first.iter().filter(|(pid, _)| is_left(pid)).collect();
    assert!(left.is_empty(), "{}: {left:?}", way.mpi);
    four("ranks of the second run");
    cluster.wait_job(job, "RUNNING");
    cluster.copal(&["job", "cancel", &job.to_string(), "-y"]);
    cluster.wait_job(job, "FAILED");
    assert!(ranks().is_empty(), "{}: {:?}", way.mpi, ranks());
    cluster.wait_batch_job(allocation, "finished");
}

fn open_gate(cluster: &Cluster, jobs: &[i64]) {
    fs::write(cluster.site_path().join("gate"), "").unwrap();
    for job in jobs {
        cluster.wait_job(*job, "JOB_FINISHED");
    }
}

#[test]
fn serial_workers_on_every_node() {
    if !may_simulate_nodes() {
        return;
    }
    let cluster = Cluster::with_cpus(CPUS);
    cluster.launcher_settings("idle_ttl_sec: 1\n  kill_grace_sec: 1");
    cluster.app("Where", "command: sleep 0.3; hostname; taskset -cp $$ || true");
    // Recognised among all processes of the machine by its odd number.
    let odd = format!("{}.25", 4_000_000 + std::process::id());
    cluster.app("Long", &format!("command: sleep {odd}"));

    // 32 Jobs fill four nodes of two places four times.
    let shape = ["-a", "Where", "-w", "where/{index}", "--array", "0-31", "--node-packing-count", "2"];
    cluster.job(&shape);
    let allocation = cluster.submit(&["-n", "4", "-j", "serial"]);
    cluster.wait_batch_job(allocation, "finished");
    let hosts: BTreeSet<String> = (0..32)
        .map(|index| {
            let text = fs::read_to_string(cluster.site_path().join(format!("data/where/{index}/job.out"))).unwrap();
            text.lines().next().unwrap().to_owned()
        })
        .collect();
    assert_eq!(hosts.len(), 4, "{hosts:?}");

    pitfall_093_a_killed_launcher_leaves_nothing_on_any_node(&cluster, &odd);
    scancel_ends_all_runs_in_order(&cluster, &odd);
}

fn eight_long_jobs(cluster: &Cluster, odd: &str) -> (Vec<i64>, i64) {
    let name = format!("long/{}", uuid::Uuid::new_v4().simple());
    let jobs: Vec<i64> = (0..8)
        .map(|index| cluster.job(&["-a", "Long", "-w", &format!("{name}/{index}"), "--node-packing-count", "2"]))
        .collect();
    let allocation = cluster.submit(&["-n", "4", "-j", "serial"]);
    wait_blocking("eight processes on four nodes", LIMIT, || match processes(odd).len() {
        8 => Ok(()),
        count => Err(format!("{count}; {}", cluster.ends_of_logs())),
    });
    // The service knows of them too.
    jobs.iter().for_each(|job| cluster.wait_job(*job, "RUNNING"));
    (jobs, allocation)
}

fn pitfall_093_a_killed_launcher_leaves_nothing_on_any_node(cluster: &Cluster, odd: &str) {
    let (jobs, allocation) = eight_long_jobs(cluster, odd);
    // Other tests of this machine have BatchJobs of the same number, at other Sites.
    let launchers = processes(&format!("{} --batch-job-id {allocation} ", cluster.site_path().display()));
    assert_eq!(launchers.len(), 1, "{launchers:?}");
    kill(launchers[0].0, Signal::SIGKILL).unwrap();
    wait_blocking("nothing to be left", LIMIT, || match processes(odd) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
    cluster.wait_batch_job(allocation, "finished");
    for job in jobs {
        cluster.wait_job(job, "RESTART_READY");
        cluster.copal(&["job", "cancel", &job.to_string(), "-y"]);
    }
}

fn scancel_ends_all_runs_in_order(cluster: &Cluster, odd: &str) {
    let (jobs, allocation) = eight_long_jobs(cluster, odd);
    let id = cluster.batch_job(allocation)["scheduler_id"].to_string();
    cluster.slurm("scancel", &[&id]);
    wait_blocking("nothing to be left", LIMIT, || match processes(odd) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
    for job in &jobs {
        cluster.wait_job(*job, "RESTART_READY");
        let events = cluster.json(&["events", "ls", "--job-id", &job.to_string(), "--to-state", "RUN_TIMEOUT"]);
        assert_eq!(events[0]["data"]["reason"], "walltime", "{events}");
    }
    cluster.wait_batch_job(allocation, "finished");
}

fn parent(pid: Pid) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok().map(Pid::from_raw)
}

/// Processes of the machine whose command line has this text; not the shells around them.
pub(crate) fn processes(text: &str) -> Vec<(Pid, String)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let found = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
        let bytes = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&bytes).replace('\0', " ");
        let is_meant = line.contains(text) && !line.contains("bash");
        is_meant.then_some((Pid::from_raw(pid), line))
    });
    found.collect()
}

impl Cluster {
    /// What the ranks of a Job said, by rank, once all have.
    fn ranks(&self, workdir: &str, count: usize) -> Vec<Rank> {
        let path = self.site_path().join("data").join(workdir).join("job.out");
        wait_blocking(&format!("{count} ranks in {workdir}"), LIMIT, || {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let mut ranks: Vec<Rank> = text.lines().filter_map(parse).collect();
            ranks.sort();
            if ranks.len() == count { Ok(ranks) } else { Err(format!("{text}\n{}", self.ends_of_logs())) }
        })
    }
}

/// `rank 0 of 1 host n1 cpus 0,1 gpus 1`
fn parse(line: &str) -> Option<Rank> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["rank", rank, "of", size, "host", host, "cpus", cpus, "gpus", gpus] = words[..] else { return None };
    Some(Rank {
        rank: rank.parse().ok()?,
        size: size.parse().ok()?,
        host: host.to_owned(),
        cpus: cpus.split(',').filter_map(|cpu| cpu.parse().ok()).collect(),
        gpus: gpus.split(',').map(str::to_owned).collect(),
    })
}
