//! What a scheduler has, in Copal's words: nodes and what they do, holes in its queues, queues and who may pay.
//! One trait, implemented in the file of each kind; what a kind does not tell is `None`. About jobs: `scheduler.rs`.

use std::collections::BTreeMap;

use copal_schemas::{
    resources::NodeShape,
    settings::{QueueLimits, SchedulerKind, Settings},
    site::{BackfillWindow, NodeStates},
};
use futures_util::future::{BoxFuture, FutureExt, ready};

use super::{SchedulerError, cobalt, flux, local, lsf, pbs, slurm};

/// Stands for no limit of minutes: a year.
pub const UNLIMITED_MIN: i32 = 525_600;
/// Stands for no limit of BatchJobs that wait: more than anybody queues.
pub const MANY: i32 = 1_000;

/// Holes, by queue.
pub type Windows = BTreeMap<String, Vec<BackfillWindow>>;

/// What the nodes of a machine do, from one look at them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nodes {
    /// What each queue could start now: idle nodes for as long as the queue allows. Only Cobalt and LSF know of
    /// reservations that will need them sooner. `None` where nobody tells.
    pub windows: Option<Windows>,
    /// What the nodes of each queue do. `None` where nobody tells.
    pub states: Option<BTreeMap<String, NodeStates>>,
}

/// What a scheduler says there is, for the settings of a new Site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Discovered {
    /// Queues and their limits.
    pub queues: BTreeMap<String, QueueLimits>,
    /// Who may pay; empty where the scheduler does not know.
    pub projects: Vec<String>,
}

/// What a kind of scheduler tells about its machine.
pub trait Inventory: Send + Sync {
    /// What one node has, where all are alike.
    fn node_shape(&self) -> BoxFuture<'_, Option<NodeShape>> {
        ready(None).boxed()
    }

    /// What the nodes do, and what each queue could start on them.
    fn nodes(&self) -> BoxFuture<'_, Nodes> {
        ready(Nodes::default()).boxed()
    }

    /// Queues with their limits, and projects.
    fn discover(&self) -> BoxFuture<'_, Result<Option<Discovered>, SchedulerError>> {
        ready(Ok(None)).boxed()
    }
}

/// The machine that the settings name.
#[must_use]
pub fn of(settings: &Settings) -> Box<dyn Inventory> {
    match settings.scheduler.kind {
        SchedulerKind::Local => Box::new(local::Machine { launcher: settings.launcher.clone() }),
        SchedulerKind::Slurm => Box::new(slurm::Machine),
        SchedulerKind::Pbs => Box::new(pbs::Machine { queues: settings.scheduler.allowed_queues.clone() }),
        SchedulerKind::Lsf => Box::new(lsf::Machine),
        SchedulerKind::Cobalt => Box::new(cobalt::Machine),
        SchedulerKind::Flux => Box::new(flux::Machine),
    }
}
