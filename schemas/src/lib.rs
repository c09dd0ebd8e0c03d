//! What crosses the wire between Copal's programs: ids, the lifecycle table, resource shapes,
//! request and response bodies, and the files of a Site as types.
//!
//! Nothing here does I/O, knows an async runtime or reads a clock. Everything else depends on
//! this crate; it depends on no other crate of Copal.

pub mod app;
pub mod app_file;
pub mod batch_job;
pub mod event;
pub mod ids;
pub mod job;
pub mod job_array;
pub mod job_state;
pub mod lenient;
pub mod limits;
#[cfg(feature = "openapi")]
pub mod openapi;
pub mod page;
pub mod problem;
pub mod resources;
pub mod session;
pub mod settings;
pub mod site;
pub mod time;
pub mod transfer;
pub mod user;
pub mod why;

pub use ids::{AppId, BatchJobId, EventId, JobId, SessionId, SiteId, TransferId, UserId};
pub use job_state::JobState;

/// A map of names to texts, in a stable order: tags, launch parameters, optional parameters.
pub type StringMap = std::collections::BTreeMap<String, String>;
/// A JSON object.
pub type JsonObject = serde_json::Map<String, serde_json::Value>;
/// A point in time. Always UTC, with microseconds.
pub type Timestamp = chrono::DateTime<chrono::Utc>;
