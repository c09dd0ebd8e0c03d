//! Cobalt: argv in, text out; reading the text is `cobalt/parse.rs`. Cobalt forgets a job when it ends;
//! how it ended stands in the log that Cobalt writes beside the script.

pub mod parse;

use std::{fs, path::PathBuf, time::Duration};

use copal_client::SiteDir;
use copal_schemas::batch_job::SchedulerId;
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::Notify;

use super::{
    Scheduler, SchedulerError, Status, SubmitError, SubmitSpec, Tracked,
    command::{CommandError, Runner},
    reply::SubmitReply,
};

const RUNNER: Runner = Runner { limit: Duration::from_secs(90), env: &[("QSTAT_HEADER", parse::HEADER)], scrub };

/// What Cobalt sets in an allocation, and options that a user gives qsub and qstat by variables.
fn scrub(name: &str) -> bool {
    ["COBALT_", "QSTAT_", "PMI_", "ALPS_"].iter().any(|prefix| name.starts_with(prefix))
        && name != "COBALT_CONFIG_FILES"
}

/// A Cobalt system, through its commands.
pub struct Cobalt {
    /// The Site's `qsubmit` folder.
    folder: PathBuf,
    changed: Notify,
}

impl Cobalt {
    /// The system on which this Site is.
    #[must_use]
    pub fn new(site: &SiteDir) -> Self {
        Self { folder: site.qsubmit(), changed: Notify::new() }
    }

    fn log_path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.cobaltlog"))
    }

    /// What Cobalt wrote about a job; empty when nothing yet.
    fn log(&self, key: &str) -> String {
        fs::read(self.log_path(key)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    async fn submit_script(&self, spec: &SubmitSpec) -> Result<SchedulerId, SubmitError> {
        let (output, script) = (spec.output.display().to_string(), spec.script.display().to_string());
        let log = self.log_path(&spec.key).display().to_string();
        let args =
            ["--mode", "script", "--jobname", &spec.key, "--debuglog", &log, "-o", &output, "-e", &output, &script];
        let answer = RUNNER.run("qsub", &args).await.map_err(|error| SubmitError::Unsure(error.into()))?;
        SubmitReply::read(&answer, parse::job_id).outcome("qsub")
    }

    /// All jobs of the user that are not over.
    async fn rows(&self) -> Result<Vec<parse::Row>, SchedulerError> {
        let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.name);
        let args: Vec<&str> = user.as_deref().map_or_else(Vec::new, |user| vec!["-u", user]);
        let text = RUNNER.run_ok("qstat", &args).await?;
        parse::qstat(&text).map_err(|text| SchedulerError::Answer { command: "qstat".into(), text })
    }

    async fn find_name(&self, key: &str) -> Result<Option<SchedulerId>, SchedulerError> {
        let listed = self.rows().await?.into_iter().rfind(|row| row.name == key).map(|row| row.id);
        Ok(listed.or_else(|| parse::logged_id(&self.log(key))).map(SchedulerId))
    }

    async fn look(&self, jobs: &[Tracked]) -> Result<Vec<Status>, SchedulerError> {
        let rows = self.rows().await?;
        let status = |job: &Tracked| match rows.iter().rfind(|row| row.name == job.key) {
            Some(row) => row.status(),
            None => parse::ending(&self.log(&job.key)).map_or(Status::Absent, Status::Ended),
        };
        Ok(jobs.iter().map(status).collect())
    }

    async fn cancel_jobs(&self, jobs: &[Tracked]) -> Result<(), SchedulerError> {
        let ids: Vec<&str> = jobs.iter().map(|job| job.id.0.as_str()).collect();
        match RUNNER.run_ok("qdel", &ids).await {
            Err(CommandError::Failed { text, .. }) if parse::is_over(&text) => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }
}

impl Scheduler for Cobalt {
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

    /// Cobalt tells nobody; the period finds out.
    fn changed(&self) -> &Notify {
        &self.changed
    }
}
