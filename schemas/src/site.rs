//! Sites as the service shows them (contract, section 3).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    SiteId, StringMap, Timestamp,
    batch_job::{BatchJobState, SchedulerId},
    lenient,
    resources::NodeShape,
    settings::QueueLimits,
};

/// A hole in a queue that a BatchJob would fit into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackfillWindow {
    /// Nodes.
    #[serde(deserialize_with = "lenient::int")]
    pub num_nodes: i32,
    /// Minutes.
    #[serde(deserialize_with = "lenient::int")]
    pub wall_time_min: i32,
}

/// How many nodes of a queue are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeStates {
    /// Nodes that a job could have now.
    #[serde(deserialize_with = "lenient::int")]
    pub idle: i32,
    /// Nodes that jobs hold, wholly or in part.
    #[serde(deserialize_with = "lenient::int")]
    pub allocated: i32,
    /// Nodes that take no job: down, drained, switched off, set aside or not answering.
    #[serde(deserialize_with = "lenient::int")]
    pub down: i32,
}

/// A node that the Site's agent leaves out of its allocations for a while: Jobs or launchers fail on it at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeAside {
    /// Its name, as the scheduler knows it.
    #[serde(deserialize_with = "lenient::string")]
    pub node: String,
    /// Until when.
    #[serde(with = "crate::time::naive")]
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::Time))]
    pub until: Timestamp,
    /// Why: how many failed, and the first cause.
    #[serde(deserialize_with = "lenient::string")]
    pub reason: String,
}

/// The name in `node_states` of all nodes together, where the scheduler does not tell which a queue may use.
pub const ALL_NODES: &str = "*";

/// A job in the Site's queue, whoever made it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueuedJob {
    /// The scheduler's id.
    pub scheduler_id: SchedulerId,
    /// How far it is.
    pub state: BatchJobState,
    /// Its queue.
    #[serde(deserialize_with = "lenient::string")]
    pub queue: String,
    /// Nodes.
    #[serde(deserialize_with = "lenient::int")]
    pub num_nodes: i32,
    /// Minutes.
    #[serde(deserialize_with = "lenient::int")]
    pub wall_time_min: i32,
    /// Who pays.
    #[serde(deserialize_with = "lenient::string")]
    pub project: String,
    /// Minutes left.
    #[serde(deserialize_with = "lenient::int")]
    pub time_remaining_min: i32,
    /// Minutes it has waited.
    #[serde(deserialize_with = "lenient::int")]
    pub queued_time_min: i32,
}

/// What a Site's agent and owner say of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct SiteDetails {
    /// The Site's Globus endpoint.
    pub globus_endpoint_id: Option<Uuid>,
    /// Holes in the queues, by queue.
    pub backfill_windows: BTreeMap<String, Vec<BackfillWindow>>,
    /// Nodes by what they do, by queue or [`ALL_NODES`]; empty where the scheduler does not tell.
    pub node_states: BTreeMap<String, NodeStates>,
    /// Nodes that allocations leave out for a while.
    pub nodes_aside: Vec<NodeAside>,
    /// Jobs in the queues, by the scheduler's id.
    pub queued_jobs: BTreeMap<String, QueuedJob>,
    /// Parameters of the Site's template and their defaults.
    #[serde(deserialize_with = "lenient::string_map")]
    pub optional_batch_job_params: StringMap,
    /// Who may pay.
    #[serde(deserialize_with = "lenient::string_list")]
    pub allowed_projects: Vec<String>,
    /// Queues and their limits.
    pub allowed_queues: BTreeMap<String, QueueLimits>,
    /// Where Jobs may stage from and to: alias to URL.
    #[serde(deserialize_with = "lenient::string_map")]
    #[cfg_attr(feature = "openapi", schema(schema_with = locations_schema))]
    pub transfer_locations: StringMap,
    /// What one node has, where the agent knows it.
    pub node_shape: Option<NodeShape>,
}

/// Aliases to URLs, each with a scheme.
#[cfg(feature = "openapi")]
fn locations_schema() -> utoipa::openapi::Object {
    use utoipa::openapi::schema::{ObjectBuilder, Type};
    let url = ObjectBuilder::new().schema_type(Type::String).pattern(Some(r"^[A-Za-z][A-Za-z0-9+.-]*:[\s\S]+"));
    ObjectBuilder::new().schema_type(Type::Object).additional_properties(Some(url)).build()
}

/// A Site, as the service shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Site {
    /// Unique among its owner's Sites.
    pub name: String,
    /// The absolute path on its machine.
    pub path: String,
    /// What its agent and owner say of it.
    #[serde(flatten)]
    pub details: SiteDetails,
    /// The Site's id.
    pub id: SiteId,
    /// When its agent last reported.
    #[serde(with = "crate::time::naive")]
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::Time))]
    pub last_refresh: Timestamp,
    /// When it was made.
    #[serde(with = "crate::time::naive")]
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::Time))]
    pub creation_date: Timestamp,
}

/// Body of `POST /sites/`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SiteCreate {
    /// Unique among its owner's Sites.
    #[serde(deserialize_with = "lenient::string")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub name: String,
    /// The absolute path on its machine.
    #[serde(deserialize_with = "lenient::string")]
    #[cfg_attr(feature = "openapi", schema(pattern = "^/"))]
    pub path: String,
    /// What its agent and owner say of it.
    #[serde(flatten)]
    pub details: SiteDetails,
}

/// Body of `PUT /sites/{id}`; only the fields present change.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SitePatch {
    /// Another name.
    #[serde(default, deserialize_with = "lenient::some_string", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256, nullable = false))]
    pub name: Option<String>,
    /// Another path.
    #[serde(default, deserialize_with = "lenient::some_string", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(pattern = "^/", nullable = false))]
    pub path: Option<String>,
    /// The Site's Globus endpoint.
    #[serde(default, deserialize_with = "lenient::patch", skip_serializing_if = "Option::is_none")]
    pub globus_endpoint_id: Option<Option<Uuid>>,
    /// Holes in the queues, by queue.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub backfill_windows: Option<BTreeMap<String, Vec<BackfillWindow>>>,
    /// Nodes by what they do, by queue.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub node_states: Option<BTreeMap<String, NodeStates>>,
    /// Nodes that allocations leave out for a while.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub nodes_aside: Option<Vec<NodeAside>>,
    /// Jobs in the queues, by the scheduler's id.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub queued_jobs: Option<BTreeMap<String, QueuedJob>>,
    /// Parameters of the Site's template and their defaults.
    #[serde(default, deserialize_with = "lenient::some_string_map", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub optional_batch_job_params: Option<StringMap>,
    /// Who may pay.
    #[serde(default, deserialize_with = "lenient::some_string_list", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub allowed_projects: Option<Vec<String>>,
    /// Queues and their limits.
    #[serde(default, deserialize_with = "lenient::some", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub allowed_queues: Option<BTreeMap<String, QueueLimits>>,
    /// Where Jobs may stage from and to.
    #[serde(default, deserialize_with = "lenient::some_string_map", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(schema_with = locations_schema, required = false))]
    pub transfer_locations: Option<StringMap>,
    /// What one node has.
    #[serde(default, deserialize_with = "lenient::patch", skip_serializing_if = "Option::is_none")]
    pub node_shape: Option<Option<NodeShape>>,
}
