//! TransferItems: one file or folder to stage in or out for a Job (contract, section 6).

use serde::{Deserialize, Serialize};

use crate::{JobId, JsonObject, SiteId, TransferId, lenient};

/// Which way a transfer goes, seen from the Job's workdir.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "db", derive(sqlx::Type), sqlx(type_name = "transfer_direction", rename_all = "lowercase"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Into the workdir, before the Job runs.
    In,
    /// Out of the workdir, after it ran.
    Out,
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "db", derive(sqlx::Type), sqlx(type_name = "transfer_state", rename_all = "snake_case"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TransferState {
    /// Its Job has not come so far.
    AwaitingJob,
    /// It can start.
    Pending,
    /// It runs.
    Active,
    /// It was started and does not move.
    Inactive,
    /// It is where it belongs.
    Done,
    /// It failed.
    Error,
}

/// A transfer, as the service shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransferItem {
    /// How far it is.
    pub state: TransferState,
    /// The adapter's own id of the transfer, where it has one.
    pub task_id: String,
    /// What the adapter wants to keep.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub transfer_info: JsonObject,
    /// The transfer's id.
    pub id: TransferId,
    /// The Job.
    pub job_id: JobId,
    /// Which way.
    pub direction: Direction,
    /// The path below the workdir.
    pub local_path: String,
    /// The path at the location.
    pub remote_path: String,
    /// The location, as named in the Site's `transfer_locations`.
    pub location_alias: String,
    /// Whether a folder is meant with all that is in it.
    pub recursive: bool,
}

/// A transfer that a Job waits for, as the Site's agent needs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DueTransfer {
    /// The transfer.
    #[serde(flatten)]
    pub transfer: TransferItem,
    /// The Job's workdir, below the Site's `data/`.
    pub workdir: String,
}

/// Body of `POST /transfers/due`: an agent takes what it stages as one batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransferClaim {
    /// The Site.
    pub site_id: SiteId,
    /// The batch's name, a new one at each call: what is taken has it as `task_id`.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub task_id: String,
    /// Transfers at most, 1 to 5000.
    #[serde(deserialize_with = "lenient::int")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 5000))]
    pub limit: i64,
    /// Seconds (0 to 30) to wait for one when there is none now.
    #[serde(default, deserialize_with = "lenient::float")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 30))]
    pub wait_sec: f64,
}

/// An update of a transfer; only the fields present change.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransferPatch {
    /// How far it is.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub state: Option<TransferState>,
    /// The adapter's own id of the transfer.
    #[serde(default, deserialize_with = "lenient::some_string", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub task_id: Option<String>,
    /// Replaces what the adapter keeps.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>, nullable = false))]
    pub transfer_info: Option<JsonObject>,
    /// Why the Job fails with its transfer: the reason of its change to FAILED. Only a Job that waits for the transfer
    /// fails.
    #[serde(default, deserialize_with = "lenient::some_string", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub job_error: Option<String>,
}

/// One item of `PATCH /transfers/`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransferPatchItem {
    /// The transfer.
    pub id: TransferId,
    /// What changes.
    #[serde(flatten)]
    pub patch: TransferPatch,
}

/// Where one slot of a Job's App gets or puts its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransferLocation {
    /// A key of the Site's `transfer_locations`.
    #[serde(deserialize_with = "lenient::string")]
    pub location_alias: String,
    /// The absolute path there.
    #[serde(deserialize_with = "lenient::string")]
    #[cfg_attr(feature = "openapi", schema(pattern = "^/"))]
    pub path: String,
}
