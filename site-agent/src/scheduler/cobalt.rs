//! Cobalt: argv in, text out; reading the text is `cobalt/parse.rs`. Cobalt forgets a job when it ends;
//! how it ended stands in the log that Cobalt writes beside the script.

pub mod nodes;
pub mod parse;
pub mod queues;

use std::{fs, path::PathBuf, time::Duration};

use copal_client::SiteDir;
use copal_schemas::batch_job::SchedulerId;
use futures_util::future::{BoxFuture, FutureExt};

use super::{
    Adapter, SchedulerError, Status, SubmitError, SubmitSpec, Tracked,
    command::{CommandError, Runner, batches},
    ids,
    inventory::{Discovered, Inventory, Nodes},
    listing::Listing,
    reply::SubmitReply,
    user_name,
};

const RUNNER: Runner = Runner { limit: Duration::from_secs(90), env: &[("QSTAT_HEADER", parse::HEADER)], scrub };
/// For what has columns of its own.
const PLAIN: Runner = Runner { env: &[], ..RUNNER };

/// What Cobalt sets in an allocation, and options that a user gives qsub and qstat by variables.
fn scrub(name: &str) -> bool {
    ["COBALT_", "QSTAT_", "PMI_", "ALPS_"].iter().any(|prefix| name.starts_with(prefix))
        && name != "COBALT_CONFIG_FILES"
}

/// A Cobalt system, through its commands.
pub struct Cobalt {
    /// The Site's `qsubmit` folder.
    folder: PathBuf,
}

impl Cobalt {
    /// The system on which this Site is.
    #[must_use]
    pub fn new(site: &SiteDir) -> Self {
        Self { folder: site.qsubmit() }
    }

    fn log_path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.cobaltlog"))
    }

    /// What Cobalt wrote about a job; empty when nothing yet.
    fn log(&self, key: &str) -> String {
        fs::read(self.log_path(key)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// All jobs of the user that are not over.
    async fn jobs(&self) -> Result<Listing<parse::Row>, SchedulerError> {
        let user = user_name();
        let args: Vec<&str> = user.as_deref().map_or_else(Vec::new, |user| vec!["-u", user]);
        let text = RUNNER.run_ok("qstat", &args).await?;
        parse::qstat(&text).map_err(|text| SchedulerError::Answer { command: "qstat".into(), text })
    }
}

impl Adapter for Cobalt {
    async fn submit(&self, spec: &SubmitSpec) -> Result<SchedulerId, SubmitError> {
        let (output, script) = (spec.output.display().to_string(), spec.script.display().to_string());
        let log = self.log_path(&spec.key).display().to_string();
        let args =
            ["--mode", "script", "--jobname", &spec.key, "--debuglog", &log, "-o", &output, "-e", &output, &script];
        let answer = RUNNER.run("qsub", &args).await.map_err(|error| SubmitError::Unsure(error.into()))?;
        SubmitReply::read("qsub", &answer, parse::job_id).outcome("qsub")
    }

    async fn find(&self, key: &str) -> Result<Option<SchedulerId>, SchedulerError> {
        let listed = self.jobs().await?.find(key);
        Ok(listed.or_else(|| parse::logged_id(&self.log(key)).map(SchedulerId)))
    }

    async fn statuses(&self, jobs: &[Tracked]) -> Result<Vec<Status>, SchedulerError> {
        let listing = self.jobs().await?;
        let status = |job: &Tracked| match listing.status(job) {
            // What it has logged is evidence, whatever the list lacks.
            unseen @ (Status::Absent | Status::Unknown) => {
                parse::ending(&self.log(&job.key)).map_or(unseen, Status::Ended)
            }
            seen => seen,
        };
        Ok(jobs.iter().map(status).collect())
    }

    async fn cancel(&self, jobs: &[Tracked]) -> Result<(), SchedulerError> {
        for ids in batches(&ids(jobs)) {
            match RUNNER.run_ok("qdel", ids).await {
                Err(CommandError::Failed { text, .. }) if parse::is_over(&text) => {}
                answer => drop(answer?),
            }
        }
        Ok(())
    }
}

/// The system's nodes and queues.
pub struct Machine;

impl Inventory for Machine {
    /// A window lasts for as long as Cobalt leaves the nodes free.
    fn nodes(&self) -> BoxFuture<'_, Nodes> {
        async {
            let text = RUNNER.run_ok("nodelist", &[]).await.unwrap_or_default();
            nodes::nodes(&text).map_or_else(Nodes::default, |nodes| Nodes {
                windows: Some(nodes::windows(&nodes)),
                states: Some(nodes::states(&nodes)),
            })
        }
        .boxed()
    }

    /// Cobalt does not know who may pay.
    fn discover(&self) -> BoxFuture<'_, Result<Option<Discovered>, SchedulerError>> {
        async {
            let queues = queues::queues(&PLAIN.run_ok("qstat", &["-Q"]).await?, user_name().as_deref());
            let text = RUNNER.run_ok("nodelist", &[]).await?;
            let nodes = nodes::nodes(&text).ok_or_else(|| SchedulerError::unread("nodelist", &text))?;
            Ok(Some(Discovered { queues: queues::limits(&queues, &nodes), projects: Vec::new() }))
        }
        .boxed()
    }
}
