//! The adapters of PBS, LSF, Cobalt and Flux against stand-ins for those schedulers' commands, which
//! keep a queue in a folder and really run the scripts.
#![expect(clippy::unwrap_used, reason = "a test's helper fails as a test does")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use copal_agent::scheduler::{self, EndReason, Ending, Scheduler, Status, SubmitError, SubmitSpec, Tracked, inventory};
use copal_client::SiteDir;
use copal_schemas::settings::{QueueLimits, Settings};

/// Set in the process that has the stand-ins on its PATH.
const INSIDE: &str = "STANDIN_QUEUE";

/// Runs a test anew in a process of its own with one family's stand-ins first on its PATH; true in that process.
fn inside(family: &str, test: &str, commands: &[&str]) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let folder = tempfile::tempdir().unwrap();
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::create_dir(folder.path().join("queue")).unwrap();
    let standin = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standins/standin.py");
    for command in commands {
        let path = bin.join(command);
        fs::write(&path, format!("#!/bin/sh\nexec {} {command} \"$@\"\n", standin.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("PATH", path)
        .env("STANDIN_FAMILY", family)
        .env(INSIDE, folder.path().join("queue"))
        .status()
        .unwrap();
    assert!(status.success(), "{test} failed with the stand-ins of {family}");
    false
}

/// The lines that every script must have, and how one asks for a queue.
fn directives(kind: &str) -> (&'static str, &'static str) {
    match kind {
        "pbs" => ("#PBS -l select=1\n#PBS -l walltime=00:10:00", "#PBS -q"),
        "lsf" => ("#BSUB -n 1\n#BSUB -W 10", "#BSUB -q"),
        "cobalt" => ("#COBALT -n 1\n#COBALT -t 10", "#COBALT -q"),
        "flux" => ("# flux: --nodes=1\n# flux: --time-limit=10m", "# flux: --queue"),
        _ => ("", ""),
    }
}

fn settings(kind: &str) -> Settings {
    let queues = serde_json::json!({"debug": {"max_nodes": 2, "max_walltime": 60, "max_queued_jobs": 5}});
    let scheduler = serde_json::json!({"kind": kind, "allowed_queues": queues});
    serde_json::from_value(serde_json::json!({"site_id": 1, "scheduler": scheduler})).unwrap()
}

struct Bed {
    site: SiteDir,
    queue: PathBuf,
    scheduler: std::sync::Arc<dyn Scheduler>,
    kind: &'static str,
}

impl Bed {
    fn new(kind: &'static str) -> Self {
        let queue = PathBuf::from(std::env::var_os(INSIDE).unwrap());
        let site = SiteDir::new(queue.parent().unwrap().join("a site"));
        site.create_folders().unwrap();
        let settings = settings(kind);
        let scheduler = scheduler::open(&site, &settings, Path::new("/nowhere")).unwrap();
        Self { site, queue, scheduler, kind }
    }

    fn spec(&self, key: &str, text: &str) -> SubmitSpec {
        let script = self.site.qsubmit().join(format!("{key}.sh"));
        fs::write(&script, format!("#!/bin/bash\n{}\n{text}\n", directives(self.kind).0)).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
        let output = self.site.qsubmit().join(format!("{key}.out"));
        SubmitSpec { key: key.into(), num_nodes: 1, wall_time_min: 10, script, output, avoid: Vec::new() }
    }

    async fn submit(&self, key: &str, text: &str) -> Tracked {
        Tracked { key: key.into(), id: self.scheduler.submit(&self.spec(key, text)).await.unwrap() }
    }

    async fn status(&self, job: &Tracked) -> Status {
        self.scheduler.statuses(std::slice::from_ref(job)).await.unwrap().remove(0)
    }

    async fn until<T>(&self, job: &Tracked, wanted: impl Fn(&Status) -> Option<T>) -> T {
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            let now = self.status(job).await;
            if let Some(found) = wanted(&now) {
                return found;
            }
            assert!(Instant::now() < limit, "{}: still {now:?}", job.key);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn ended(&self, job: &Tracked) -> Ending {
        self.until(job, |status| match status {
            Status::Ended(ending) => Some(ending.clone()),
            _ => None,
        })
        .await
    }

    fn set(&self, name: &str, on: bool) {
        let path = self.queue.join(name);
        if on { fs::write(path, "").unwrap() } else { fs::remove_file(path).unwrap() }
    }

    /// A job does not get a node that it is to avoid, where the scheduler can leave single nodes out.
    async fn a_node_is_left_out(&self) {
        if !matches!(self.kind, "lsf" | "flux") {
            return;
        }
        fs::write(self.queue.join("nodes"), "n7\nn8\n").unwrap();
        let spec = SubmitSpec { avoid: vec!["n7".into(), "n9".into()], ..self.spec("cp7", "true") };
        let id = self.scheduler.submit(&spec).await.unwrap();
        self.ended(&Tracked { key: "cp7".into(), id: id.clone() }).await;
        let number = id.0.trim_start_matches('f');
        let job: serde_json::Value =
            serde_json::from_slice(&fs::read(self.queue.join(format!("{number}.json"))).unwrap()).unwrap();
        assert_eq!(job["nodes"], serde_json::json!(["n8"]), "{job}");
        fs::remove_file(self.queue.join("nodes")).unwrap();
    }

    /// What the nodes do and which holes the queues have, from one look.
    async fn nodes_at_a_glance(&self) {
        fs::write(self.queue.join("nodes"), "n7\nn8\n").unwrap();
        let _ = fs::remove_file(self.queue.join("calls"));
        let nodes = inventory::of(&settings(self.kind)).nodes().await;
        let calls = fs::read_to_string(self.queue.join("calls")).unwrap();
        // No question is asked twice, whatever words it has; Flux has one command for all.
        let words =
            |call: &str| call.split(' ').take(if self.kind == "flux" { 2 } else { 1 }).collect::<Vec<_>>().join(" ");
        let questions: Vec<String> = calls.lines().map(words).collect();
        let different: BTreeSet<&String> = questions.iter().collect();
        assert_eq!(different.len(), questions.len(), "{calls}");
        let idle: i32 = nodes.states.unwrap().values().map(|states| states.idle).max().unwrap();
        let window = nodes.windows.unwrap()["debug"][0];
        assert_eq!((idle, window.num_nodes, window.wall_time_min), (2, 2, 60));
        fs::remove_file(self.queue.join("nodes")).unwrap();
    }

    /// Queues that take jobs, with what this user may have in them.
    async fn queues_and_accounts(&self) {
        fs::write(self.queue.join("nodes"), "n7\nn8\n").unwrap();
        let found = inventory::of(&settings(self.kind)).discover().await.unwrap().unwrap();
        let limits = QueueLimits { max_nodes: 2, max_walltime: 60, max_queued_jobs: 5 };
        assert_eq!(found.queues, [("debug".to_owned(), limits)].into());
        let projects: &[&str] = if self.kind == "flux" { &["proj"] } else { &[] };
        assert_eq!(found.projects, projects);
        fs::remove_file(self.queue.join("nodes")).unwrap();
    }

    /// The life of jobs from submission to every kind of end.
    async fn whole_life(&self) {
        self.nodes_at_a_glance().await;
        self.queues_and_accounts().await;
        assert_eq!(self.scheduler.find("cp0").await.unwrap(), None);
        self.set("hold", true);
        let waiting = self.submit("cp1", "echo hello; exit 7").await;
        assert_eq!(self.scheduler.find("cp1").await.unwrap(), Some(waiting.id.clone()));
        assert!(matches!(self.status(&waiting).await, Status::Queued { .. }));
        let dropped = self.submit("cp2", "touch never").await;
        self.scheduler.cancel(std::slice::from_ref(&dropped)).await.unwrap();
        assert_eq!(self.ended(&dropped).await.reason, EndReason::Cancelled);

        // A scheduler that is away says nothing about anything.
        self.set("down", true);
        self.scheduler.statuses(std::slice::from_ref(&waiting)).await.unwrap_err();
        self.scheduler.find("cp9").await.unwrap_err();
        let error = self.scheduler.submit(&self.spec("cp9", "")).await.unwrap_err();
        assert!(matches!(error, SubmitError::Unsure(_)), "{error:?}");
        self.set("down", false);
        assert_eq!(self.scheduler.find("cp9").await.unwrap(), None);

        self.set("hold", false);
        let ending = self.ended(&waiting).await;
        assert_eq!((ending.reason, ending.exit_code), (EndReason::Failed, Some(7)));
        assert!(ending.end.is_some());
        assert_eq!(fs::read_to_string(self.site.qsubmit().join("cp1.out")).unwrap(), "hello\n");
        assert_eq!(self.scheduler.find("cp1").await.unwrap(), Some(waiting.id.clone()));
        // Cancelling what is over is no error.
        self.scheduler.cancel(std::slice::from_ref(&waiting)).await.unwrap();

        let good = self.submit("cp3", "true").await;
        let killed = self.submit("cp4", "sleep 300").await;
        self.until(&killed, |status| matches!(status, Status::Running { .. }).then_some(())).await;
        self.scheduler.cancel(std::slice::from_ref(&killed)).await.unwrap();
        let both = [good.clone(), killed.clone()];
        assert_eq!(self.ended(&good).await.reason, EndReason::Completed);
        assert_eq!(self.ended(&killed).await.reason, EndReason::Cancelled);
        assert_eq!(self.scheduler.statuses(&both).await.unwrap().len(), 2);

        let refused = self.scheduler.submit(&self.spec("cp5", &format!("{} nosuch", directives(self.kind).1))).await;
        assert!(matches!(&refused, Err(SubmitError::Refused(text)) if text.contains("ueue")), "{refused:?}");

        // The answer gets lost: the job is found by its name.
        self.set("lose-answer", true);
        let lost = self.scheduler.submit(&self.spec("cp6", "true")).await;
        assert!(matches!(lost, Err(SubmitError::Unsure(_))), "{lost:?}");
        let id = self.scheduler.find("cp6").await.unwrap().unwrap();
        self.a_node_is_left_out().await;
        assert_eq!(self.ended(&Tracked { key: "cp6".into(), id }).await.reason, EndReason::Completed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pbs_server() {
    if inside("pbs", "a_pbs_server", &["qsub", "qselect", "qstat", "qdel", "pbsnodes"]) {
        Bed::new("pbs").whole_life().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_lsf_cluster() {
    if inside("lsf", "an_lsf_cluster", &["bsub", "bjobs", "bhist", "bkill", "bhosts", "bqueues", "bslots", "busers"]) {
        Bed::new("lsf").whole_life().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cobalt_system() {
    if inside("cobalt", "a_cobalt_system", &["qsub", "qstat", "qdel", "nodelist"]) {
        Bed::new("cobalt").whole_life().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flux_instance() {
    if inside("flux", "a_flux_instance", &["flux"]) {
        Bed::new("flux").whole_life().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pitfall_001_013_015_one_question_for_all_and_an_unknown_id_is_only_its_own_matter() {
    let test = "pitfall_001_013_015_one_question_for_all_and_an_unknown_id_is_only_its_own_matter";
    if !inside("pbs", test, &["qsub", "qselect", "qstat", "qdel"]) {
        return;
    }
    let bed = Bed::new("pbs");
    let known = bed.submit("cp1", "true").await;
    bed.ended(&known).await;
    let dropped = Tracked { key: "cp2".into(), id: copal_schemas::batch_job::SchedulerId("777.head".into()) };
    fs::remove_file(bed.queue.join("calls")).unwrap();
    let statuses = bed.scheduler.statuses(&[dropped.clone(), known, dropped]).await.unwrap();
    assert!(matches!(statuses[..], [Status::Absent, Status::Ended(_), Status::Absent]), "{statuses:?}");
    assert_eq!(fs::read_to_string(bed.queue.join("calls")).unwrap(), "qstat -x -f 777.head 41.head 777.head\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn pitfall_022_043_044_048_slurm_with_and_without_accounting() {
    if !inside("slurm", "pitfall_022_043_044_048_slurm_with_and_without_accounting", &["squeue", "sacct"]) {
        return;
    }
    let bed = Bed::new("slurm");
    let job = |key: &str, id: &str| Tracked { key: key.into(), id: copal_schemas::batch_job::SchedulerId(id.into()) };
    let (gone, again) = (job("cp1", "41"), job("cp2", "42"));
    // Another user's job and one of ours that waits again after a preemption; the name is no whole column.
    let queue = "40|RUNNING|1796034878|1796038478|None|cp1\u{0}x | y\n42|PENDING|N/A|N/A|BeginTime|cp2\n";
    fs::write(bed.queue.join("squeue.txt"), queue).unwrap();
    let jobs = [gone.clone(), again.clone()];
    let without = bed.scheduler.statuses(&jobs).await.unwrap();
    assert!(matches!(&without[..], [Status::Absent, Status::Queued { .. }]), "{without:?}");
    // Accounting knows how the first ended; that it says of the second what was before is no news.
    let history = "41|PREEMPTED|1796034878|1796034938|0:15|cp1\n42|PREEMPTED|1796034878|1796034938|0:15|cp2\n";
    fs::write(bed.queue.join("sacct.txt"), history).unwrap();
    let with = bed.scheduler.statuses(&jobs).await.unwrap();
    let [Status::Ended(ending), Status::Queued { .. }] = &with[..] else { panic!("{with:?}") };
    // Its own kind of end, at the instant that Slurm says, whatever this machine's zone is.
    assert_eq!(ending.reason, EndReason::Preempted);
    assert_eq!(ending.end.unwrap().timestamp(), 1_796_034_938);
}
