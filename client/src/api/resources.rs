//! Calls on Sites, Apps, Jobs, BatchJobs, events and transfers.

use std::time::Duration;

use copal_schemas::{
    AppId, BatchJobId, JobId, JobState, SessionId, SiteId, StringMap, Timestamp, TransferId,
    app::{App, AppCreate, AppPatch},
    batch_job::{BatchJob, BatchJobCreate, BatchJobPatch, BatchJobPatchItem, BatchJobState},
    event::Event,
    job::{Attempt, Cancelled, Job, JobCreate, JobPatch, JobPatchItem},
    job_array::{JobArray, JobArrayCreate},
    page::Page,
    site::{Site, SiteCreate, SitePatch},
    transfer::{Direction, DueTransfer, TransferClaim, TransferItem, TransferPatchItem, TransferState},
    why::Why,
};
use reqwest::Method;
use uuid::Uuid;

use super::{Client, ClientError, patience};

/// How long a million Jobs may take to be made.
const ARRAY_TIMEOUT: Duration = Duration::from_secs(900);

type Pairs = Vec<(&'static str, String)>;

/// Which Jobs are meant. The same filters serve listing, updating, cancelling and deleting.
#[derive(Clone, Debug, Default)]
pub struct JobQuery {
    /// These Jobs.
    pub ids: Vec<JobId>,
    /// With this id or a greater one.
    pub id_from: Option<JobId>,
    /// With this id or a smaller one.
    pub id_to: Option<JobId>,
    /// Children of these Jobs.
    pub parent_ids: Vec<JobId>,
    /// Of this App.
    pub app_id: Option<AppId>,
    /// At these Sites; empty for all.
    pub site_ids: Vec<SiteId>,
    /// That ran in this BatchJob last.
    pub batch_job_id: Option<BatchJobId>,
    /// That this Session holds.
    pub session_id: Option<SessionId>,
    /// Of this array.
    pub array_id: Option<i64>,
    /// In these states; empty for all.
    pub states: Vec<JobState>,
    /// In any other state than this.
    pub state_ne: Option<JobState>,
    /// With all of these tags.
    pub tags: StringMap,
    /// With this text in their workdir.
    pub workdir_contains: Option<String>,
    /// Changed at this time or later.
    pub last_update_after: Option<Timestamp>,
    /// Changed at this time or before.
    pub last_update_before: Option<Timestamp>,
    /// Only those where the file cleaner has not been.
    pub pending_file_cleanup: bool,
    /// But those that wait and that two allocations in this queue gave back, since their nodes can't hold them.
    pub not_given_back_in: Option<String>,
    /// Since when that counts.
    pub not_given_back_since: Option<Timestamp>,
    /// Beyond this id: where to go on in a list by ids. Counts, changes and deletions don't heed it.
    pub after_id: Option<JobId>,
    /// `last_update`, `id`, `state` or `workdir`, with `-` before it for descending.
    pub ordering: Option<String>,
    /// The most rows.
    pub limit: Option<i64>,
    /// Rows left out at the beginning.
    pub offset: Option<i64>,
}

impl JobQuery {
    fn pairs(&self) -> Pairs {
        let mut pairs = Pairs::new();
        pairs.extend(self.ids.iter().map(|id| ("id", id.to_string())));
        pairs.extend(self.id_from.map(|id| ("id__gte", id.to_string())));
        pairs.extend(self.id_to.map(|id| ("id__lte", id.to_string())));
        pairs.extend(self.parent_ids.iter().map(|id| ("parent_id", id.to_string())));
        pairs.extend(self.app_id.map(|id| ("app_id", id.to_string())));
        pairs.extend(self.site_ids.iter().map(|id| ("site_id", id.to_string())));
        pairs.extend(self.batch_job_id.map(|id| ("batch_job_id", id.to_string())));
        pairs.extend(self.session_id.map(|id| ("session_id", id.to_string())));
        pairs.extend(self.array_id.map(|id| ("array_id", id.to_string())));
        pairs.extend(self.states.iter().map(|state| ("state", state.to_string())));
        pairs.extend(self.state_ne.map(|state| ("state__ne", state.to_string())));
        pairs.extend(tag_pairs(&self.tags));
        pairs.extend(self.workdir_contains.clone().map(|text| ("workdir__contains", text)));
        pairs.extend(self.last_update_after.map(|time| ("last_update_after", time.to_rfc3339())));
        pairs.extend(self.last_update_before.map(|time| ("last_update_before", time.to_rfc3339())));
        pairs.extend(self.pending_file_cleanup.then(|| ("pending_file_cleanup", "true".into())));
        pairs.extend(self.not_given_back_in.clone().map(|queue| ("not_given_back_in", queue)));
        pairs.extend(self.not_given_back_since.map(|time| ("not_given_back_since", time.to_rfc3339())));
        pairs.extend(self.after_id.map(|id| ("after_id", id.to_string())));
        page_pairs(&mut pairs, self.ordering.as_ref(), self.limit, self.offset);
        pairs
    }
}

/// Which events are meant.
#[derive(Clone, Debug, Default)]
pub struct EventQuery {
    /// Of these Jobs.
    pub job_ids: Vec<JobId>,
    /// Of Jobs that ran in this BatchJob last.
    pub batch_job_id: Option<BatchJobId>,
    /// Of Jobs that ran last in the BatchJob with this scheduler's id.
    pub scheduler_id: Option<String>,
    /// Of Jobs with all of these tags.
    pub tags: StringMap,
    /// With these texts in their data.
    pub data: StringMap,
    /// From this state.
    pub from_state: Option<JobState>,
    /// To this state.
    pub to_state: Option<JobState>,
    /// At this time or later.
    pub after: Option<Timestamp>,
    /// At this time or before.
    pub before: Option<Timestamp>,
    /// `timestamp` or `-timestamp`; newest first when left out.
    pub ordering: Option<String>,
    /// The most rows.
    pub limit: Option<i64>,
    /// Rows left out at the beginning.
    pub offset: Option<i64>,
}

impl EventQuery {
    fn pairs(&self) -> Pairs {
        let mut pairs = Pairs::new();
        pairs.extend(self.job_ids.iter().map(|id| ("job_id", id.to_string())));
        pairs.extend(self.batch_job_id.map(|id| ("batch_job_id", id.to_string())));
        pairs.extend(self.scheduler_id.clone().map(|id| ("scheduler_id", id)));
        pairs.extend(tag_pairs(&self.tags));
        pairs.extend(self.data.iter().map(|(key, value)| ("data", format!("{key}:{value}"))));
        pairs.extend(self.from_state.map(|state| ("from_state", state.to_string())));
        pairs.extend(self.to_state.map(|state| ("to_state", state.to_string())));
        pairs.extend(self.after.map(|time| ("timestamp_after", time.to_rfc3339())));
        pairs.extend(self.before.map(|time| ("timestamp_before", time.to_rfc3339())));
        page_pairs(&mut pairs, self.ordering.as_ref(), self.limit, self.offset);
        pairs
    }
}

fn tag_pairs(tags: &StringMap) -> impl Iterator<Item = (&'static str, String)> + '_ {
    tags.iter().map(|(key, value)| ("tags", format!("{key}:{value}")))
}

fn page_pairs(pairs: &mut Pairs, ordering: Option<&String>, limit: Option<i64>, offset: Option<i64>) {
    pairs.extend(ordering.map(|ordering| ("ordering", ordering.clone())));
    pairs.extend(limit.map(|limit| ("limit", limit.to_string())));
    pairs.extend(offset.map(|offset| ("offset", offset.to_string())));
}

/// Sites.
impl Client {
    /// The user's Sites.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn list_sites(&self) -> Result<Vec<Site>, ClientError> {
        Ok(self.get::<Page<Site>>("sites/", &()).await?.results)
    }
    /// One Site.
    ///
    /// # Errors
    /// `not_found`
    pub async fn get_site(&self, id: SiteId) -> Result<Site, ClientError> {
        self.get(&format!("sites/{id}"), &()).await
    }
    /// Makes a Site.
    ///
    /// # Errors
    /// `conflict` when the name is taken.
    pub async fn create_site(&self, site: &SiteCreate) -> Result<Site, ClientError> {
        self.post("sites/", site).await
    }
    /// Changes a Site.
    ///
    /// # Errors
    /// `not_found`; `conflict` when the new name is taken.
    pub async fn update_site(&self, id: SiteId, patch: &SitePatch) -> Result<Site, ClientError> {
        self.put(&format!("sites/{id}"), patch).await
    }
    /// Deletes a Site with all that hangs on it.
    ///
    /// # Errors
    /// `not_found`
    pub async fn delete_site(&self, id: SiteId) -> Result<(), ClientError> {
        self.delete(&format!("sites/{id}")).await
    }
}

/// Apps.
impl Client {
    /// The Apps of these Sites; of all the user's Sites when none is named.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn list_apps(&self, site_ids: &[SiteId]) -> Result<Vec<App>, ClientError> {
        let pairs: Pairs = site_ids.iter().map(|id| ("site_id", id.to_string())).collect();
        Ok(self.get::<Page<App>>("apps/", &pairs).await?.results)
    }
    /// Registers an App.
    ///
    /// # Errors
    /// `not_found` for an unknown Site; `conflict` when the name is taken there.
    pub async fn create_app(&self, app: &AppCreate) -> Result<App, ClientError> {
        self.post("apps/", app).await
    }
    /// Changes an App.
    ///
    /// # Errors
    /// `not_found`; `conflict`
    pub async fn update_app(&self, id: AppId, patch: &AppPatch) -> Result<App, ClientError> {
        self.put(&format!("apps/{id}"), patch).await
    }
    /// Deletes an App and its Jobs.
    ///
    /// # Errors
    /// `not_found`
    pub async fn delete_app(&self, id: AppId) -> Result<(), ClientError> {
        self.delete(&format!("apps/{id}")).await
    }
}

/// Jobs.
impl Client {
    /// Creates up to 5000 Jobs, all or none. `key` makes a repeated call create nothing again.
    ///
    /// # Errors
    /// `not_found` for an unknown App or parent; `invalid` for a bad value or parameter.
    pub async fn create_jobs(&self, jobs: &[JobCreate], key: Uuid) -> Result<Vec<Job>, ClientError> {
        let request = self.request(Method::POST, "jobs/").header("Idempotency-Key", key.to_string()).json(jobs);
        self.fetch(request).await
    }
    /// Creates an array of up to a million Jobs. `key` makes a repeated call create nothing again.
    ///
    /// # Errors
    /// `not_found` for an unknown App or parent; `invalid` for a bad value or parameter.
    pub async fn create_job_array(&self, array: &JobArrayCreate, key: Uuid) -> Result<JobArray, ClientError> {
        let request = self.request(Method::POST, "job-arrays/").timeout(ARRAY_TIMEOUT);
        self.fetch(request.header("Idempotency-Key", key.to_string()).json(array)).await
    }
    /// The Jobs that match.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn list_jobs(&self, query: &JobQuery) -> Result<Page<Job>, ClientError> {
        self.get("jobs/", &query.pairs()).await
    }
    /// How many Jobs match.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn count_jobs(&self, query: &JobQuery) -> Result<i64, ClientError> {
        let query = JobQuery { limit: Some(0), offset: None, ..query.clone() };
        Ok(self.list_jobs(&query).await?.count)
    }
    /// How many Jobs match, by state. States without any are left out.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn count_jobs_by_state(
        &self,
        query: &JobQuery,
    ) -> Result<std::collections::BTreeMap<JobState, i64>, ClientError> {
        self.get("jobs/by-state", &query.pairs()).await
    }
    /// One Job.
    ///
    /// # Errors
    /// `not_found`
    pub async fn get_job(&self, id: JobId) -> Result<Job, ClientError> {
        self.get(&format!("jobs/{id}"), &()).await
    }
    /// Why one Job is not running.
    ///
    /// # Errors
    /// `not_found`
    pub async fn why_job(&self, id: JobId) -> Result<Why, ClientError> {
        self.get(&format!("jobs/{id}/why"), &()).await
    }
    /// The runs of one Job, oldest first.
    ///
    /// # Errors
    /// `not_found`
    pub async fn list_attempts(&self, id: JobId) -> Result<Vec<Attempt>, ClientError> {
        self.get(&format!("jobs/{id}/attempts"), &()).await
    }
    /// Changes Jobs, each in its own way, all or none.
    ///
    /// # Errors
    /// `conflict` for unknown or doubled ids.
    pub async fn update_jobs(&self, patches: &[JobPatchItem]) -> Result<i64, ClientError> {
        self.patch("jobs/", &patches).await
    }
    /// Changes all Jobs that match in the same way.
    ///
    /// # Errors
    /// `bulk_too_large` when more than 5000 match.
    pub async fn update_matching_jobs(&self, query: &JobQuery, patch: &JobPatch) -> Result<i64, ClientError> {
        self.fetch(self.request(Method::PUT, "jobs/").query(&query.pairs()).json(patch)).await
    }
    /// Cancels all Jobs that match and are not at an end.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn cancel_jobs(&self, query: &JobQuery) -> Result<Cancelled, ClientError> {
        self.fetch(self.request(Method::POST, "jobs/cancel").query(&query.pairs())).await
    }
    /// Deletes all Jobs that match and that nobody holds.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn delete_jobs(&self, query: &JobQuery) -> Result<(), ClientError> {
        self.done(self.request(Method::DELETE, "jobs/").query(&query.pairs())).await
    }
}

/// BatchJobs.
impl Client {
    /// Asks for an allocation.
    ///
    /// # Errors
    /// `conflict` for an unknown Site; `invalid` for a bad value.
    pub async fn create_batch_job(&self, batch_job: &BatchJobCreate) -> Result<BatchJob, ClientError> {
        self.post("batch-jobs/", batch_job).await
    }
    /// The BatchJobs of these Sites (all when none is named) in these states (any when none is named).
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn list_batch_jobs(
        &self,
        site_ids: &[SiteId],
        states: &[BatchJobState],
    ) -> Result<Vec<BatchJob>, ClientError> {
        let mut pairs: Pairs = site_ids.iter().map(|id| ("site_id", id.to_string())).collect();
        pairs.extend(states.iter().map(|state| ("state", state.to_string())));
        Ok(self.get::<Page<BatchJob>>("batch-jobs/", &pairs).await?.results)
    }
    /// One BatchJob.
    ///
    /// # Errors
    /// `not_found`
    pub async fn get_batch_job(&self, id: BatchJobId) -> Result<BatchJob, ClientError> {
        self.get(&format!("batch-jobs/{id}"), &()).await
    }
    /// Changes a BatchJob.
    ///
    /// # Errors
    /// `not_found`
    pub async fn update_batch_job(&self, id: BatchJobId, patch: &BatchJobPatch) -> Result<BatchJob, ClientError> {
        self.put(&format!("batch-jobs/{id}"), patch).await
    }
    /// Changes BatchJobs, each in its own way, all or none.
    ///
    /// # Errors
    /// `conflict` for unknown ids.
    pub async fn update_batch_jobs(&self, patches: &[BatchJobPatchItem]) -> Result<Vec<BatchJob>, ClientError> {
        self.patch("batch-jobs/", &patches).await
    }
}

/// Events.
impl Client {
    /// The events that match, newest first.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn list_events(&self, query: &EventQuery) -> Result<Page<Event>, ClientError> {
        self.get("events/", &query.pairs()).await
    }
}

/// Transfers.
impl Client {
    /// The transfers of a Site's Jobs, in these states, one way or both.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn list_transfers(
        &self,
        site_id: SiteId,
        states: &[TransferState],
        direction: Option<Direction>,
        limit: i64,
    ) -> Result<Vec<TransferItem>, ClientError> {
        let spelled = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let mut pairs: Pairs = vec![("site_id", site_id.to_string()), ("limit", limit.to_string())];
        pairs.extend(states.iter().map(|state| ("state", spelled(serde_json::json!(state)))));
        pairs.extend(direction.map(|direction| ("direction", spelled(serde_json::json!(direction)))));
        Ok(self.get::<Page<TransferItem>>("transfers/", &pairs).await?.results)
    }
    /// The transfers of a Site in these states that a Job waits for now.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn due_transfers(
        &self,
        site_id: SiteId,
        states: &[TransferState],
        limit: usize,
    ) -> Result<Vec<DueTransfer>, ClientError> {
        let spelled = |state: &TransferState| serde_json::json!(state).as_str().unwrap_or_default().to_owned();
        let mut pairs: Pairs = vec![("site_id", site_id.to_string()), ("limit", limit.to_string())];
        pairs.extend(states.iter().map(|state| ("state", spelled(state))));
        self.get("transfers/due", &pairs).await
    }
    /// The transfers of a Job.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn list_transfers_of(&self, job_id: JobId) -> Result<Vec<TransferItem>, ClientError> {
        Ok(self.get::<Page<TransferItem>>("transfers/", &[("job_id", job_id.to_string())]).await?.results)
    }
    /// One transfer.
    ///
    /// # Errors
    /// `not_found`
    pub async fn get_transfer(&self, id: TransferId) -> Result<TransferItem, ClientError> {
        self.get(&format!("transfers/{id}"), &()).await
    }
    /// Takes a batch of the transfers of a Site that a Job waits for now, of one location and one direction; waits as long
    /// as the claim says for the first.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn claim_transfers(&self, claim: &TransferClaim) -> Result<Vec<DueTransfer>, ClientError> {
        let request = self.request(Method::POST, "transfers/due").json(claim);
        self.fetch(request.timeout(patience(claim.wait_sec))).await
    }
    /// Changes transfers, each in its own way, all or none.
    ///
    /// # Errors
    /// `conflict` for unknown ids.
    pub async fn update_transfers(&self, patches: &[TransferPatchItem]) -> Result<(), ClientError> {
        self.done(self.request(Method::PATCH, "transfers/").header("Prefer", "return=minimal").json(patches)).await
    }
}
