//! BatchJobs: blocks of node-hours asked of a Site's scheduler (contract, section 7).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{BatchJobId, SiteId, StringMap, Timestamp, lenient};

/// How far a BatchJob is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "db", derive(sqlx::Type), sqlx(type_name = "batch_job_state", rename_all = "snake_case"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BatchJobState {
    /// The agent has not submitted it yet.
    PendingSubmission,
    /// The scheduler has it.
    Queued,
    /// It has its nodes.
    Running,
    /// It is over.
    Finished,
    /// The scheduler or the Site's policy refused it.
    SubmitFailed,
    /// Its owner wants it gone.
    PendingDeletion,
}

impl BatchJobState {
    /// Every state.
    pub const ALL: &'static [Self] = &[
        Self::PendingSubmission,
        Self::Queued,
        Self::Running,
        Self::Finished,
        Self::SubmitFailed,
        Self::PendingDeletion,
    ];

    /// The spelling on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PendingSubmission => "pending_submission",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::SubmitFailed => "submit_failed",
            Self::PendingDeletion => "pending_deletion",
        }
    }

    /// Whether nothing more happens to it.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::SubmitFailed)
    }
}

impl fmt::Display for BatchJobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How a launcher runs its Jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "db", derive(sqlx::Type), sqlx(type_name = "job_mode", rename_all = "lowercase"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum JobMode {
    /// One-rank Jobs, started by a worker on each node.
    Serial,
    /// Jobs of any size, each started by the platform's MPI command.
    Mpi,
}

impl fmt::Display for JobMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Serial => "serial",
            Self::Mpi => "mpi",
        })
    }
}

impl FromStr for JobMode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "serial" => Ok(Self::Serial),
            "mpi" => Ok(Self::Mpi),
            other => Err(format!("{other:?} is not a job mode; use mpi or serial")),
        }
    }
}

/// A part of a BatchJob's nodes with a launcher of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Partition {
    /// How its launcher runs Jobs.
    pub job_mode: JobMode,
    /// Nodes.
    #[serde(deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub num_nodes: i32,
    /// Tags that its Jobs must have.
    #[serde(default, deserialize_with = "lenient::string_map")]
    pub filter_tags: StringMap,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.job_mode, self.num_nodes)?;
        self.filter_tags.iter().try_for_each(|(key, value)| write!(f, ":{key}={value}"))
    }
}

impl FromStr for Partition {
    type Err = String;
    /// Reads `MODE:NODES[:key=value]…`, as `-p` takes it.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            |what: &str| format!("{text:?}: {what}; a partition is MODE:NODES[:key=value]…, such as mpi:2:role=leader");
        let mut parts = text.split(':');
        let job_mode = parts.next().unwrap_or_default().parse()?;
        let num_nodes = parts.next().and_then(|nodes| nodes.parse().ok()).filter(|nodes| *nodes > 0);
        let num_nodes = num_nodes.ok_or_else(|| wrong("the number of nodes is missing or not positive"))?;
        let mut filter_tags = StringMap::new();
        for tag in parts {
            let (key, value) = tag.split_once('=').ok_or_else(|| wrong(&format!("the tag {tag:?} has no `=`")))?;
            filter_tags.insert(key.into(), value.into());
        }
        Ok(Self { job_mode, num_nodes, filter_tags })
    }
}

/// A BatchJob, as the service shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchJob {
    /// Nodes.
    pub num_nodes: i32,
    /// Minutes.
    pub wall_time_min: i32,
    /// How its launcher runs Jobs.
    pub job_mode: JobMode,
    /// Parameters that the Site declares, for its template.
    pub optional_params: StringMap,
    /// Tags that its Jobs must have.
    pub filter_tags: StringMap,
    /// Launchers of their own for parts of the nodes.
    pub partitions: Option<Vec<Partition>>,
    /// The BatchJob's id.
    pub id: BatchJobId,
    /// The Site whose scheduler is asked.
    pub site_id: SiteId,
    /// The scheduler's id, a text of its own shape.
    pub scheduler_id: Option<SchedulerId>,
    /// Who pays.
    pub project: String,
    /// The scheduler's queue.
    pub queue: String,
    /// How far it is.
    pub state: BatchJobState,
    /// What the agent wants people to know: `error`, `reason`, `script`.
    pub status_info: StringMap,
    /// When it got its nodes.
    #[serde(with = "crate::time::naive_option")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::Time>))]
    pub start_time: Option<Timestamp>,
    /// When it was over.
    #[serde(with = "crate::time::naive_option")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::Time>))]
    pub end_time: Option<Timestamp>,
}

/// A scheduler's id of a BatchJob. A text (`41`, `123.server`, `93+0`); written as a JSON number
/// where it is one, since Balsam's clients hold it to be an integer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "db", derive(sqlx::Type), sqlx(transparent))]
pub struct SchedulerId(pub String);

impl SchedulerId {
    /// The most letters of an id: schedulers' own are short, even with the name of a host.
    pub const MAX_LETTERS: usize = 256;

    /// Whether no scheduler can have given it.
    #[must_use]
    pub fn is_too_long(&self) -> bool {
        self.0.chars().count() > Self::MAX_LETTERS
    }
}

impl fmt::Display for SchedulerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Serialize for SchedulerId {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self.0.parse::<i64>() {
            Ok(number) if number.to_string() == self.0 => out.serialize_i64(number),
            _ => out.serialize_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for SchedulerId {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        lenient::string(input).map(Self)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for SchedulerId {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
        OneOfBuilder::new()
            .item(ObjectBuilder::new().schema_type(Type::Integer))
            .item(ObjectBuilder::new().schema_type(Type::String).max_length(Some(SchedulerId::MAX_LETTERS)))
            .into()
    }
}
#[cfg(feature = "openapi")]
impl utoipa::ToSchema for SchedulerId {}

/// Body of `POST /batch-jobs/`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchJobCreate {
    /// The Site whose scheduler is asked.
    pub site_id: SiteId,
    /// Who pays.
    #[serde(deserialize_with = "lenient::string")]
    pub project: String,
    /// The scheduler's queue.
    #[serde(deserialize_with = "lenient::string")]
    pub queue: String,
    /// Nodes, 1 or more.
    #[serde(deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub num_nodes: i32,
    /// Minutes, 1 or more.
    #[serde(deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub wall_time_min: i32,
    /// How its launcher runs Jobs.
    pub job_mode: JobMode,
    /// Parameters that the Site declares.
    #[serde(default, deserialize_with = "lenient::string_map")]
    pub optional_params: StringMap,
    /// Tags that its Jobs must have.
    #[serde(default, deserialize_with = "lenient::string_map")]
    pub filter_tags: StringMap,
    /// Launchers of their own for parts of the nodes.
    #[serde(default)]
    pub partitions: Option<Vec<Partition>>,
}

/// Body of `PUT /batch-jobs/{id}`; only the fields present change.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchJobPatch {
    /// The scheduler's id.
    #[serde(default, deserialize_with = "lenient::patch", skip_serializing_if = "Option::is_none")]
    pub scheduler_id: Option<Option<SchedulerId>>,
    /// How far it is.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub state: Option<BatchJobState>,
    /// Replaces what people are told.
    #[serde(default, deserialize_with = "lenient::some_string_map", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub status_info: Option<StringMap>,
    /// When it got its nodes.
    #[serde(default, deserialize_with = "lenient::patch_datetime", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::Time>))]
    pub start_time: Option<Option<Timestamp>>,
    /// When it was over.
    #[serde(default, deserialize_with = "lenient::patch_datetime", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::Time>))]
    pub end_time: Option<Option<Timestamp>>,
}

/// One item of `PATCH /batch-jobs/`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchJobPatchItem {
    /// The BatchJob.
    pub id: BatchJobId,
    /// What changes.
    #[serde(flatten)]
    pub patch: BatchJobPatch,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_round_trip() {
        for text in ["mpi:2:role=leader", "serial:126:role=worker:x=a=b", "mpi:1"] {
            assert_eq!(text.parse::<Partition>().unwrap().to_string(), text);
        }
        for text in ["mpi", "gpu:1", "mpi:0", "mpi:2:role", "mpi:-1", ""] {
            assert!(text.parse::<Partition>().is_err(), "{text}");
        }
    }

    #[test]
    fn scheduler_ids_are_numbers_where_they_can_be() {
        let json = |id: &str| serde_json::to_string(&SchedulerId(id.into())).unwrap();
        assert_eq!(json("41"), "41");
        assert_eq!(json("041"), "\"041\"");
        assert_eq!(json("123.head"), "\"123.head\"");
        assert_eq!(serde_json::from_str::<SchedulerId>("41").unwrap(), SchedulerId("41".into()));
    }

    #[test]
    fn an_absent_field_and_a_null_differ() {
        let patch: BatchJobPatch = serde_json::from_str(r#"{"start_time": null}"#).unwrap();
        assert_eq!(patch.start_time, Some(None));
        assert_eq!(patch.end_time, None);
        assert!(serde_json::from_str::<BatchJobPatch>(r#"{"state": null}"#).is_err());
    }
}
