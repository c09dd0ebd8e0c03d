//! Slurm: argv in, text out; reading the text is `slurm/parse.rs`. Fields are asked for by name and
//! times as epoch seconds, so that neither a site's defaults nor its time zone matter.

pub mod nodes;
pub mod parse;

use std::time::Duration;

use copal_schemas::{batch_job::SchedulerId, resources::NodeShape};
use futures_util::future::{BoxFuture, FutureExt};

use super::{
    Adapter, SchedulerError, Status, SubmitError, SubmitSpec, Tracked,
    command::{Runner, batches},
    ids,
    inventory::{Discovered, Inventory, Nodes},
    listing::Listing,
    reply::SubmitReply,
    user_name,
};

/// Clients themselves give up after MessageTimeout (10 s by default) times a few tries.
const RUNNER: Runner =
    Runner { limit: Duration::from_secs(90), env: &[("SLURM_TIME_FORMAT", "%s")], scrub: of_an_allocation };
/// How far back accounting is searched for a name.
const SEARCHED: &str = "now-14days";

/// What Slurm sets in an allocation. Where the configuration is, is not among it.
fn of_an_allocation(name: &str) -> bool {
    let kept = ["SLURM_CONF", "SLURM_CLUSTERS"];
    let set = ["SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "PMI_", "PMIX_"];
    set.iter().any(|prefix| name.starts_with(prefix)) && !kept.contains(&name)
}

/// A Slurm cluster, through its commands.
pub struct Slurm;

impl Slurm {
    /// What accounting knows about these jobs; nothing where there is no accounting.
    async fn history(&self, ids: &[&str]) -> Listing<parse::Row> {
        let mut history = Listing::default();
        for ids in batches(ids) {
            let args = ["-n", "-P", "-X", "-j", &ids.join(","), "-o", parse::SACCT_FIELDS];
            match RUNNER.run_ok("sacct", &args).await {
                Ok(text) => history.extend(parse::rows(&text)),
                Err(error) => tracing::debug!("no history: {error}"),
            }
        }
        history
    }
}

impl Adapter for Slurm {
    async fn submit(&self, spec: &SubmitSpec) -> Result<SchedulerId, SubmitError> {
        // `%` in a file name stands for ids and names; doubled it stands for itself.
        let output = spec.output.display().to_string().replace('%', "%%");
        let script = spec.script.display().to_string();
        let avoid = format!("--exclude={}", spec.avoid.join(","));
        // A job that is requeued would run a second launcher under the same BatchJob.
        let mut args = vec!["--parsable", "--no-requeue", "-J", &spec.key, "-o", &output];
        if !spec.avoid.is_empty() {
            args.push(&avoid);
        }
        args.push(&script);
        let answer = RUNNER.run("sbatch", &args).await.map_err(|error| SubmitError::Unsure(error.into()))?;
        SubmitReply::read("sbatch", &answer, parse::job_id).outcome("sbatch")
    }

    async fn find(&self, key: &str) -> Result<Option<SchedulerId>, SchedulerError> {
        let list = RUNNER.run_ok("squeue", &["-h", "-t", "all", "-n", key, "-o", parse::SQUEUE_FORMAT]).await?;
        if let Some(id) = parse::rows(&list).find(key) {
            return Ok(Some(id));
        }
        let args = ["-n", "-P", "-X", "-S", SEARCHED, "--name", key, "-o", parse::SACCT_FIELDS];
        let history = RUNNER.run("sacct", &args).await?;
        // Without accounting squeue has said all there is to say.
        Ok(history.success("sacct").ok().and_then(|text| parse::rows(&text).find(key)))
    }

    async fn statuses(&self, jobs: &[Tracked]) -> Result<Vec<Status>, SchedulerError> {
        // All of the user's, not these ids: an id that is purged in between would fail the whole question. And in
        // all states: a version that lacks a state's name would refuse a list of them.
        let user = nix::unistd::getuid().to_string();
        let list = RUNNER.run_ok("squeue", &["-h", "-t", "all", "-u", &user, "-o", parse::SQUEUE_FORMAT]).await?;
        let mut statuses = parse::rows(&list).statuses(jobs);
        let is_over = |status: &Status| matches!(status, Status::Absent | Status::Unknown | Status::Ended(_));
        let over: Vec<&str> =
            ids(jobs).into_iter().zip(&statuses).filter(|(_, status)| is_over(status)).map(|(id, _)| id).collect();
        if !over.is_empty() {
            let history = self.history(&over).await;
            for (job, status) in jobs.iter().zip(&mut statuses).filter(|(_, status)| is_over(status)) {
                if let ended @ Status::Ended(_) = history.status(job) {
                    *status = ended;
                }
            }
        }
        Ok(statuses)
    }

    /// Not beside a list of the script's own.
    fn can_avoid(&self, spec: &SubmitSpec) -> bool {
        !spec.says("--exclude")
    }

    async fn cancel(&self, jobs: &[Tracked]) -> Result<(), SchedulerError> {
        // KILL comes KillWait after TERM, which reaches the launcher since the script execs it. Without --full
        // only steps would get it; with it the batch shell does too.
        for ids in batches(&ids(jobs)) {
            RUNNER.run_ok("scancel", &[&["-Q"], ids].concat()).await?;
        }
        Ok(())
    }
}

/// The cluster's nodes, partitions and accounts.
pub struct Machine;

impl Inventory for Machine {
    fn node_shape(&self) -> BoxFuture<'_, Option<NodeShape>> {
        async { parse::node_shape(&RUNNER.run_ok("sinfo", &["-h", "-N", "-o", "%c|%m|%G"]).await.ok()?) }.boxed()
    }

    fn nodes(&self) -> BoxFuture<'_, Nodes> {
        async {
            let Ok(text) = RUNNER.run_ok("sinfo", &["-h", "-o", nodes::SINFO_FORMAT]).await else {
                return Nodes::default();
            };
            let rows = nodes::rows(&text);
            Nodes { windows: Some(nodes::windows(&rows)), states: Some(nodes::states(&rows)) }
        }
        .boxed()
    }

    /// Without accounting there are no accounts to tell.
    fn discover(&self) -> BoxFuture<'_, Result<Option<Discovered>, SchedulerError>> {
        async {
            let partitions = RUNNER.run_ok("scontrol", &["show", "partition", "-o"]).await?;
            let who = format!("user={}", user_name().unwrap_or_default());
            let args = ["-n", "-P", "show", "associations", &who, nodes::ASSOCIATION_FORMAT];
            let associations = RUNNER.run_ok("sacctmgr", &args).await.unwrap_or_default();
            let mut queues = nodes::partitions(&partitions);
            nodes::limit_submissions(&mut queues, &associations);
            Ok(Some(Discovered { queues, projects: nodes::accounts(&associations) }))
        }
        .boxed()
    }
}
