//! Flux: argv in, text out; reading the text is `flux/parse.rs`. The instance is the one that `FLUX_URI`
//! or the system names.

pub mod parse;

use std::time::Duration;

use copal_schemas::{batch_job::SchedulerId, resources::NodeShape};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::Notify;

use super::{
    Scheduler, SchedulerError, Status, SubmitError, SubmitSpec, Tracked,
    command::{CommandError, Runner},
    reply::SubmitReply,
};

const RUNNER: Runner = Runner { limit: Duration::from_secs(90), env: &[], scrub };

/// What Flux sets for a task. Where the instance is (`FLUX_URI`), is not among it.
fn scrub(name: &str) -> bool {
    ["FLUX_JOB_", "FLUX_TASK_", "FLUX_PMI", "PMI_", "PMIX_"].iter().any(|prefix| name.starts_with(prefix))
}

/// A Flux instance, through its commands.
#[derive(Default)]
pub struct Flux {
    changed: Notify,
}

impl Flux {
    async fn submit_script(&self, spec: &SubmitSpec) -> Result<SchedulerId, SubmitError> {
        let name = format!("--job-name={}", spec.key);
        let output = format!("--output={}", spec.output.display());
        let script = spec.script.display().to_string();
        let answer = RUNNER
            .run("flux", &["batch", &name, &output, &script])
            .await
            .map_err(|error| SubmitError::Unsure(error.into()))?;
        SubmitReply::read(&answer, parse::job_id).outcome("flux batch")
    }

    /// All jobs of the user, those that ended included.
    async fn rows(&self) -> Result<Vec<parse::Row>, SchedulerError> {
        let answer = RUNNER.run("flux", &["jobs", "-a", "-n", "-c", "0", "-o", parse::FORMAT]).await?;
        parse::jobs(&answer.success("flux jobs")?)
            .map_err(|text| SchedulerError::Answer { command: "flux jobs".into(), text })
    }

    async fn find_name(&self, key: &str) -> Result<Option<SchedulerId>, SchedulerError> {
        // The newest comes first.
        Ok(self.rows().await?.into_iter().find(|row| row.name == key).map(|row| SchedulerId(row.id)))
    }

    async fn look(&self, jobs: &[Tracked]) -> Result<Vec<Status>, SchedulerError> {
        let rows = self.rows().await?;
        let status =
            |job: &Tracked| rows.iter().find(|row| row.name == job.key).map_or(Status::Absent, parse::Row::status);
        Ok(jobs.iter().map(status).collect())
    }

    async fn cancel_jobs(&self, jobs: &[Tracked]) -> Result<(), SchedulerError> {
        // TERM to the script, KILL after the instance's kill-timeout.
        let args: Vec<&str> = std::iter::once("cancel").chain(jobs.iter().map(|job| job.id.0.as_str())).collect();
        match RUNNER.run_ok("flux", &args).await {
            Err(CommandError::Failed { text, .. }) if parse::is_over(&text) => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }
}

/// What one node has, where all nodes of the instance are alike.
pub async fn node_shape() -> Option<NodeShape> {
    let args = ["resource", "list", "-n", "-s", "free,allocated", "-o", "{nnodes}|{ncores}|{ngpus}"];
    parse::node_shape(&RUNNER.run_ok("flux", &args).await.ok()?)
}

impl Scheduler for Flux {
    fn submit<'a>(&'a self, spec: &'a SubmitSpec) -> BoxFuture<'a, Result<SchedulerId, SubmitError>> {
        self.submit_script(spec).boxed()
    }

    fn find<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<SchedulerId>, SchedulerError>> {
        self.find_name(key).boxed()
    }

    fn statuses<'a>(&'a self, jobs: &'a [Tracked]) -> BoxFuture<'a, Result<Vec<Status>, SchedulerError>> {
        self.look(jobs).boxed()
    }

    fn cancel<'a>(&'a self, jobs: &'a [Tracked]) -> BoxFuture<'a, Result<(), SchedulerError>> {
        self.cancel_jobs(jobs).boxed()
    }

    fn lost_after(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Looked at by the period.
    fn changed(&self) -> &Notify {
        &self.changed
    }
}
