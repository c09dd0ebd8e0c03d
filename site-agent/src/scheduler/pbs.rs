//! OpenPBS and PBS Pro: argv in, text out; reading the text is `pbs/parse.rs`. Jobs are asked for by
//! id and in `qstat -f`'s own text form: its JSON is broken by what users put into their environments.

pub mod nodes;
pub mod parse;

use std::{collections::BTreeMap, time::Duration};

use copal_schemas::{batch_job::SchedulerId, resources::NodeShape, settings::QueueLimits, site::BackfillWindow};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::Notify;

use super::{
    Discovered, Scheduler, SchedulerError, Status, SubmitError, SubmitSpec, Tracked,
    command::{CommandError, Output, Runner},
};

const RUNNER: Runner = Runner { limit: Duration::from_secs(60), env: &[], scrub: of_an_allocation };
/// Exit codes of clients that name a job which the server does not know (any more): for the others they are an answer.
const UNKNOWN_JOB: i32 = 153;
const FINISHED_JOB: i32 = 35;

/// What PBS sets in an allocation. Where the server is, is not among it.
fn of_an_allocation(name: &str) -> bool {
    let kept = ["PBS_CONF_FILE", "PBS_EXEC", "PBS_SERVER", "PBS_DEFAULT", "PBS_HOME"];
    ["PBS_", "PMI_", "PMIX_", "PALS_"].iter().any(|prefix| name.starts_with(prefix)) && !kept.contains(&name)
}

/// A PBS server, through its commands.
#[derive(Default)]
pub struct Pbs {
    changed: Notify,
}

impl Pbs {
    async fn submit_script(&self, spec: &SubmitSpec) -> Result<SchedulerId, SubmitError> {
        let (output, script) = (spec.output.display().to_string(), spec.script.display().to_string());
        // Without -V: what a user exports may be unreadable to PBS. A job that is rerun would run a second launcher
        // under the same BatchJob.
        let args = ["-N", &spec.key, "-j", "oe", "-o", &output, "-r", "n", &script];
        let answer = RUNNER.run("qsub", &args).await.map_err(|error| SubmitError::Unsure(error.into()))?;
        match parse::submit_reply(&answer) {
            parse::SubmitReply::Accepted(id) => Ok(SchedulerId(id)),
            parse::SubmitReply::Refused(text) => Err(SubmitError::Refused(text)),
            parse::SubmitReply::Unknown(text) => {
                Err(SubmitError::Unsure(SchedulerError::Answer { command: "qsub".into(), text }))
            }
        }
    }

    async fn find_name(&self, key: &str) -> Result<Option<SchedulerId>, SchedulerError> {
        let list = match RUNNER.run_ok("qselect", &["-x", "-N", key]).await {
            // A server that keeps no history refuses -x.
            Err(CommandError::Failed { .. }) => RUNNER.run_ok("qselect", &["-N", key]).await?,
            list => list?,
        };
        Ok(list.lines().map(str::trim).rfind(|line| !line.is_empty()).map(|id| SchedulerId(id.into())))
    }

    async fn look(&self, jobs: &[Tracked]) -> Result<Vec<Status>, SchedulerError> {
        let ids = || jobs.iter().map(|job| job.id.0.as_str());
        let with_history: Vec<&str> = ["-x", "-f"].into_iter().chain(ids()).collect();
        let list = match answer(RUNNER.run("qstat", &with_history).await?, "qstat") {
            Err(CommandError::Failed { text, .. }) if text.contains("history") => {
                let without: Vec<&str> = std::iter::once("-f").chain(ids()).collect();
                answer(RUNNER.run("qstat", &without).await?, "qstat")?
            }
            list => list?,
        };
        let rows = parse::qstat(&list);
        Ok(jobs
            .iter()
            .map(|job| rows.iter().rfind(|row| row.name == job.key).map_or(Status::Absent, parse::Row::status))
            .collect())
    }

    async fn cancel_jobs(&self, jobs: &[Tracked]) -> Result<(), SchedulerError> {
        // TERM to all processes of the job, KILL after the server's kill_delay.
        let ids: Vec<&str> = jobs.iter().map(|job| job.id.0.as_str()).collect();
        answer(RUNNER.run("qdel", &ids).await?, "qdel")?;
        Ok(())
    }
}

/// The standard output of a client, where some of the jobs that it was asked about may be unknown.
fn answer(output: Output, command: &str) -> Result<String, CommandError> {
    match output.code {
        Some(UNKNOWN_JOB | FINISHED_JOB) => Ok(output.stdout),
        _ => output.success(command),
    }
}

/// What one node has, where all nodes of the server are alike.
pub async fn node_shape() -> Option<NodeShape> {
    parse::node_shape(&RUNNER.run_ok("pbsnodes", &["-a"]).await.ok()?)
}

/// What each of these queues could start now: nodes without any job, for as long as the queue allows.
pub async fn backfill_windows(queues: &BTreeMap<String, QueueLimits>) -> Option<BTreeMap<String, Vec<BackfillWindow>>> {
    let idle = nodes::idle(&RUNNER.run_ok("pbsnodes", &["-a"]).await.ok()?);
    Some(nodes::windows(idle, queues))
}

/// Queues with their limits. PBS does not know who may pay.
///
/// # Errors
/// When PBS does not answer.
pub async fn discover() -> Result<Discovered, SchedulerError> {
    let queues = RUNNER.run_ok("qstat", &["-Q", "-f"]).await?;
    let nodes = RUNNER.run_ok("pbsnodes", &["-a"]).await.unwrap_or_default();
    Ok(Discovered { queues: nodes::queues(&queues, nodes::count(&nodes)), projects: Vec::new() })
}

impl Scheduler for Pbs {
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

    /// PBS tells nobody; the period finds out.
    fn changed(&self) -> &Notify {
        &self.changed
    }
}
