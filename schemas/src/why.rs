//! `GET /jobs/{id}/why`: why a Job is not running.

use serde::{Deserialize, Serialize};

use crate::{JobId, JobState};

/// What keeps a Job from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WhyCode {
    /// It runs, or a launcher has it and is about to run it.
    Running,
    /// It is at an end.
    Ended,
    /// A Job that it depends on is not where it must be.
    Dependency,
    /// Its array runs so many Jobs at once, and others of it come first.
    ArrayLimit,
    /// Files are not staged yet.
    Staging,
    /// The agent has not taken the next step: a hook, or a step of a Balsam App.
    Hook,
    /// The Site's agent has been silent for long.
    AgentSilent,
    /// Its App is made through the API, and the Site does not run it.
    RemoteApp,
    /// No node of the Site can hold it.
    Shape,
    /// There is no allocation, nor one asked for.
    NoAllocation,
    /// Allocations are waiting in the scheduler's queue.
    Queued,
    /// An allocation takes other tags only.
    Tags,
    /// An allocation has too few nodes, or takes Jobs of one rank only.
    Nodes,
    /// An allocation ends too soon for it.
    Walltime,
    /// An allocation runs but its launcher does not answer.
    NoLauncher,
    /// Others come first.
    Order,
    /// A code of a newer service.
    #[serde(other)]
    Unknown,
}

/// One thing that keeps a Job from running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhyReason {
    /// For programs.
    pub code: WhyCode,
    /// A sentence, with the remedy where there is one.
    pub message: String,
}

/// Why a Job is not running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Why {
    /// The Job.
    pub job_id: JobId,
    /// Where it is in its life.
    pub state: JobState,
    /// What keeps it from running, what weighs most first; never empty.
    pub reasons: Vec<WhyReason>,
}
