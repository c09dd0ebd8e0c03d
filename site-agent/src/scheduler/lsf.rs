//! LSF: argv in, JSON out; reading it is `lsf/parse.rs`. The script goes in on standard input, which is
//! the one way in which every LSF reads its `#BSUB` lines.

pub mod parse;

use std::{fs::File, time::Duration};

use chrono::Utc;
use copal_schemas::batch_job::SchedulerId;
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::Notify;

use super::{
    Scheduler, SchedulerError, Status, SubmitError, SubmitSpec, Tracked,
    command::{CommandError, Runner},
    reply::SubmitReply,
};
use crate::records::RecordError;

const RUNNER: Runner = Runner { limit: Duration::from_secs(90), env: &[("LSB_DISPLAY_YEAR", "Y")], scrub };

/// What LSF sets in an allocation. Where the cluster is, is not among it.
fn scrub(name: &str) -> bool {
    let kept = ["LSF_ENVDIR", "LSF_BINDIR", "LSF_LIBDIR", "LSF_SERVERDIR", "LSB_DEFAULTPROJECT"];
    ["LSB_", "LS_", "LSF_PM_", "PMI_", "PMIX_", "JSM_"].iter().any(|prefix| name.starts_with(prefix))
        && !kept.contains(&name)
}

/// An LSF cluster, through its commands.
#[derive(Default)]
pub struct Lsf {
    changed: Notify,
}

impl Lsf {
    async fn submit_script(&self, spec: &SubmitSpec) -> Result<SchedulerId, SubmitError> {
        let script = File::open(&spec.script)
            .map_err(|source| SubmitError::Unsure(RecordError { path: spec.script.clone(), source }.into()))?;
        let output = spec.output.display().to_string();
        // A job that is rerun would run a second launcher under the same BatchJob.
        let args = ["-J", &spec.key, "-o", &output, "-rn"];
        let answer =
            RUNNER.run_with("bsub", &args, script.into()).await.map_err(|error| SubmitError::Unsure(error.into()))?;
        SubmitReply::read(&answer, parse::job_id).outcome("bsub")
    }

    /// All jobs of the user, those that ended a while ago included.
    async fn rows(&self) -> Result<Vec<parse::Row>, SchedulerError> {
        let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.name);
        let args = ["-a", "-u", user.as_deref().unwrap_or("all"), "-o", parse::FIELDS, "-json"];
        let answer = RUNNER.run("bjobs", &args).await?;
        let text = if parse::means_none(&answer) { String::new() } else { answer.success("bjobs")? };
        parse::bjobs(&text, Utc::now()).map_err(|text| SchedulerError::Answer { command: "bjobs".into(), text })
    }

    async fn find_name(&self, key: &str) -> Result<Option<SchedulerId>, SchedulerError> {
        Ok(self.rows().await?.into_iter().rfind(|row| row.name == key).map(|row| SchedulerId(row.id)))
    }

    async fn look(&self, jobs: &[Tracked]) -> Result<Vec<Status>, SchedulerError> {
        let rows = self.rows().await?;
        let status =
            |job: &Tracked| rows.iter().rfind(|row| row.name == job.key).map_or(Status::Absent, parse::Row::status);
        Ok(jobs.iter().map(status).collect())
    }

    async fn cancel_jobs(&self, jobs: &[Tracked]) -> Result<(), SchedulerError> {
        // INT, then TERM, then KILL, with the queue's JOB_TERMINATE_INTERVAL between them.
        let ids: Vec<&str> = jobs.iter().map(|job| job.id.0.as_str()).collect();
        match RUNNER.run_ok("bkill", &ids).await {
            Err(CommandError::Failed { text, .. }) if parse::is_over(&text) => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }
}

impl Scheduler for Lsf {
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

    /// LSF tells nobody; the period finds out.
    fn changed(&self) -> &Notify {
        &self.changed
    }
}
