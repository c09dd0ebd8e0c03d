//! Events: one state change of one Job each, and what the event stream carries.

use serde::{Deserialize, Serialize};

use crate::{BatchJobId, EventId, JobId, JobState, JsonObject, SiteId, Timestamp, batch_job::BatchJob, site::Site};

/// One state change of one Job. Never changed, never written without the change itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// The event's id.
    pub id: EventId,
    /// The Job.
    pub job_id: JobId,
    /// When it happened, by the clock of whoever made the change.
    #[serde(with = "crate::time::naive")]
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::Time))]
    pub timestamp: Timestamp,
    /// The state before.
    pub from_state: JobState,
    /// The state after.
    pub to_state: JobState,
    /// Why and how: `message`, `reason`, `return_code`, `error_tail`, `forced`, whatever a hook wrote.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: JsonObject,
}

/// What `GET /events/stream` sends: the `event:` field of server-sent events is the variant's
/// name in the wire's spelling, the `data:` field this value as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Change {
    /// A Job changed its state.
    Job {
        /// The Job's Site.
        site_id: SiteId,
        /// The BatchJob it ran in last.
        batch_job_id: Option<BatchJobId>,
        /// The state change.
        event: Event,
    },
    /// A BatchJob was made or changed.
    BatchJob {
        /// As it is now.
        batch_job: Box<BatchJob>,
    },
    /// A BatchJob was deleted.
    BatchJobDeleted {
        /// Its Site.
        site_id: SiteId,
        /// Its id.
        batch_job_id: BatchJobId,
    },
    /// A Site was made or changed.
    Site {
        /// As it is now.
        site: Box<Site>,
    },
    /// A Site was deleted.
    SiteDeleted {
        /// Its id.
        site_id: SiteId,
    },
}
