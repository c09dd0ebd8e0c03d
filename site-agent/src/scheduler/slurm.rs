//! Slurm: argv in, text out; reading the text is `slurm/parse.rs`. Fields are asked for by name and
//! times as epoch seconds, so that neither a site's defaults nor its time zone matter.

pub mod nodes;
pub mod parse;

use std::{collections::BTreeMap, time::Duration};

use copal_schemas::{batch_job::SchedulerId, resources::NodeShape, site::BackfillWindow};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::Notify;

use super::{Discovered, Scheduler, SchedulerError, Status, SubmitError, SubmitSpec, Tracked, command::Runner};

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
#[derive(Default)]
pub struct Slurm {
    changed: Notify,
}

impl Slurm {
    async fn submit_script(&self, spec: &SubmitSpec) -> Result<SchedulerId, SubmitError> {
        // `%` in a file name stands for ids and names; doubled it stands for itself.
        let output = spec.output.display().to_string().replace('%', "%%");
        let script = spec.script.display().to_string();
        // A job that is requeued would run a second launcher under the same BatchJob.
        let args = ["--parsable", "--no-requeue", "-J", &spec.key, "-o", &output, &script];
        let answer = RUNNER.run("sbatch", &args).await.map_err(|error| SubmitError::Unsure(error.into()))?;
        match parse::submit_reply(&answer) {
            parse::SubmitReply::Accepted(id) => Ok(SchedulerId(id)),
            parse::SubmitReply::Refused(text) => Err(SubmitError::Refused(text)),
            parse::SubmitReply::Unknown(text) => {
                Err(SubmitError::Unsure(SchedulerError::Answer { command: "sbatch".into(), text }))
            }
        }
    }

    async fn find_name(&self, key: &str) -> Result<Option<SchedulerId>, SchedulerError> {
        let list = RUNNER.run_ok("squeue", &["-h", "-t", "all", "-n", key, "-o", parse::SQUEUE_FORMAT]).await?;
        if let Some(row) = parse::squeue(&list).into_iter().find(|row| row.name == key) {
            return Ok(Some(SchedulerId(row.id)));
        }
        let args = ["-n", "-P", "-X", "-S", SEARCHED, "--name", key, "-o", parse::SACCT_FIELDS];
        let history = RUNNER.run("sacct", &args).await?;
        // Without accounting squeue has said all there is to say.
        let rows = history.success("sacct").map(|text| parse::sacct(&text)).unwrap_or_default();
        Ok(rows.into_iter().rfind(|row| row.name == key).map(|row| SchedulerId(row.id)))
    }

    async fn look(&self, jobs: &[Tracked]) -> Result<Vec<Status>, SchedulerError> {
        // All of the user's, not these ids: an id that is purged in between would fail the whole question.
        let user = nix::unistd::getuid().to_string();
        let list = RUNNER.run_ok("squeue", &["-h", "-t", "all", "-u", &user, "-o", parse::SQUEUE_FORMAT]).await?;
        let rows = parse::squeue(&list);
        let mut statuses: Vec<Status> = jobs
            .iter()
            .map(|job| rows.iter().rfind(|row| row.name == job.key).map_or(Status::Absent, parse::Row::status))
            .collect();
        let over: Vec<usize> =
            (0..jobs.len()).filter(|index| matches!(statuses[*index], Status::Absent | Status::Ended(_))).collect();
        if !over.is_empty() {
            let history = self.history(over.iter().map(|index| &jobs[*index])).await;
            for index in over {
                if let Some(row) = history.iter().rfind(|row| row.name == jobs[index].key)
                    && let Status::Ended(ending) = row.status()
                {
                    statuses[index] = Status::Ended(ending);
                }
            }
        }
        Ok(statuses)
    }

    /// What accounting knows about these jobs; nothing where there is no accounting.
    async fn history<'a>(&self, jobs: impl Iterator<Item = &'a Tracked>) -> Vec<parse::Row> {
        let ids: Vec<&str> = jobs.map(|job| job.id.0.as_str()).collect();
        let args = ["-n", "-P", "-X", "-j", &ids.join(","), "-o", parse::SACCT_FIELDS];
        match RUNNER.run_ok("sacct", &args).await {
            Ok(text) => parse::sacct(&text),
            Err(error) => {
                tracing::debug!("no history: {error}");
                Vec::new()
            }
        }
    }

    async fn cancel_jobs(&self, jobs: &[Tracked]) -> Result<(), SchedulerError> {
        // KILL comes KillWait after TERM, which reaches the launcher since the script execs it. Without --full
        // only steps would get it; with it the batch shell does too.
        let ids = jobs.iter().map(|job| job.id.0.as_str());
        let args: Vec<&str> = std::iter::once("-Q").chain(ids).collect();
        RUNNER.run_ok("scancel", &args).await?;
        Ok(())
    }
}

/// What one node has, where all nodes of the cluster are alike.
pub async fn node_shape() -> Option<NodeShape> {
    let list = RUNNER.run_ok("sinfo", &["-h", "-N", "-o", "%c|%m|%G"]).await.ok()?;
    parse::node_shape(&list)
}

/// What each partition could start now.
pub async fn backfill_windows() -> Option<BTreeMap<String, Vec<BackfillWindow>>> {
    let list = RUNNER.run_ok("sinfo", &["-h", "-o", nodes::SINFO_FORMAT]).await.ok()?;
    Some(nodes::windows(&list))
}

/// Partitions with their limits, and the user's accounts.
///
/// # Errors
/// When Slurm does not answer. Without accounting there are no accounts to tell.
pub async fn discover() -> Result<Discovered, SchedulerError> {
    let partitions = RUNNER.run_ok("scontrol", &["show", "partition", "-o"]).await?;
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.name);
    let who = format!("user={}", user.unwrap_or_default());
    let args = ["-n", "-P", "show", "associations", &who, "format=account"];
    let accounts = RUNNER.run_ok("sacctmgr", &args).await.unwrap_or_default();
    Ok(Discovered { queues: nodes::partitions(&partitions), projects: nodes::accounts(&accounts) })
}

impl Scheduler for Slurm {
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

    /// Slurm tells nobody; the period finds out.
    fn changed(&self) -> &Notify {
        &self.changed
    }
}
