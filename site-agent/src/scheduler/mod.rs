//! The Site's scheduler, in Copal's words: one trait, one file for each kind. An adapter submits,
//! looks and cancels; it knows neither the service nor the states of BatchJobs. What follows from
//! what it says is `tasks/queue_sync.rs`. What the machine has is `inventory.rs`.

pub mod cobalt;
pub mod command;
pub mod flux;
pub mod inventory;
pub mod listing;
pub mod local;
pub mod local_run;
pub mod lsf;
pub mod pbs;
pub mod reply;
pub mod slurm;
pub mod times;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use copal_client::SiteDir;
use copal_schemas::{
    Timestamp,
    batch_job::SchedulerId,
    settings::{SchedulerKind, Settings},
};
use futures_util::future::{BoxFuture, FutureExt};
use serde::{Deserialize, Serialize};

use crate::records::RecordError;

/// What is submitted.
#[derive(Clone, Debug)]
pub struct SubmitSpec {
    /// The BatchJob's key: the scheduler's job has this name, by which it is found again.
    pub key: String,
    /// Nodes.
    pub num_nodes: u32,
    /// Minutes.
    pub wall_time_min: u32,
    /// The rendered script.
    pub script: PathBuf,
    /// Where its output goes.
    pub output: PathBuf,
    /// Nodes that it must not get; none where [`Adapter::can_avoid`] says no.
    pub avoid: Vec<String>,
}

/// A job of the scheduler that the agent asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// The BatchJob's key.
    pub key: String,
    /// The scheduler's id.
    pub id: SchedulerId,
}

/// What the scheduler says of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// It waits; why, in the scheduler's words.
    Queued {
        /// Why it does not run yet.
        reason: Option<String>,
    },
    /// It waits and no waiting will help, since the request is beyond a limit; which, in the scheduler's words.
    Impossible {
        /// Which limit.
        reason: String,
    },
    /// It has its nodes.
    Running {
        /// Since when.
        start: Option<Timestamp>,
    },
    /// There is evidence that it is over.
    Ended(Ending),
    /// The scheduler answered, and the job was not in its answer. No evidence by itself: an answer may be cut short.
    Absent,
    /// A part of the answer can't be read, and the job was not in the rest: nothing is known.
    Unknown,
}

/// How a job of the scheduler ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// When it got its nodes; `None` when it never did.
    #[serde(with = "copal_schemas::time::naive_option")]
    pub start: Option<Timestamp>,
    /// When it ended.
    #[serde(with = "copal_schemas::time::naive_option")]
    pub end: Option<Timestamp>,
    /// Why.
    pub reason: EndReason,
    /// The script's exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended the script, by name.
    pub signal: Option<String>,
}

impl Ending {
    /// An end at this moment of a job that never got its nodes.
    #[must_use]
    pub fn now(reason: EndReason) -> Self {
        Self { start: None, end: Some(chrono::Utc::now()), reason, exit_code: None, signal: None }
    }
}

/// Why a job of the scheduler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Its script ended with exit code 0.
    Completed,
    /// Its script ended otherwise.
    Failed,
    /// Its walltime was over.
    TimeLimit,
    /// Somebody cancelled it.
    Cancelled,
    /// A node failed.
    NodeFailure,
    /// A more urgent job got its nodes.
    Preempted,
    /// It used more memory than it may.
    OutOfMemory,
    /// It is gone and nobody knows how.
    Lost,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::TimeLimit => "time limit",
            Self::Cancelled => "cancelled",
            Self::NodeFailure => "node failure",
            Self::Preempted => "preempted",
            Self::OutOfMemory => "out of memory",
            Self::Lost => "lost",
        })
    }
}

/// A question to the scheduler that got no answer. It says nothing about any job.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// A command of the scheduler failed.
    #[error(transparent)]
    Command(#[from] command::CommandError),
    /// The answer is not what the command prints.
    #[error("the answer of {command} is not understood: {text}")]
    Answer {
        /// The command.
        command: String,
        /// What it printed.
        text: String,
    },
    /// A file of the `local` scheduler.
    #[error(transparent)]
    File(#[from] RecordError),
}

impl SchedulerError {
    /// An answer that is not what the command prints.
    fn unread(command: &str, text: &str) -> Self {
        Self::Answer { command: command.into(), text: text.trim().chars().take(200).collect() }
    }
}

/// A submission that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The scheduler said no; trying again would give the same.
    #[error("{0}")]
    Refused(String),
    /// Nobody knows whether the scheduler has it. It must be looked for before it is submitted again.
    #[error("the scheduler's answer to the submission is not known")]
    Unsure(#[source] SchedulerError),
}

/// A scheduler, as the file of its kind implements it. [`Scheduler`] is the same where the kind is known only at run
/// time.
pub trait Adapter: Send + Sync {
    /// Submits a script; gives the scheduler's id.
    fn submit(&self, spec: &SubmitSpec) -> impl Future<Output = Result<SchedulerId, SubmitError>> + Send;

    /// The job with this name, waiting, running or just ended; `None` when the scheduler answered and has none.
    fn find(&self, key: &str) -> impl Future<Output = Result<Option<SchedulerId>, SchedulerError>> + Send;

    /// What there is to say about each of these jobs, in their order. One question for all of them.
    fn statuses(&self, jobs: &[Tracked]) -> impl Future<Output = Result<Vec<Status>, SchedulerError>> + Send;

    /// Cancels jobs: the script gets SIGTERM and some time. One that has ended already is no error.
    fn cancel(&self, jobs: &[Tracked]) -> impl Future<Output = Result<(), SchedulerError>> + Send;

    /// Whether the scheduler can leave single nodes out of what this script gets.
    fn can_avoid(&self, _: &SubmitSpec) -> bool {
        false
    }

    /// How long [`Adapter::find`] must have found nothing before a submission without an answer counts as never
    /// made: it may still wait in the inbox of a scheduler that was away.
    fn lost_after(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Ends when a job's status has changed, or has changed since this was last asked. Most schedulers tell nobody:
    /// the period finds out.
    fn changed(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// A scheduler of any kind; what its methods do is said at [`Adapter`].
pub trait Scheduler: Send + Sync {
    /// [`Adapter::submit`]
    fn submit<'a>(&'a self, spec: &'a SubmitSpec) -> BoxFuture<'a, Result<SchedulerId, SubmitError>>;
    /// [`Adapter::find`]
    fn find<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<SchedulerId>, SchedulerError>>;
    /// [`Adapter::statuses`]
    fn statuses<'a>(&'a self, jobs: &'a [Tracked]) -> BoxFuture<'a, Result<Vec<Status>, SchedulerError>>;
    /// [`Adapter::cancel`]
    fn cancel<'a>(&'a self, jobs: &'a [Tracked]) -> BoxFuture<'a, Result<(), SchedulerError>>;
    /// [`Adapter::can_avoid`]
    fn can_avoid(&self, spec: &SubmitSpec) -> bool;
    /// [`Adapter::lost_after`]
    fn lost_after(&self) -> Duration;
    /// [`Adapter::changed`]
    fn changed(&self) -> BoxFuture<'_, ()>;
}

impl<A: Adapter> Scheduler for A {
    fn submit<'a>(&'a self, spec: &'a SubmitSpec) -> BoxFuture<'a, Result<SchedulerId, SubmitError>> {
        Adapter::submit(self, spec).boxed()
    }

    fn find<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<SchedulerId>, SchedulerError>> {
        Adapter::find(self, key).boxed()
    }

    fn statuses<'a>(&'a self, jobs: &'a [Tracked]) -> BoxFuture<'a, Result<Vec<Status>, SchedulerError>> {
        Adapter::statuses(self, jobs).boxed()
    }

    fn cancel<'a>(&'a self, jobs: &'a [Tracked]) -> BoxFuture<'a, Result<(), SchedulerError>> {
        Adapter::cancel(self, jobs).boxed()
    }

    fn can_avoid(&self, spec: &SubmitSpec) -> bool {
        Adapter::can_avoid(self, spec)
    }

    fn lost_after(&self) -> Duration {
        Adapter::lost_after(self)
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Adapter::changed(self).boxed()
    }
}

impl SubmitSpec {
    /// Whether the script has a directive with this option: one on the command line would replace its value.
    fn says(&self, option: &str) -> bool {
        let text = std::fs::read(&self.script).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().any(|line| line.starts_with('#') && line.contains(option))
    }
}

/// The scheduler's ids of jobs.
fn ids(jobs: &[Tracked]) -> Vec<&str> {
    jobs.iter().map(|job| job.id.0.as_str()).collect()
}

/// The name of the user that this program runs as.
fn user_name() -> Option<String> {
    nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.name)
}

/// The scheduler that the settings name. `programs` is the folder of Copal's programs.
///
/// # Errors
/// When the adapter's files can't be read.
pub fn open(site: &SiteDir, settings: &Settings, programs: &Path) -> anyhow::Result<Arc<dyn Scheduler>> {
    match settings.scheduler.kind {
        SchedulerKind::Local => Ok(Arc::new(local::LocalScheduler::open(site, settings, programs)?)),
        SchedulerKind::Slurm => Ok(Arc::new(slurm::Slurm)),
        SchedulerKind::Pbs => Ok(Arc::new(pbs::Pbs)),
        SchedulerKind::Lsf => Ok(Arc::new(lsf::Lsf)),
        SchedulerKind::Cobalt => Ok(Arc::new(cobalt::Cobalt::new(site))),
        SchedulerKind::Flux => Ok(Arc::new(flux::Flux)),
    }
}

#[cfg(test)]
mod tests;
