//! The service, as far as `queue_sync` talks to it.

use anyhow::Context as _;
use copal_client::{ClientError, launcher_login::LauncherLogin};
use copal_schemas::{
    BatchJobId, Timestamp,
    batch_job::{BatchJob, BatchJobPatch, BatchJobState},
    problem::ErrorCode,
};

use crate::tasks::Context;

const OPEN_STATES: &[BatchJobState] =
    &[BatchJobState::PendingSubmission, BatchJobState::Queued, BatchJobState::Running, BatchJobState::PendingDeletion];

/// Who knows the Site's BatchJobs and is told what became of them.
pub(super) trait Desk: Send + Sync {
    /// The BatchJobs that are not over.
    fn open_batch_jobs(&self) -> impl Future<Output = anyhow::Result<Vec<BatchJob>>> + Send;

    /// Leaves what the launcher of a BatchJob logs in with when it starts.
    fn equip(&self, id: BatchJobId) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Tells what became of one. That it was deleted meanwhile is no error: nobody wants to know.
    fn report(&self, id: BatchJobId, patch: &BatchJobPatch) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// The last sign of life of a BatchJob's launcher; `None` when it has no open Session.
    fn last_heartbeat(&self, id: BatchJobId) -> impl Future<Output = anyhow::Result<Option<Timestamp>>> + Send;

    /// Delivers what the launcher of a BatchJob that has ended left to report.
    fn deliver(&self, id: BatchJobId) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// The service itself.
pub(super) struct ServiceDesk {
    context: Context,
}

impl ServiceDesk {
    pub(super) fn new(context: &Context) -> Self {
        Self { context: context.clone() }
    }

    fn launcher_login(&self, id: BatchJobId) -> LauncherLogin {
        LauncherLogin::new(&self.context.dir.qsubmit(), id)
    }
}

impl Desk for ServiceDesk {
    async fn open_batch_jobs(&self) -> anyhow::Result<Vec<BatchJob>> {
        Ok(self.context.api.client().list_batch_jobs(&[self.context.site.id], OPEN_STATES).await?)
    }

    async fn equip(&self, id: BatchJobId) -> anyhow::Result<()> {
        let client = self.context.api.client();
        let secret = client.create_launcher_secret(id).await?;
        let agent = client.credentials().context("the agent has no credentials")?;
        Ok(self.launcher_login(id).leave(&agent, secret)?)
    }

    async fn report(&self, id: BatchJobId, patch: &BatchJobPatch) -> anyhow::Result<()> {
        match self.context.api.client().update_batch_job(id, patch).await {
            Ok(_) => {}
            Err(ClientError::Problem(problem)) if problem.code == ErrorCode::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        if patch.state.is_some_and(BatchJobState::is_over) {
            // The service ended what they hold.
            self.launcher_login(id).remove();
        }
        Ok(())
    }

    async fn last_heartbeat(&self, id: BatchJobId) -> anyhow::Result<Option<Timestamp>> {
        let sessions = self.context.api.client().list_sessions().await?;
        let own = sessions.into_iter().filter(|session| session.batch_job_id == Some(id));
        Ok(own.map(|session| session.heartbeat).max())
    }

    async fn deliver(&self, id: BatchJobId) -> anyhow::Result<()> {
        self.context.spool.deliver(&self.context, Some(id)).await.map(drop)
    }
}
