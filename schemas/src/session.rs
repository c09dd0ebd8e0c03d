//! Sessions: leases on Jobs, how Jobs are acquired and how their holders report (contract, section 8).

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    AppId, BatchJobId, JobId, JobState, JsonObject, SessionId, SiteId, StringMap, Timestamp, lenient,
    problem::ErrorCode,
};

/// The most Jobs of one acquire.
pub const MAX_ACQUIRE: i64 = 2_048;
/// The longest long poll in seconds.
pub const MAX_WAIT_SEC: f64 = 30.0;

/// A Session, as the service shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Session {
    /// The Session's id.
    pub id: SessionId,
    /// The Site whose Jobs it may hold.
    pub site_id: SiteId,
    /// The BatchJob that its launcher runs in; null for an agent's.
    pub batch_job_id: Option<BatchJobId>,
    /// The last sign of life.
    #[serde(with = "crate::time::naive")]
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::Time))]
    pub heartbeat: Timestamp,
}

/// Body of `POST /sessions/`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionCreate {
    /// The Site whose Jobs it may hold.
    pub site_id: SiteId,
    /// The BatchJob that its launcher runs in.
    #[serde(default)]
    pub batch_job_id: Option<BatchJobId>,
}

/// Body of `POST /sessions/{id}`: which Jobs the Session wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Acquire {
    /// 1 to 2048.
    #[serde(deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 2048))]
    pub max_num_jobs: i64,
    /// Tags that a Job must have.
    #[serde(deserialize_with = "lenient::string_map")]
    pub filter_tags: StringMap,
    /// Jobs that take more minutes are left out; null or 0 for no bound.
    #[serde(default, deserialize_with = "lenient::nullable_int")]
    pub max_wall_time_min: Option<i32>,
    /// Jobs on more nodes are left out; null or 0 for no bound.
    #[serde(default, deserialize_with = "lenient::nullable_int")]
    pub max_nodes_per_job: Option<i32>,
    /// The sum of num_nodes/node_packing_count over the answer.
    #[serde(default, deserialize_with = "lenient::nullable_float")]
    pub max_aggregate_nodes: Option<f64>,
    /// Only Jobs of one rank on one node.
    #[serde(default, deserialize_with = "lenient::boolean")]
    pub serial_only: bool,
    /// `long_large_first` and the other orders of `settings.yml`; an unknown name is `small_first`.
    #[serde(default, deserialize_with = "lenient::nullable_string")]
    pub sort_by: Option<String>,
    /// In which state a Job must be.
    #[serde(default = "runnable")]
    pub states: Vec<JobState>,
    /// Of which Apps; empty for all.
    #[serde(default)]
    pub app_ids: Vec<AppId>,
    /// Seconds (0 to 30) to wait for a Job when there is none now. The answer comes as soon as there is one.
    #[serde(default, deserialize_with = "lenient::float")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 30))]
    pub wait_sec: f64,
}

fn runnable() -> Vec<JobState> {
    crate::job_state::RUNNABLE.to_vec()
}

impl Default for Acquire {
    fn default() -> Self {
        Self {
            max_num_jobs: 100,
            filter_tags: StringMap::new(),
            max_wall_time_min: None,
            max_nodes_per_job: None,
            max_aggregate_nodes: None,
            serial_only: false,
            sort_by: None,
            states: runnable(),
            app_ids: Vec::new(),
            wait_sec: 0.0,
        }
    }
}

/// What a run used, kept with its attempt. All fields may be unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Usage {
    /// When its first process started.
    #[serde(with = "crate::time::naive_option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::Time>))]
    pub start: Option<Timestamp>,
    /// When its last process ended.
    #[serde(with = "crate::time::naive_option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::Time>))]
    pub end: Option<Timestamp>,
    /// The signal that ended it, by name: `SIGKILL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// The largest resident set of one process in bytes.
    #[serde(deserialize_with = "lenient::nullable_int", skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<i64>,
    /// CPU time of all processes, user and system, in seconds.
    #[serde(deserialize_with = "lenient::nullable_float", skip_serializing_if = "Option::is_none")]
    pub cpu_sec: Option<f64>,
    /// The nodes it ran on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// The GPUs it was given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
}

/// One state change that a Session's holder reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobUpdate {
    /// A Job that the Session holds.
    pub job_id: JobId,
    /// The state it entered. Must be legal from its present one, by [`crate::job_state::TRANSITIONS`].
    pub state: JobState,
    /// When; left out for now.
    #[serde(default, with = "crate::time::naive_option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::Time>))]
    pub state_timestamp: Option<Timestamp>,
    /// For the event: `reason`, `message`, `error_tail`.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub state_data: JsonObject,
    /// The exit code of a run that ended.
    #[serde(default, deserialize_with = "lenient::nullable_int", skip_serializing_if = "Option::is_none")]
    pub return_code: Option<i32>,
    /// Replaces the Job's `data`, when a hook wrote some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub data: Option<JsonObject>,
    /// What the run used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// Body of `POST /sessions/{id}/updates`: changes of any number of Jobs, several of one in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Updates {
    /// Makes the call idempotent: the same key again gives the same answer and changes nothing.
    pub batch_key: Uuid,
    /// Up to 5000.
    pub updates: Vec<JobUpdate>,
    /// Jobs that the holder gives back, up to 5000; taken after the updates. One that it does not hold, or that runs,
    /// stays as it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub release: Vec<Release>,
}

/// A Job that its holder gives back as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Release {
    /// The Job.
    pub job_id: JobId,
    /// Why none of the holder's nodes can hold it, for `GET /jobs/{id}/why`: a sentence with the numbers. The Session is
    /// not given it again; another one may be. Left out for one that only waited in vain: any may be given it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether another holder with the same nodes may well run it: it lacks time here, or a node that was lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_now: bool,
}

/// Why one update was not made. The others of the same call were.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rejected {
    /// Its place in the call.
    pub index: usize,
    /// The Job.
    pub job_id: JobId,
    /// Why.
    pub reason: Rejection,
    /// A sentence about it.
    pub detail: String,
}

/// Kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// The Session does not hold the Job (any more): its run must be killed, its result does not count.
    NotHeld,
    /// The table has no such transition from the Job's present state.
    IllegalTransition,
}

/// Answer of `POST /sessions/{id}/updates`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UpdatesAnswer {
    /// How many updates were made.
    pub accepted: usize,
    /// Those that were not.
    pub rejected: Vec<Rejected>,
}

/// Query of `GET /sessions/{id}/signals`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SignalsQuery {
    /// Seconds (0 to 30) to wait for a signal when there is none now.
    #[serde(default)]
    pub wait_sec: f64,
}

/// Answer of `GET /sessions/{id}/signals`: what the holder must do. Asking counts as a heartbeat,
/// at its start and at its end. `session_ended` instead when the Session is gone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Signals {
    /// Held Jobs that were cancelled: kill them and report FAILED with the reason `cancelled`.
    /// Listed until that is reported.
    pub cancel: Vec<JobId>,
    /// The owner wants the BatchJob gone: stop everything well and exit.
    #[serde(default)]
    pub stop: bool,
    /// For how many seconds from its last sign of life the Session is held, as things are now. A holder that was not
    /// heard for almost so long must kill its runs: others may be given its Jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_sec: Option<f64>,
}

/// The code by which a Session's holder learns that it lost its lease.
pub const SESSION_ENDED: ErrorCode = ErrorCode::SessionEnded;
