//! The `local` scheduler: this machine's processes on any number of pretended nodes, first come,
//! first served. What is waiting and what runs stands in files in `qsubmit/`, so that it survives
//! the agent; each running script has a supervisor process of its own (`local_run.rs`).
//!
//! | file | content | written by |
//! | --- | --- | --- |
//! | `KEY.local.json` | [`LocalJob`]: what was submitted | the agent, at submission |
//! | `KEY.run.json` | [`LocalRun`]: its supervisor, start and nodes | the supervisor, once, before it runs the script |
//! | `KEY.exit.json` | [`Ending`] | the supervisor, at the end |

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use chrono::Utc;
use copal_client::SiteDir;
use copal_schemas::{
    Timestamp,
    batch_job::SchedulerId,
    resources::NodeShape,
    settings::{LauncherSettings, Settings},
};
use futures_util::future::{BoxFuture, FutureExt};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tokio::{io::AsyncReadExt, process::Command, sync::Notify};

use super::{
    Adapter, EndReason, Ending, SchedulerError, Status, SubmitError, SubmitSpec, Tracked, command::Runner,
    inventory::Inventory,
};
use crate::{
    process::{self, ProcessId},
    records::{self, RecordError},
};

/// The environment variable by which a script and all that it starts are found; its value is
/// [`JobFiles::mark`].
pub const MARK: &str = "COPAL_LOCAL_MARK";
/// How long a supervisor may take to say that it runs.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Content of `KEY.local.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalJob {
    /// The scheduler's id.
    pub id: u64,
    /// The BatchJob's key.
    pub key: String,
    /// Pretended nodes.
    pub num_nodes: u32,
    /// Minutes.
    pub wall_time_min: u32,
    /// The script.
    pub script: PathBuf,
    /// Where its output goes.
    pub output: PathBuf,
    /// When it was submitted.
    #[serde(with = "copal_schemas::time::naive")]
    pub submitted: Timestamp,
}

/// Content of `KEY.run.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalRun {
    /// Its supervisor.
    pub supervisor: ProcessId,
    /// When it got its nodes.
    #[serde(with = "copal_schemas::time::naive")]
    pub start: Timestamp,
    /// Its pretended nodes.
    pub nodes: BTreeSet<u32>,
}

/// The files of one job.
#[derive(Clone, Debug)]
pub struct JobFiles {
    folder: PathBuf,
    key: String,
}

impl JobFiles {
    /// The files of the job with this key.
    #[must_use]
    pub fn new(folder: &Path, key: &str) -> Self {
        Self { folder: folder.into(), key: key.into() }
    }
    /// `KEY.local.json`
    #[must_use]
    pub fn job(&self) -> PathBuf {
        self.folder.join(format!("{}.local.json", self.key))
    }
    /// `KEY.run.json`
    #[must_use]
    pub fn run(&self) -> PathBuf {
        self.folder.join(format!("{}.run.json", self.key))
    }
    /// What the job's processes carry in [`MARK`]: as unique on this machine as the file's place.
    #[must_use]
    pub fn mark(&self) -> String {
        self.job().display().to_string()
    }
    /// `KEY.exit.json`
    #[must_use]
    pub fn exit(&self) -> PathBuf {
        self.folder.join(format!("{}.exit.json", self.key))
    }
}

/// Pretended nodes as the launcher reads them: `local[0-3,7]`.
#[must_use]
pub fn node_list(nodes: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &node in nodes {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == node => *last = node,
            _ => ranges.push((node, node)),
        }
    }
    let ranges: Vec<String> = ranges
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    format!("local[{}]", ranges.join(","))
}

/// This machine as a scheduler.
pub struct LocalScheduler {
    inner: Arc<Inner>,
}

struct Inner {
    folder: PathBuf,
    agent: PathBuf,
    num_nodes: u32,
    queue: Mutex<Queue>,
    changed: Notify,
}

/// The jobs that have not ended, by id, which is their order.
#[derive(Default)]
struct Queue {
    last_id: u64,
    jobs: BTreeMap<u64, Entry>,
}

struct Entry {
    job: LocalJob,
    phase: Phase,
}

enum Phase {
    Waiting,
    /// Its supervisor was started and has not answered yet.
    Starting {
        nodes: BTreeSet<u32>,
        cancelled: bool,
    },
    Running(LocalRun),
}

impl LocalScheduler {
    /// Takes up what an earlier agent left waiting and running. `programs` is the folder of Copal's programs.
    ///
    /// # Errors
    /// When the files of `qsubmit/` can't be read.
    pub fn open(site: &SiteDir, settings: &Settings, programs: &Path) -> Result<Self, SchedulerError> {
        let folder = site.qsubmit();
        let mut queue = Queue::default();
        let failed = |source| RecordError { path: folder.clone(), source };
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if !path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(".local.json")) {
                continue;
            }
            let Some(job) = records::read::<LocalJob>(&path)? else { continue };
            queue.last_id = queue.last_id.max(job.id);
            let files = JobFiles::new(&folder, &job.key);
            if files.exit().exists() {
                continue;
            }
            let phase = records::read(&files.run())?.map_or(Phase::Waiting, Phase::Running);
            queue.jobs.insert(job.id, Entry { job, phase });
        }
        let inner = Arc::new(Inner {
            folder,
            agent: programs.join("copal-agent"),
            num_nodes: settings.scheduler.local_nodes,
            queue: Mutex::new(queue),
            changed: Notify::new(),
        });
        let running: Vec<(u64, LocalRun)> = inner
            .lock()
            .jobs
            .iter()
            .filter_map(|(id, entry)| match &entry.phase {
                Phase::Running(run) => Some((*id, run.clone())),
                _ => None,
            })
            .collect();
        for (id, run) in running {
            tokio::spawn(watch(Arc::downgrade(&inner), id, run.supervisor));
        }
        inner.dispatch();
        Ok(Self { inner })
    }
}

/// Waits for a supervisor's end, which is its job's.
async fn watch(inner: Weak<Inner>, id: u64, supervisor: ProcessId) {
    supervisor.ended().await;
    if let Some(inner) = inner.upgrade() {
        inner.ended(id).await;
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is only ever changed by whole inserts and removals.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self, key: &str) -> JobFiles {
        JobFiles::new(&self.folder, key)
    }

    /// Starts waiting jobs in their order, while the next one has enough free nodes.
    fn dispatch(self: &Arc<Self>) {
        let mut queue = self.lock();
        let mut free: BTreeSet<u32> = (0..self.num_nodes).collect();
        for entry in queue.jobs.values() {
            match &entry.phase {
                Phase::Starting { nodes, .. } | Phase::Running(LocalRun { nodes, .. }) => {
                    free.retain(|node| !nodes.contains(node))
                }
                Phase::Waiting => {}
            }
        }
        for (id, entry) in &mut queue.jobs {
            if !matches!(entry.phase, Phase::Waiting) {
                continue;
            }
            let wanted = entry.job.num_nodes as usize;
            if wanted > free.len() {
                break;
            }
            let nodes: BTreeSet<u32> = free.iter().copied().take(wanted).collect();
            free.retain(|node| !nodes.contains(node));
            entry.phase = Phase::Starting { nodes: nodes.clone(), cancelled: false };
            tokio::spawn(Arc::clone(self).start(*id, entry.job.key.clone(), nodes));
        }
    }

    /// Starts the supervisor of one job and goes on to watch it.
    async fn start(self: Arc<Self>, id: u64, key: String, nodes: BTreeSet<u32>) {
        match self.spawn_supervisor(&key, &nodes).await {
            Ok(run) => {
                let supervisor = run.supervisor.clone();
                if let Some(entry) = self.lock().jobs.get_mut(&id) {
                    if matches!(entry.phase, Phase::Starting { cancelled: true, .. }) {
                        supervisor.signal(Signal::SIGTERM);
                    }
                    entry.phase = Phase::Running(run);
                }
                self.changed.notify_one();
                // Weakly, so that a scheduler which is opened anew takes its place.
                tokio::spawn(watch(Arc::downgrade(&self), id, supervisor));
            }
            Err(error) => {
                tracing::error!(scheduler.id = id, "the script can't be started: {error:#}");
                let now = Utc::now();
                let ending =
                    Ending { start: None, end: Some(now), reason: EndReason::Failed, exit_code: None, signal: None };
                self.record_end(&key, &ending);
                self.ended(id).await;
            }
        }
    }

    async fn spawn_supervisor(&self, key: &str, nodes: &BTreeSet<u32>) -> anyhow::Result<LocalRun> {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let mut child = Command::new(&self.agent)
            .args(["local-run", "--folder"])
            .arg(&self.folder)
            .args(["--key", key, "--nodes", &nodes.join(",")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        // It closes its standard output once `KEY.run.json` is there.
        let mut answer = child.stdout.take();
        let wait = async {
            let mut text = String::new();
            if let Some(stdout) = &mut answer {
                stdout.read_to_string(&mut text).await?;
            }
            Ok::<_, io::Error>(text)
        };
        let said = tokio::time::timeout(START_LIMIT, wait).await??;
        let run = records::read::<LocalRun>(&self.files(key).run())?;
        run.ok_or_else(|| anyhow::anyhow!("its supervisor ended at once: {}", said.trim()))
    }

    fn record_end(&self, key: &str, ending: &Ending) {
        // Another writer was first: then that one knows better.
        if let Err(error) = records::write(&self.files(key).exit(), ending, true) {
            tracing::warn!("{:#}", anyhow::Error::from(error));
        }
    }

    /// Takes a job out of the queue whose supervisor has ended.
    async fn ended(self: &Arc<Self>, id: u64) {
        let Some((key, start)) = self.lock().jobs.get(&id).map(|entry| {
            let start = match &entry.phase {
                Phase::Running(run) => Some(run.start),
                _ => None,
            };
            (entry.job.key.clone(), start)
        }) else {
            return;
        };
        if !self.files(&key).exit().exists() {
            // The supervisor was killed: nobody watches its processes any more.
            for round in 0..100 {
                let left = process::marked(MARK, &self.files(&key).mark());
                if left.is_empty() {
                    break;
                }
                if round == 0 {
                    tracing::warn!(scheduler.id = id, "its supervisor vanished; {} processes are killed", left.len());
                }
                left.into_iter().for_each(|pid| process::send(pid, Signal::SIGKILL));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let end = Some(Utc::now());
            self.record_end(&key, &Ending { start, end, reason: EndReason::Lost, exit_code: None, signal: None });
        }
        self.lock().jobs.remove(&id);
        self.dispatch();
        self.changed.notify_one();
    }

    fn submit(self: &Arc<Self>, spec: &SubmitSpec) -> Result<SchedulerId, SubmitError> {
        if spec.num_nodes > self.num_nodes {
            return Err(SubmitError::Refused(format!(
                "{} nodes are asked for; this Site has {} (scheduler.local_nodes in settings.yml)",
                spec.num_nodes, self.num_nodes
            )));
        }
        let id = {
            let mut queue = self.lock();
            if let Some(known) = queue.jobs.values().find(|entry| entry.job.key == spec.key) {
                return Ok(SchedulerId(known.job.id.to_string()));
            }
            let id = queue.last_id + 1;
            let job = LocalJob {
                id,
                key: spec.key.clone(),
                num_nodes: spec.num_nodes,
                wall_time_min: spec.wall_time_min,
                script: spec.script.clone(),
                output: spec.output.clone(),
                submitted: Utc::now(),
            };
            records::write(&self.files(&spec.key).job(), &job, false)
                .map_err(|error| SubmitError::Unsure(error.into()))?;
            queue.last_id = id;
            queue.jobs.insert(id, Entry { job, phase: Phase::Waiting });
            id
        };
        self.dispatch();
        Ok(SchedulerId(id.to_string()))
    }

    fn status(&self, job: &Tracked) -> Result<Status, RecordError> {
        // The exit record first: a job leaves the queue only after that is written.
        if let Some(ending) = records::read::<Ending>(&self.files(&job.key).exit())? {
            return Ok(Status::Ended(ending));
        }
        let queue = self.lock();
        let entry =
            job.id.0.parse().ok().and_then(|id: u64| queue.jobs.get(&id)).filter(|entry| entry.job.key == job.key);
        Ok(match entry.map(|entry| &entry.phase) {
            Some(Phase::Waiting | Phase::Starting { .. }) => {
                Status::Queued { reason: Some("waits for free nodes".into()) }
            }
            Some(Phase::Running(run)) => Status::Running { start: Some(run.start) },
            None => match records::read::<Ending>(&self.files(&job.key).exit())? {
                Some(ending) => Status::Ended(ending),
                None => Status::Absent,
            },
        })
    }

    async fn cancel(self: &Arc<Self>, job: &Tracked) {
        let Ok(id) = job.id.0.parse::<u64>() else { return };
        let supervisor = {
            let mut queue = self.lock();
            match queue.jobs.get_mut(&id).map(|entry| &mut entry.phase) {
                Some(Phase::Waiting) => {
                    let now = Utc::now();
                    let reason = EndReason::Cancelled;
                    self.record_end(
                        &job.key,
                        &Ending { start: None, end: Some(now), reason, exit_code: None, signal: None },
                    );
                    queue.jobs.remove(&id);
                    None
                }
                Some(Phase::Running(run)) => Some(run.supervisor.clone()),
                Some(Phase::Starting { cancelled, .. }) => {
                    *cancelled = true;
                    None
                }
                None => None,
            }
        };
        match supervisor {
            Some(supervisor) => supervisor.signal(Signal::SIGTERM),
            None => {
                self.dispatch();
                self.changed.notify_one();
            }
        }
    }
}

impl Adapter for LocalScheduler {
    async fn submit(&self, spec: &SubmitSpec) -> Result<SchedulerId, SubmitError> {
        self.inner.submit(spec)
    }

    async fn find(&self, key: &str) -> Result<Option<SchedulerId>, SchedulerError> {
        let job = records::read::<LocalJob>(&self.inner.files(key).job())?;
        Ok(job.map(|job| SchedulerId(job.id.to_string())))
    }

    async fn statuses(&self, jobs: &[Tracked]) -> Result<Vec<Status>, SchedulerError> {
        jobs.iter().map(|job| Ok(self.inner.status(job)?)).collect()
    }

    async fn cancel(&self, jobs: &[Tracked]) -> Result<(), SchedulerError> {
        for job in jobs {
            self.inner.cancel(job).await;
        }
        Ok(())
    }

    /// A submission is one file, which is there or not.
    fn lost_after(&self) -> Duration {
        Duration::ZERO
    }

    async fn changed(&self) {
        self.inner.changed.notified().await;
    }
}

/// This machine, taken for one node.
pub struct Machine {
    /// What the settings say of it.
    pub launcher: LauncherSettings,
}

impl Inventory for Machine {
    fn node_shape(&self) -> BoxFuture<'_, Option<NodeShape>> {
        node_shape(&self.launcher).boxed()
    }
}

async fn node_shape(launcher: &LauncherSettings) -> Option<NodeShape> {
    let cpus = match launcher.cpus_per_node {
        Some(cpus) => cpus,
        None => u32::try_from(std::thread::available_parallelism().ok()?.get()).ok()?,
    };
    let gpus = match &launcher.gpu_ids {
        Some(ids) => u32::try_from(ids.len()).ok()?,
        None => nvidia_gpus().await,
    };
    Some(NodeShape { cpus, gpus, mem_mb: memory_mb() })
}

async fn nvidia_gpus() -> u32 {
    let runner = Runner { limit: Duration::from_secs(20), env: &[], scrub: |_| false };
    match runner.run_ok("nvidia-smi", &["-L"]).await {
        Ok(list) => count_gpus(&list),
        Err(_) => 0,
    }
}

/// Devices in the output of `nvidia-smi -L`; a GPU that is split counts as its MIG slices.
fn count_gpus(list: &str) -> u32 {
    let mut counts: Vec<u32> = Vec::new();
    for line in list.lines() {
        if line.starts_with("GPU ") {
            counts.push(0);
        } else if line.trim_start().starts_with("MIG ")
            && let Some(slices) = counts.last_mut()
        {
            *slices += 1;
        }
    }
    counts.into_iter().map(|slices| slices.max(1)).sum()
}

/// This machine's memory in MiB; 0 where it can't be read.
fn memory_mb() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_lists_are_short() {
        let list = |nodes: &[u32]| node_list(&nodes.iter().copied().collect());
        assert_eq!(list(&[0]), "local[0]");
        assert_eq!(list(&[0, 1, 2, 3]), "local[0-3]");
        assert_eq!(list(&[0, 2, 3, 9]), "local[0,2-3,9]");
    }

    #[test]
    fn a_split_gpu_counts_as_its_slices() {
        let list = "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb Device 0: (UUID: MIG-1)\n  MIG 1g.18gb Device 1: (UUID: MIG-2)\n\
                    GPU 1: NVIDIA H200 (UUID: GPU-2)\n";
        assert_eq!(count_gpus(list), 3);
        assert_eq!(count_gpus(""), 0);
    }
}
