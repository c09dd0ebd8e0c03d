//! Jobs on the wire (contract, section 5, with Copal's own optional fields).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    AppId, BatchJobId, JobId, JobState, JsonObject, SessionId, StringMap, Timestamp, lenient, resources::ResourceShape,
    session::Usage, transfer::TransferLocation,
};

/// The longest workdir in characters.
pub const MAX_WORKDIR: usize = 256;
/// The longest serialized parameters, return value or exception in characters.
pub const MAX_SERIALIZED: usize = 512_000;

/// When a dependency counts as met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "db", derive(sqlx::Type), sqlx(type_name = "dependency_kind", rename_all = "lowercase"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum DependencyKind {
    /// When the parent is JOB_FINISHED.
    #[default]
    AfterOk,
    /// When the parent is FAILED.
    AfterNotOk,
    /// When the parent is at either end.
    AfterAny,
}

/// A Job that must come to an end first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Dependency {
    /// The parent.
    pub job_id: JobId,
    /// At which end.
    #[serde(default)]
    pub kind: DependencyKind,
}

/// What a Job is sent before it is cut off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Checkpoint {
    /// The signal by name: `SIGUSR1`.
    #[serde(deserialize_with = "lenient::string")]
    pub signal: String,
    /// Seconds it has after that.
    #[serde(deserialize_with = "lenient::float")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 86_400))]
    pub grace_sec: f64,
}

/// A Job, as the service shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Job {
    /// The Job's id.
    pub id: JobId,
    /// Its folder below the Site's `data/`.
    pub workdir: String,
    /// Its tags.
    pub tags: StringMap,
    /// Its App.
    pub app_id: AppId,
    /// The Session that holds it.
    pub session_id: Option<SessionId>,
    /// Balsam's pickled parameters.
    pub serialized_parameters: String,
    /// Balsam's pickled return value.
    pub serialized_return_value: String,
    /// Balsam's pickled exception.
    pub serialized_exception: String,
    /// The BatchJob it ran in last.
    pub batch_job_id: Option<BatchJobId>,
    /// Where it is in its life.
    pub state: JobState,
    /// When it last changed.
    #[serde(with = "crate::time::aware")]
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::Time))]
    pub last_update: Timestamp,
    /// Whatever its owner and its hooks keep with it.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: JsonObject,
    /// The exit code of its last run.
    pub return_code: Option<i32>,
    /// Whether the file cleaner has not been here.
    pub pending_file_cleanup: bool,
    /// Jobs that must finish first.
    pub parent_ids: Vec<JobId>,
    /// Nodes.
    pub num_nodes: i32,
    /// Ranks on each node.
    pub ranks_per_node: i32,
    /// Threads of each rank.
    pub threads_per_rank: i32,
    /// Hardware threads of one core that a rank's threads use.
    pub threads_per_core: i32,
    /// GPUs of each rank.
    pub gpus_per_rank: f64,
    /// How many such Jobs may share a node.
    pub node_packing_count: i32,
    /// Expected minutes; 0 where not known.
    pub wall_time_min: i32,
    /// Passed through to the command that starts ranks.
    pub launch_params: StringMap,
    /// Parameters of a Copal App, in the clear.
    #[serde(default)]
    pub parameters: StringMap,
    /// Higher runs first.
    #[serde(default)]
    pub priority: i32,
    /// Dependencies of other kinds than afterok.
    #[serde(default)]
    pub dependencies: Vec<Dependency>,
    /// Memory on each node in MiB.
    #[serde(default)]
    pub mem_mb: Option<i64>,
    /// Minutes after which a run is cut off.
    #[serde(default)]
    pub walltime_limit_min: Option<i32>,
    /// The Job's own retry policy, before the App's.
    #[serde(default)]
    pub max_restarts: Option<i32>,
    /// What it is sent before it is cut off.
    #[serde(default)]
    pub checkpoint: Option<Checkpoint>,
    /// Who pays, for accounting.
    #[serde(default)]
    pub account: Option<String>,
    /// The array it belongs to.
    #[serde(default)]
    pub array_id: Option<i64>,
    /// Its place in the array.
    #[serde(default)]
    pub array_index: Option<i64>,
    /// Runs so far.
    #[serde(default)]
    pub num_attempts: i32,
    /// Restarts after errors, since its owner restarted it if that was so.
    #[serde(default)]
    pub error_restarts: i32,
    /// The same after time-outs.
    #[serde(default)]
    pub timeout_restarts: i32,
}

impl Job {
    /// What it asks of its nodes.
    #[must_use]
    pub fn shape(&self) -> ResourceShape {
        ResourceShape {
            num_nodes: self.num_nodes,
            ranks_per_node: self.ranks_per_node,
            threads_per_rank: self.threads_per_rank,
            threads_per_core: self.threads_per_core,
            gpus_per_rank: self.gpus_per_rank,
            node_packing_count: self.node_packing_count,
            mem_mb: self.mem_mb,
        }
    }
}

fn one() -> i32 {
    1
}

/// One item of `POST /jobs/`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobCreate {
    /// Its folder below the Site's `data/`; relative, without `..`.
    #[serde(deserialize_with = "lenient::string")]
    #[cfg_attr(
        feature = "openapi",
        schema(max_length = 256, pattern = r"^(?!/)(?!(\./*)+$)(?!(.*/)?\.\.(/|$))[^\u0000-\u001f\u007f-\u009f]+$")
    )]
    pub workdir: String,
    /// Its App.
    pub app_id: AppId,
    /// Its tags.
    #[serde(default, deserialize_with = "lenient::string_map", skip_serializing_if = "StringMap::is_empty")]
    pub tags: StringMap,
    /// Balsam's pickled parameters.
    #[serde(default, deserialize_with = "lenient::string", skip_serializing_if = "String::is_empty")]
    pub serialized_parameters: String,
    /// Whatever its owner keeps with it.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: JsonObject,
    /// An exit code to begin with.
    #[serde(default, deserialize_with = "lenient::nullable_int", skip_serializing_if = "Option::is_none")]
    pub return_code: Option<i32>,
    /// Nodes.
    #[serde(default = "one", deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub num_nodes: i32,
    /// Ranks on each node.
    #[serde(default = "one", deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub ranks_per_node: i32,
    /// Threads of each rank.
    #[serde(default = "one", deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub threads_per_rank: i32,
    /// Hardware threads of one core that a rank's threads use.
    #[serde(default = "one", deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub threads_per_core: i32,
    /// Passed through to the command that starts ranks.
    #[serde(default, deserialize_with = "lenient::string_map", skip_serializing_if = "StringMap::is_empty")]
    pub launch_params: StringMap,
    /// GPUs of each rank.
    #[serde(default, deserialize_with = "lenient::float")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 10_000))]
    pub gpus_per_rank: f64,
    /// How many such Jobs may share a node.
    #[serde(default = "one", deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub node_packing_count: i32,
    /// Expected minutes; 0 where not known.
    #[serde(default, deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 10_000_000))]
    pub wall_time_min: i32,
    /// Jobs that must finish first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parent_ids: Vec<JobId>,
    /// Where the App's slots get or put their files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub transfers: BTreeMap<String, TransferLocation>,
    /// Parameters of a Copal App, in the clear.
    #[serde(default, deserialize_with = "lenient::string_map", skip_serializing_if = "StringMap::is_empty")]
    pub parameters: StringMap,
    /// Higher runs first.
    #[serde(default, deserialize_with = "lenient::int")]
    pub priority: i32,
    /// Dependencies of any kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<Dependency>,
    /// Memory on each node in MiB.
    #[serde(default, deserialize_with = "lenient::nullable_int", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub mem_mb: Option<i64>,
    /// Minutes after which a run is cut off.
    #[serde(default, deserialize_with = "lenient::nullable_int", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10_000_000))]
    pub walltime_limit_min: Option<i32>,
    /// The Job's own retry policy.
    #[serde(default, deserialize_with = "lenient::nullable_int", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0))]
    pub max_restarts: Option<i32>,
    /// What it is sent before it is cut off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// Who pays, for accounting.
    #[serde(default, deserialize_with = "lenient::nullable_string", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 256))]
    pub account: Option<String>,
}

impl JobCreate {
    /// A Job with everything at its default.
    #[must_use]
    pub fn new(app_id: AppId, workdir: impl Into<String>) -> Self {
        let shape = ResourceShape::default();
        Self {
            workdir: workdir.into(),
            app_id,
            tags: StringMap::new(),
            serialized_parameters: String::new(),
            data: JsonObject::new(),
            return_code: None,
            num_nodes: shape.num_nodes,
            ranks_per_node: shape.ranks_per_node,
            threads_per_rank: shape.threads_per_rank,
            threads_per_core: shape.threads_per_core,
            launch_params: StringMap::new(),
            gpus_per_rank: shape.gpus_per_rank,
            node_packing_count: shape.node_packing_count,
            wall_time_min: 0,
            parent_ids: Vec::new(),
            transfers: BTreeMap::new(),
            parameters: StringMap::new(),
            priority: 0,
            dependencies: Vec::new(),
            mem_mb: None,
            walltime_limit_min: None,
            max_restarts: None,
            checkpoint: None,
            account: None,
        }
    }

    /// What it asks of its nodes.
    #[must_use]
    pub fn shape(&self) -> ResourceShape {
        ResourceShape {
            num_nodes: self.num_nodes,
            ranks_per_node: self.ranks_per_node,
            threads_per_rank: self.threads_per_rank,
            threads_per_core: self.threads_per_core,
            gpus_per_rank: self.gpus_per_rank,
            node_packing_count: self.node_packing_count,
            mem_mb: self.mem_mb,
        }
    }
}

/// Checks a workdir: relative, at most 256 characters, without `..`, backslashes or control characters.
/// Gives it with redundant parts taken out.
///
/// # Errors
/// A sentence with the remedy.
pub fn check_workdir(workdir: &str) -> Result<String, String> {
    if workdir.starts_with('/') {
        return Err(format!("{workdir:?} is absolute; give a path relative to the Site's data folder"));
    }
    let normal = lenient::normal_path(workdir);
    if normal.split('/').any(|part| part == "..") {
        return Err(format!("{workdir:?} has `..`; a workdir may not leave the Site's data folder"));
    }
    if normal.chars().any(char::is_control) {
        return Err(format!("{workdir:?} has a control character"));
    }
    match normal.chars().count() {
        _ if normal == "." => Err("the workdir is empty; name a folder".into()),
        length if length > MAX_WORKDIR => {
            Err(format!("the workdir has {length} characters; {MAX_WORKDIR} is the most"))
        }
        _ => Ok(normal),
    }
}

/// An owner's update of a Job; only the fields present change.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobPatch {
    /// Its folder below the Site's `data/`.
    #[serde(default, deserialize_with = "lenient::some_string", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(
            max_length = 256,
            pattern = r"^(?!/)(?!(\./*)+$)(?!(.*/)?\.\.(/|$))[^\u0000-\u001f\u007f-\u009f]+$",
            nullable = false
        )
    )]
    pub workdir: Option<String>,
    /// Replaces its tags.
    #[serde(default, deserialize_with = "lenient::some_string_map", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub tags: Option<StringMap>,
    /// Balsam's pickled parameters.
    #[serde(default, deserialize_with = "lenient::some_string", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub serialized_parameters: Option<String>,
    /// Balsam's pickled return value.
    #[serde(default, deserialize_with = "lenient::some_string", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub serialized_return_value: Option<String>,
    /// Balsam's pickled exception.
    #[serde(default, deserialize_with = "lenient::some_string", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub serialized_exception: Option<String>,
    /// Replaces its data.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>, nullable = false))]
    pub data: Option<JsonObject>,
    /// The exit code of its last run.
    #[serde(default, deserialize_with = "lenient::patch_int", skip_serializing_if = "Option::is_none")]
    pub return_code: Option<Option<i32>>,
    /// Nodes.
    #[serde(default, deserialize_with = "lenient::some_int", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000, nullable = false))]
    pub num_nodes: Option<i32>,
    /// Ranks on each node.
    #[serde(default, deserialize_with = "lenient::some_int", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000, nullable = false))]
    pub ranks_per_node: Option<i32>,
    /// Threads of each rank.
    #[serde(default, deserialize_with = "lenient::some_int", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000, nullable = false))]
    pub threads_per_rank: Option<i32>,
    /// Hardware threads of one core that a rank's threads use.
    #[serde(default, deserialize_with = "lenient::some_int", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000, nullable = false))]
    pub threads_per_core: Option<i32>,
    /// Passed through to the command that starts ranks.
    #[serde(default, deserialize_with = "lenient::some_string_map", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub launch_params: Option<StringMap>,
    /// GPUs of each rank.
    #[serde(default, deserialize_with = "lenient::some_float", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 10_000, nullable = false))]
    pub gpus_per_rank: Option<f64>,
    /// How many such Jobs may share a node.
    #[serde(default, deserialize_with = "lenient::some_int", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000, nullable = false))]
    pub node_packing_count: Option<i32>,
    /// Expected minutes.
    #[serde(default, deserialize_with = "lenient::some_int", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 10_000_000, nullable = false))]
    pub wall_time_min: Option<i32>,
    /// The BatchJob it ran in last.
    #[serde(default, deserialize_with = "lenient::patch", skip_serializing_if = "Option::is_none")]
    pub batch_job_id: Option<Option<BatchJobId>>,
    /// The state to set; null changes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// When that happened; left out or null for now.
    #[serde(default, with = "crate::time::naive_option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::Time>))]
    pub state_timestamp: Option<Timestamp>,
    /// For the event.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub state_data: JsonObject,
    /// Whether the file cleaner should come here.
    #[serde(default, deserialize_with = "lenient::some_boolean", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub pending_file_cleanup: Option<bool>,
    /// Replaces the parameters of a Copal App.
    #[serde(default, deserialize_with = "lenient::some_string_map", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub parameters: Option<StringMap>,
    /// Higher runs first.
    #[serde(default, deserialize_with = "lenient::some_int", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub priority: Option<i32>,
    /// Memory on each node in MiB.
    #[serde(default, deserialize_with = "lenient::patch_int", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub mem_mb: Option<Option<i64>>,
    /// Minutes after which a run is cut off.
    #[serde(default, deserialize_with = "lenient::patch_int", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10_000_000))]
    pub walltime_limit_min: Option<Option<i32>>,
    /// The Job's own retry policy.
    #[serde(default, deserialize_with = "lenient::patch_int", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0))]
    pub max_restarts: Option<Option<i32>>,
}

/// One item of `PATCH /jobs/`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobPatchItem {
    /// The Job.
    pub id: JobId,
    /// What changes.
    #[serde(flatten)]
    pub patch: JobPatch,
}

/// Answer of `POST /jobs/cancel`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cancelled {
    /// Waiting Jobs that are FAILED now.
    pub cancelled: i64,
    /// Running Jobs whose launcher was told to kill them.
    pub stopping: i64,
}

/// One run of a Job: `GET /jobs/{id}/attempts`, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attempt {
    /// 1 for the first run.
    pub number: i32,
    /// The BatchJob it ran in.
    pub batch_job_id: Option<BatchJobId>,
    /// How it ended.
    pub state: JobState,
    /// Its exit code.
    pub return_code: Option<i32>,
    /// What it used.
    #[serde(flatten)]
    pub usage: Usage,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_needs_only_an_app_and_a_workdir() {
        let job: JobCreate = serde_json::from_str(r#"{"workdir": "a", "app_id": "7", "unknown": 1}"#).unwrap();
        assert_eq!(job.app_id, AppId(7));
        assert_eq!(job.shape(), ResourceShape::default());
        assert!(serde_json::from_str::<JobCreate>(r#"{"workdir": "a", "app_id": 7, "num_nodes": null}"#).is_err());
    }

    #[test]
    fn workdirs_stay_below_data() {
        assert_eq!(check_workdir("demo/./1//x").unwrap(), "demo/1/x");
        for bad in ["/abs", "a/../../b", "..", "", ".", "a\0b", &"x".repeat(257)] {
            assert!(check_workdir(bad).is_err(), "{bad:?}");
        }
    }
}
