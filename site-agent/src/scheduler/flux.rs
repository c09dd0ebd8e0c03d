//! Flux: argv in, text out; reading the text is `flux/parse.rs`. The instance is the one that `FLUX_URI`
//! or the system names.

pub mod banks;
pub mod nodes;
pub mod parse;

use std::time::Duration;

use copal_schemas::{batch_job::SchedulerId, resources::NodeShape, site::ALL_NODES};
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

const RUNNER: Runner = Runner { limit: Duration::from_secs(90), env: &[], scrub };

/// What Flux sets for a task. Where the instance is (`FLUX_URI`), is not among it.
fn scrub(name: &str) -> bool {
    ["FLUX_JOB_", "FLUX_TASK_", "FLUX_PMI", "PMI_", "PMIX_"].iter().any(|prefix| name.starts_with(prefix))
}

/// A Flux instance, through its commands.
pub struct Flux;

impl Flux {
    /// All jobs of the user, those that ended included.
    async fn jobs(&self) -> Result<Listing<parse::Row>, SchedulerError> {
        let answer = RUNNER.run("flux", &["jobs", "-a", "-n", "-c", "0", "-o", parse::FORMAT]).await?;
        Ok(parse::jobs(&answer.success("flux jobs")?))
    }
}

impl Adapter for Flux {
    async fn submit(&self, spec: &SubmitSpec) -> Result<SchedulerId, SubmitError> {
        let name = format!("--job-name={}", spec.key);
        let output = format!("--output={}", spec.output.display());
        let avoid = format!("--requires=-host:{}", spec.avoid.join(","));
        let script = spec.script.display().to_string();
        let mut args = vec!["batch", &name, &output];
        if !spec.avoid.is_empty() {
            args.push(&avoid);
        }
        args.push(&script);
        let answer = RUNNER.run("flux", &args).await.map_err(|error| SubmitError::Unsure(error.into()))?;
        SubmitReply::read("flux-batch", &answer, parse::job_id).outcome("flux batch")
    }

    async fn find(&self, key: &str) -> Result<Option<SchedulerId>, SchedulerError> {
        Ok(self.jobs().await?.find(key))
    }

    async fn statuses(&self, jobs: &[Tracked]) -> Result<Vec<Status>, SchedulerError> {
        Ok(self.jobs().await?.statuses(jobs))
    }

    /// Not beside a list of the script's own.
    fn can_avoid(&self, spec: &SubmitSpec) -> bool {
        !spec.says("--requires")
    }

    async fn cancel(&self, jobs: &[Tracked]) -> Result<(), SchedulerError> {
        // TERM to the script, KILL after the instance's kill-timeout.
        for ids in batches(&ids(jobs)) {
            match RUNNER.run_ok("flux", &[&["cancel"], ids].concat()).await {
                Err(CommandError::Failed { text, .. }) if parse::is_over(&text) => {}
                answer => drop(answer?),
            }
        }
        Ok(())
    }
}

/// The instance's nodes and queues.
pub struct Machine;

/// What `flux resource list` says in these states, in this form.
async fn resources(states: &str, format: &str) -> Result<String, CommandError> {
    RUNNER.run_ok("flux", &["resource", "list", "-n", "-s", states, "-o", format]).await
}

/// What `flux queue list` says.
async fn queues() -> Result<Vec<nodes::Queue>, CommandError> {
    Ok(nodes::queues(&RUNNER.run_ok("flux", &["queue", "list", "-n", "-o", nodes::QUEUE_FORMAT]).await?))
}

impl Inventory for Machine {
    fn node_shape(&self) -> BoxFuture<'_, Option<NodeShape>> {
        async { nodes::shape(&resources("free,allocated", "{nnodes}|{ncores}|{ngpus}").await.ok()?) }.boxed()
    }

    fn nodes(&self) -> BoxFuture<'_, Nodes> {
        async {
            let Ok(text) = resources("free,allocated,down", nodes::FORMAT).await else { return Nodes::default() };
            let groups = nodes::groups(&text);
            let windows = queues().await.ok().map(|queues| nodes::windows(&queues, &nodes::free(&groups)));
            // Which of them a queue may use is in the windows.
            Nodes { windows, states: Some([(ALL_NODES.to_owned(), nodes::states(&groups))].into()) }
        }
        .boxed()
    }

    /// Who may pay knows flux-accounting, which not every system has.
    fn discover(&self) -> BoxFuture<'_, Result<Option<Discovered>, SchedulerError>> {
        async {
            let all = resources("all", nodes::BY_QUEUE).await?;
            let mut queues = nodes::limits(&queues().await?, &nodes::by_queue(&all));
            let user = user_name().unwrap_or_default();
            let accounts = RUNNER.run_ok("flux", &["account", "view-user", &user]).await.unwrap_or_default();
            let associations = banks::associations(&accounts);
            banks::limit(&mut queues, &associations);
            Ok(Some(Discovered { queues, projects: banks::names(&associations) }))
        }
        .boxed()
    }
}
