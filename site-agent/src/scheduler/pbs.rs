//! OpenPBS and PBS Pro: argv in, text out; reading the text is `pbs/parse.rs`. Jobs are asked for by
//! id and in `qstat -f`'s own text form: its JSON is broken by what users put into their environments.

pub mod nodes;
pub mod parse;

use std::{collections::BTreeMap, time::Duration};

use chrono::Utc;
use copal_schemas::{batch_job::SchedulerId, resources::NodeShape, settings::QueueLimits, site::ALL_NODES};
use futures_util::future::{BoxFuture, FutureExt};

use super::{
    Adapter, SchedulerError, Status, SubmitError, SubmitSpec, Tracked,
    command::{CommandError, Output, Runner, batches},
    ids,
    inventory::{Discovered, Inventory, Nodes},
    listing::Listing,
    reply::SubmitReply,
    user_name,
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
pub struct Pbs;

impl Adapter for Pbs {
    async fn submit(&self, spec: &SubmitSpec) -> Result<SchedulerId, SubmitError> {
        let (output, script) = (spec.output.display().to_string(), spec.script.display().to_string());
        // Without -V: what a user exports may be unreadable to PBS. A job that is rerun would run a second launcher
        // under the same BatchJob.
        let args = ["-N", &spec.key, "-j", "oe", "-o", &output, "-r", "n", &script];
        let answer = RUNNER.run("qsub", &args).await.map_err(|error| SubmitError::Unsure(error.into()))?;
        SubmitReply::read("qsub", &answer, parse::job_id).outcome("qsub")
    }

    async fn find(&self, key: &str) -> Result<Option<SchedulerId>, SchedulerError> {
        let user = user_name();
        let mut args = vec!["-x", "-N", key];
        args.extend(user.iter().flat_map(|user| ["-u", user.as_str()]));
        let list = match RUNNER.run_ok("qselect", &args).await {
            // A server that keeps no history refuses -x.
            Err(CommandError::Failed { .. }) => RUNNER.run_ok("qselect", &args[1..]).await?,
            list => list?,
        };
        Ok(list.lines().map(str::trim).rfind(|line| !line.is_empty()).map(|id| SchedulerId(id.into())))
    }

    /// By id: a question for all of the user's would bring along what a year of history holds. An id that the server
    /// has forgotten is left out of its answer.
    async fn statuses(&self, jobs: &[Tracked]) -> Result<Vec<Status>, SchedulerError> {
        let mut listing = Listing::default();
        for ids in batches(&ids(jobs)) {
            let with_history = [&["-x", "-f"], ids].concat();
            let text = match answer(RUNNER.run("qstat", &with_history).await?, "qstat") {
                Err(CommandError::Failed { text, .. }) if text.contains("history") => {
                    answer(RUNNER.run("qstat", &[&["-f"], ids].concat()).await?, "qstat")?
                }
                text => text?,
            };
            let part = parse::qstat(&text, Utc::now())
                .map_err(|text| SchedulerError::Answer { command: "qstat".into(), text })?;
            listing.extend(part);
        }
        Ok(listing.statuses(jobs))
    }

    async fn cancel(&self, jobs: &[Tracked]) -> Result<(), SchedulerError> {
        // TERM to all processes of the job, KILL after the server's kill_delay.
        for ids in batches(&ids(jobs)) {
            answer(RUNNER.run("qdel", ids).await?, "qdel")?;
        }
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

/// The server's nodes and queues.
pub struct Machine {
    /// Queues that the Site may use, with their limits.
    pub queues: BTreeMap<String, QueueLimits>,
}

impl Inventory for Machine {
    fn node_shape(&self) -> BoxFuture<'_, Option<NodeShape>> {
        async { nodes::shape(&RUNNER.run_ok("pbsnodes", &["-a"]).await.ok()?) }.boxed()
    }

    /// Of a machine with several virtual nodes, `pbsnodes -a` alone prints one line of states that differ. Which nodes a
    /// queue may use, PBS does not tell in one form.
    fn nodes(&self) -> BoxFuture<'_, Nodes> {
        async {
            let Ok(text) = RUNNER.run_ok("pbsnodes", &["-a", "-v"]).await else { return Nodes::default() };
            let nodes = nodes::virtual_nodes(&text);
            Nodes {
                windows: Some(nodes::windows(nodes::idle(&nodes), &self.queues)),
                states: Some([(ALL_NODES.to_owned(), nodes::states(&nodes))].into()),
            }
        }
        .boxed()
    }

    fn discover(&self) -> BoxFuture<'_, Result<Option<Discovered>, SchedulerError>> {
        async {
            let queues = RUNNER.run_ok("qstat", &["-Q", "-f"]).await?;
            let nodes = RUNNER.run_ok("pbsnodes", &["-a"]).await?;
            Ok(Some(Discovered { queues: nodes::queues(&queues, nodes::count(&nodes)), projects: Vec::new() }))
        }
        .boxed()
    }
}
