//! The launcher's figures, each through the real service.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use copal_tests::{LIMIT, stream::EventStream, wait_for};
use serde_json::json;

use crate::{
    bare::{self, Bare},
    machine::{Snapshot, cpus, memory_mib},
    stage::{Launcher, Split, Stage, arguments, environment, has, time},
    table::Table,
};

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many Jobs of /bin/true; several numbers are measured one after the other.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 50_000])]
    jobs: Vec<usize>,
    /// After how many Jobs memory is compared with that after 1,000.
    #[arg(long, default_value_t = 100_000)]
    memory_jobs: usize,
    /// How many Jobs by the MPI command.
    #[arg(long, default_value_t = 300)]
    mpi_jobs: usize,
    /// How many Jobs are made one at a time on an idle launcher.
    #[arg(long, default_value_t = 300)]
    samples: usize,
    /// Seconds over which the CPU time of a quiet launcher is taken.
    #[arg(long, default_value_t = 20)]
    quiet_sec: u64,
    /// Only these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Figure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Figure {
    /// Throughput without output files.
    Flood,
    /// Throughput with job.out in an own workdir each.
    Files,
    /// Throughput of the MPI command.
    Mpi,
    /// Creation to start, exit to recorded.
    Latency,
    /// Memory after many Jobs.
    Memory,
    /// CPU time of a launcher that has nothing to do, and of one with 1,000 long Jobs.
    Quiet,
}

/// One service and how many of its Jobs are finished.
struct Bench {
    stage: Stage,
    finished: usize,
    table: Table,
}

/// A stretch of work.
struct Flight {
    time: Duration,
    split: Split,
}

/// Measures all that the options name.
pub(crate) async fn measure(options: &Options) -> Table {
    let wanted = |figure: Figure| options.only.is_empty() || options.only.contains(&figure);
    let mut bench = Bench { stage: Stage::new().await, finished: 0, table: Table::default() };
    println!("{} CPUs, so {} Jobs at a time", cpus(), cpus());
    for jobs in &options.jobs {
        if wanted(Figure::Flood) {
            bench.flood(*jobs).await;
        }
        if wanted(Figure::Files) {
            bench.files(*jobs).await;
        }
    }
    if wanted(Figure::Mpi) {
        match has("mpiexec") {
            true => bench.mpi(options.mpi_jobs).await,
            false => println!("no mpiexec is on PATH, so the mpi launcher is left out"),
        }
    }
    if wanted(Figure::Latency) {
        bench.latency(options.samples).await;
    }
    if wanted(Figure::Memory) {
        bench.memory(options.memory_jobs).await;
    }
    if wanted(Figure::Quiet) {
        bench.quiet(Duration::from_secs(options.quiet_sec)).await;
    }
    bench.table
}

impl Bench {
    /// One launcher runs `count` Jobs of an App that wait for it.
    async fn fly(&mut self, mode: &str, app: &str, count: usize, own_folders: bool) -> Flight {
        self.stage.settings(&json!({"cpus_per_node": cpus(), "idle_ttl_sec": 600}));
        let run = self.finished;
        let workdir = |index: usize| match own_folders {
            true => format!("run{run}/{index:06}"),
            false => shared_folder(index),
        };
        let created = self.stage.create(count, |index| self.stage.job(app, &workdir(index), cpus())).await;
        println!("created {count} Jobs at {:.0}/s", bare::rate(count, created));
        let launcher = self.stage.launch(mode);
        let before = Split { head: 0.0, worker: 0.0, children: 0.0, ..self.stage.split(&launcher) };
        self.finished += count;
        self.stage.wait_finished(self.finished, Duration::from_millis(500)).await;
        let split = self.stage.split(&launcher).since(before);
        let time = (self.stage.last_finish().await - launcher.start).to_std().expect("it ended after its start");
        launcher.stop();
        Flight { time, split }
    }

    async fn flood(&mut self, count: usize) {
        let (argv, at_a_time) = (["/bin/true".to_owned()], cpus());
        let part = (count / 5).max(1_000);
        let folder = self.stage.site();
        let before = bare::commands(&argv, &[], &folder, part, at_a_time);
        let flight = self.fly("serial", "Flood", count, false).await;
        let after = bare::commands(&argv, &[], &folder, part, at_a_time);
        self.compare(format!("serial, {count} × /bin/true, no output"), count, &flight, before.and(after), 0.7);
    }

    async fn files(&mut self, count: usize) {
        let part = (count / 5).max(1_000);
        let folder = self.stage.site().join("data");
        let bare_folder = |name: &str| folder.join(format!("bare-{name}-{}", self.finished));
        let (first, second) = (bare_folder("first"), bare_folder("second"));
        let before = bare::with_files(&first, part, cpus());
        let flight = self.fly("serial", "File", count, true).await;
        let after = bare::with_files(&second, part, cpus());
        self.compare(format!("serial, {count} × /bin/true, job.out each"), count, &flight, before.and(after), 0.8);
    }

    async fn mpi(&mut self, count: usize) {
        let (argv, env) = self.mpi_command().await;
        println!("the MPI command: {}", argv.join(" "));
        let folder = self.stage.site();
        let before = bare::commands(&argv, &env, &folder, count / 2, cpus());
        let flight = self.fly("mpi", "Flood", count, false).await;
        let after = bare::commands(&argv, &env, &folder, count / 2, cpus());
        self.compare(format!("mpi, {count} × {}", argv[0]), count, &flight, before.and(after), 0.9);
    }

    /// The command by which the launcher starts one rank of `/bin/true`, and its environment: seen at a Job that
    /// sleeps.
    async fn mpi_command(&mut self) -> (Vec<String>, Vec<(String, String)>) {
        self.stage.settings(&json!({"cpus_per_node": cpus(), "idle_ttl_sec": 600}));
        let launcher = self.stage.launch("mpi");
        self.stage.create(1, |_| self.stage.job("Nap", "nap", cpus())).await;
        let (mut argv, env) = loop {
            let now = Snapshot::take();
            let runs = launcher.workers().into_iter().flat_map(|worker| now.children(worker));
            let mut lists = runs.map(|process| (arguments(process.pid), environment(process.pid)));
            if let Some(found) = lists.find(|(list, _)| list.iter().any(|word| word.ends_with("/sleep"))) {
                break found;
            }
            self.check_failed().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        self.cancel_naps().await;
        launcher.stop();
        let program = argv.iter().position(|word| word.ends_with("/sleep")).expect("it was found by that");
        argv.truncate(program);
        argv.push("/bin/true".into());
        (argv, env)
    }

    /// Ends the benchmark when a Job has failed, with what is known of it.
    async fn check_failed(&self) {
        if let Some(job) = self.stage.api.list("/jobs/?state=FAILED&limit=1").await.first() {
            let events = self.stage.api.list(&format!("/events/?job_id={}", copal_tests::id(job))).await;
            let told: Vec<String> =
                events.iter().map(|event| format!("{} {}", event["to_state"], event["data"])).collect();
            panic!("Job {} failed: {}; {}", job["id"], told.join(", "), self.stage.launcher_log());
        }
    }

    /// Ends what sleeps, and removes it, so that it neither runs again nor counts as failed.
    async fn cancel_naps(&self) {
        // A process starts a little before the service knows of it, and only what runs is cancelled.
        wait_for("a nap to be known as running", LIMIT, async || {
            self.check_failed().await;
            if self.stage.count("RUNNING").await > 0 { Ok(()) } else { Err(self.stage.launcher_log()) }
        })
        .await;
        let cancelled = self.stage.api.post("/jobs/cancel?state=RUNNING", &json!({})).await;
        cancelled.ok();
        wait_for("no nap to run", LIMIT, async || {
            if self.stage.count("RUNNING").await == 0 { Ok(()) } else { Err(self.stage.launcher_log()) }
        })
        .await;
        self.stage.api.delete("/jobs/?state=FAILED").await.deleted();
    }

    /// The ratio by the clock, and by CPU time: on a machine that does other work too, many processes get more of
    /// it than few, so that the clock alone flatters.
    fn compare(&mut self, what: String, count: usize, flight: &Flight, bare: Bare, goal: f64) {
        let (own, bare_rate, bare_us) = (bare::rate(count, flight.time), bare.rate(), bare.cpu_us());
        let raw = format!("{own:.0}/s, bare loop {bare_rate:.0}/s; {}", flight.split.a_job(count));
        self.table.at_least(format!("{what}: rate"), own / bare_rate, goal, raw);
        let own_us = flight.split.total() * 1e6 / count as f64;
        let raw = format!("CPU µs a Job: {own_us:.0}, bare loop {bare_us:.0}");
        self.table.at_least(format!("{what}: CPU time"), bare_us / own_us, goal, raw);
    }

    /// Jobs one at a time: from just before the request that makes one to its start, and from its end to
    /// the moment when a client's event stream shows it.
    async fn latency(&mut self, samples: usize) {
        self.stage.settings(&json!({"cpus_per_node": cpus(), "idle_ttl_sec": 600}));
        let launcher = self.stage.launch("serial");
        let mut stream = EventStream::open(&self.stage.api, "/events/stream?kind=job", None).await;
        let (mut to_start, mut to_record) = (Vec::new(), Vec::new());
        for sample in 0..samples + 10 {
            // The launcher is quiet again, and not in step with this loop.
            tokio::time::sleep(Duration::from_millis(20 + (sample as u64 * 7) % 31)).await;
            let before = Utc::now();
            self.stage.create(1, |_| self.stage.job("Flood", "flood", cpus())).await;
            let (mut start, mut end) = (None, None);
            let recorded = loop {
                let change = stream.next().await;
                let at: DateTime<Utc> = time(&change.data["event"]["timestamp"]);
                match change.data["event"]["to_state"].as_str() {
                    Some("RUNNING") => start = Some(at),
                    Some("RUN_DONE") => end = Some((at, Utc::now())),
                    Some("JOB_FINISHED") => break end.expect("RUN_DONE comes before JOB_FINISHED"),
                    _ => {}
                }
            };
            // The first few open connections and fill caches.
            if sample >= 10 {
                to_start.push(milliseconds(before, start.expect("it has started")));
                to_record.push(milliseconds(recorded.0, recorded.1));
            }
            self.finished += 1;
        }
        launcher.stop();
        for (what, times, median_goal) in
            [("creation to start, idle launcher", to_start, 10.0), ("exit to recorded, idle launcher", to_record, 10.0)]
        {
            let (median, late) = (quantile(&times, 0.5), quantile(&times, 0.99));
            let raw = format!("{samples} samples, worst {:.1} ms", quantile(&times, 1.0));
            self.table.at_most(format!("{what}: median"), median, median_goal, " ms", raw.clone());
            self.table.at_most(format!("{what}: p99"), late, 50.0, " ms", raw);
        }
    }

    /// Resident memory of one launcher after 1,000 Jobs and after many.
    async fn memory(&mut self, count: usize) {
        self.stage.settings(&json!({"cpus_per_node": cpus(), "idle_ttl_sec": 600}));
        let launcher = self.stage.launch("serial");
        let used = |launcher: &Launcher| {
            let workers: f64 = launcher.workers().into_iter().chain(launcher.guards()).map(memory_mib).sum();
            (memory_mib(launcher.pid()), workers)
        };
        let mut first = None;
        for part in [1_000, count.saturating_sub(1_000)] {
            self.stage.create(part, |index| self.stage.job("Flood", &shared_folder(index), cpus())).await;
            self.finished += part;
            self.stage.wait_finished(self.finished, Duration::from_millis(500)).await;
            first.get_or_insert_with(|| used(&launcher));
        }
        let ((head, worker), (first_head, first_worker)) = (used(&launcher), first.expect("it was taken"));
        launcher.stop();
        let raw = format!(
            "head {first_head:.1} MiB, then {head:.1} MiB; worker and guard {first_worker:.1} MiB, then {worker:.1} MiB"
        );
        let ratio = (head + worker) / (first_head + first_worker);
        self.table.at_most(format!("memory after {count} Jobs against after 1,000"), ratio, 1.2, "", raw);
    }

    /// CPU time of a launcher that waits, and of one whose 1,000 Jobs go on.
    async fn quiet(&mut self, time: Duration) {
        const LONG: usize = 1_000;
        self.stage.settings(&json!({"cpus_per_node": LONG, "idle_ttl_sec": 600}));
        let launcher = self.stage.launch("serial");
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.cpu_over("CPU of an idle launcher", &launcher, time).await;
        let start = Instant::now();
        self.stage.create(LONG, |index| self.stage.job("Nap", &shared_folder(index), LONG)).await;
        while self.stage.count("RUNNING").await < LONG {
            self.check_failed().await;
            assert!(start.elapsed() < Duration::from_secs(60), "{}", self.stage.launcher_log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!("{LONG} long Jobs ran after {:.1} s", start.elapsed().as_secs_f64());
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.cpu_over("CPU of a launcher with 1,000 long Jobs", &launcher, time).await;
        self.cancel_naps().await;
        launcher.stop();
    }

    async fn cpu_over(&mut self, what: &str, launcher: &Launcher, time: Duration) {
        let before = self.stage.split(launcher);
        tokio::time::sleep(time).await;
        let used = self.stage.split(launcher).since(before);
        let percent = |sec: f64| sec * 100.0 / time.as_secs_f64();
        let raw = format!("head {:.2} %, worker {:.2} % of a core", percent(used.head), percent(used.worker));
        self.table.at_most(what, percent(used.head + used.worker), 1.0, " %", raw);
    }
}

/// The workdir of a Job that leaves nothing in it. No two Jobs of one call may have the same.
fn shared_folder(index: usize) -> String {
    format!("flood/{:03}", index % 1_000)
}

fn milliseconds(from: DateTime<Utc>, to: DateTime<Utc>) -> f64 {
    (to - from).num_microseconds().unwrap_or(i64::MAX) as f64 / 1e3
}

/// The value below which this part of the samples is.
fn quantile(samples: &[f64], part: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len() as f64 * part).ceil() as usize;
    sorted[place.clamp(1, sorted.len()) - 1]
}
