//! BatchJobs that the agent asks for by itself, on behalf of `elastic_queue` and `queue_maintainer`:
//! which they are, a cap an hour, and a pause after ones that ended at once. What is asked for and when is theirs.

use std::path::PathBuf;

use chrono::{TimeDelta, Utc};
use copal_schemas::{
    BatchJobId, Timestamp,
    batch_job::{BatchJob, BatchJobCreate, BatchJobPatch, BatchJobState},
    problem::ErrorCode,
};
use serde::{Deserialize, Serialize};

use super::Context;
use crate::{policy, records};

/// A BatchJob that ends sooner than this after its start, and badly, failed at once.
const AT_ONCE: TimeDelta = TimeDelta::seconds(60);
/// So many that failed at once, one after the other, make a pause.
const FAILURES: usize = 3;
/// How long the pause is.
const PAUSE: TimeDelta = TimeDelta::minutes(30);

/// One BatchJob that was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Made {
    pub(super) id: BatchJobId,
    #[serde(with = "copal_schemas::time::naive")]
    pub(super) time: Timestamp,
    /// How it ended; `None` while it has not.
    pub(super) outcome: Option<Outcome>,
}

/// How a BatchJob ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    #[serde(with = "copal_schemas::time::naive")]
    pub(super) end: Timestamp,
    /// Why it failed at once, where it did.
    pub(super) failed_at_once: Option<String>,
}

/// What one service asked for, kept in a file of its own, so that a restart forgets neither cap nor pause.
pub(super) struct Requests {
    path: PathBuf,
    pub(super) made: Vec<Made>,
}

impl Requests {
    /// Reads what `service` asked for.
    pub(super) fn open(context: &Context, service: &str) -> anyhow::Result<Self> {
        let path = context.dir.qsubmit().join(format!("{service}.json"));
        let made = records::read(&path)?.unwrap_or_default();
        Ok(Self { path, made })
    }

    /// Learns how those ended that are not open any more, and forgets what matters no more.
    pub(super) async fn learn(&mut self, context: &Context, open: &[BatchJob]) -> anyhow::Result<()> {
        for made in self.made.iter_mut().filter(|made| made.outcome.is_none()) {
            if open.iter().any(|batch_job| batch_job.id == made.id) {
                continue;
            }
            made.outcome = match context.api.client().get_batch_job(made.id).await {
                Ok(batch_job) if batch_job.state.is_over() => Some(outcome(&batch_job)),
                Ok(_) => None,
                Err(error) if error.code() == Some(ErrorCode::NotFound) => {
                    Some(Outcome { end: Utc::now(), failed_at_once: None })
                }
                Err(error) => return Err(error.into()),
            };
        }
        let old = Utc::now() - TimeDelta::hours(2);
        self.made.retain(|made| made.outcome.as_ref().is_none_or(|outcome| outcome.end.max(made.time) > old));
        self.save()
    }

    /// Why nothing may be asked for now.
    pub(super) fn hindrance(&self, now: Timestamp, max_an_hour: usize) -> Option<String> {
        hindrance(&self.made, now, max_an_hour)
    }

    /// Of the open BatchJobs those that were asked for here, with the time of it.
    pub(super) fn own<'a>(&'a self, open: &'a [BatchJob]) -> impl Iterator<Item = (&'a BatchJob, Timestamp)> {
        open.iter()
            .filter_map(|batch_job| Some((batch_job, self.made.iter().find(|made| made.id == batch_job.id)?.time)))
    }

    /// Asks for a BatchJob, unless the Site's own rules forbid it: that is an error, for its owner to see.
    pub(super) async fn ask(
        &mut self,
        context: &Context,
        wanted: &BatchJobCreate,
        queued: usize,
    ) -> anyhow::Result<BatchJobId> {
        let (settings, _) = context.settings.current();
        policy::check(&settings.scheduler, &as_batch_job(wanted), queued)
            .map_err(|reason| anyhow::anyhow!("nothing is asked for: {reason}"))?;
        let batch_job = context.api.client().create_batch_job(wanted).await?;
        tracing::info!(
            batch_job.id = batch_job.id.0,
            "asked for {} nodes for {} minutes in queue {}",
            wanted.num_nodes,
            wanted.wall_time_min,
            wanted.queue
        );
        self.made.push(Made { id: batch_job.id, time: Utc::now(), outcome: None });
        self.save()?;
        context.wakes.scheduler.notify_one();
        Ok(batch_job.id)
    }

    fn save(&self) -> anyhow::Result<()> {
        Ok(records::write(&self.path, &self.made, false)?)
    }
}

/// Withdraws a BatchJob.
pub(super) async fn withdraw(context: &Context, id: BatchJobId) -> anyhow::Result<()> {
    let patch = BatchJobPatch { state: Some(BatchJobState::PendingDeletion), ..BatchJobPatch::default() };
    match context.api.client().update_batch_job(id, &patch).await {
        Err(error) if error.code() == Some(ErrorCode::NotFound) => {}
        answer => {
            answer?;
        }
    }
    context.wakes.scheduler.notify_one();
    Ok(())
}

/// How a BatchJob that is over ended.
fn outcome(batch_job: &BatchJob) -> Outcome {
    let end = batch_job.end_time.unwrap_or_else(Utc::now);
    let said = batch_job.status_info.get("error").cloned();
    let failed_at_once = match (batch_job.state, batch_job.start_time) {
        (BatchJobState::SubmitFailed, _) => Some(said.unwrap_or_else(|| "it could not be submitted".into())),
        // Launchers that found nothing to do end well, and those leave no error.
        (_, Some(start)) if end - start < AT_ONCE => said,
        _ => None,
    };
    Outcome { end, failed_at_once }
}

fn hindrance(made: &[Made], now: Timestamp, max_an_hour: usize) -> Option<String> {
    let last_hour = made.iter().filter(|made| now - made.time < TimeDelta::hours(1)).count();
    if last_hour >= max_an_hour {
        return Some(format!("{last_hour} BatchJobs were asked for within an hour, which is the most allowed"));
    }
    let ended: Vec<&Outcome> = made.iter().filter_map(|made| made.outcome.as_ref()).collect();
    let last = ended.get(ended.len().checked_sub(FAILURES)?..)?;
    let why = last.last()?.failed_at_once.as_ref()?;
    let until = last.last()?.end + PAUSE;
    let paused = now < until && last.iter().all(|outcome| outcome.failed_at_once.is_some());
    paused.then(|| {
        format!("pauses until {} UTC, since the last {FAILURES} BatchJobs failed at once: {why}", until.format("%H:%M"))
    })
}

/// A request in the form that the Site's rules are checked on.
fn as_batch_job(wanted: &BatchJobCreate) -> BatchJob {
    BatchJob {
        num_nodes: wanted.num_nodes,
        wall_time_min: wanted.wall_time_min,
        job_mode: wanted.job_mode,
        optional_params: wanted.optional_params.clone(),
        filter_tags: wanted.filter_tags.clone(),
        partitions: wanted.partitions.clone(),
        id: BatchJobId(0),
        site_id: wanted.site_id,
        scheduler_id: None,
        project: wanted.project.clone(),
        queue: wanted.queue.clone(),
        state: BatchJobState::PendingSubmission,
        status_info: copal_schemas::StringMap::new(),
        start_time: None,
        end_time: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(minutes_ago: i64, failed: Option<&str>) -> Made {
        let time = Utc::now() - TimeDelta::minutes(minutes_ago);
        let outcome = Some(Outcome { end: time, failed_at_once: failed.map(Into::into) });
        Made { id: BatchJobId(1), time, outcome }
    }

    #[test]
    fn pitfall_064_there_is_a_cap_an_hour() {
        let many: Vec<Made> = (0..5).map(|minutes| made(minutes * 10, None)).collect();
        assert_eq!(hindrance(&many, Utc::now(), 6), None);
        assert!(hindrance(&many, Utc::now(), 5).unwrap().contains("within an hour"));
        assert_eq!(hindrance(&many, Utc::now() + TimeDelta::hours(1), 5), None);
    }

    #[test]
    fn pitfall_067_069_failures_at_once_make_a_pause_that_says_why_and_ends() {
        let bad = |minutes| made(minutes, Some("module: command not found"));
        assert_eq!(hindrance(&[bad(3), bad(2)], Utc::now(), 99), None);
        assert_eq!(hindrance(&[bad(3), bad(2), made(1, None)], Utc::now(), 99), None);
        assert_eq!(hindrance(&[bad(5), made(4, None), bad(3), bad(2)], Utc::now(), 99), None);
        let three = [bad(4), bad(3), bad(2)];
        let why = hindrance(&three, Utc::now(), 99).unwrap();
        assert!(why.starts_with("pauses until") && why.ends_with("module: command not found"), "{why}");
        assert_eq!(hindrance(&three, Utc::now() + TimeDelta::minutes(29), 99), None);
    }

    #[test]
    fn pitfall_069_a_preemption_is_no_failure() {
        let start = Utc::now();
        let mut batch_job = as_batch_job(&BatchJobCreate {
            site_id: copal_schemas::SiteId(1),
            project: String::new(),
            queue: String::new(),
            num_nodes: 1,
            wall_time_min: 10,
            job_mode: copal_schemas::batch_job::JobMode::Mpi,
            optional_params: Default::default(),
            filter_tags: Default::default(),
            partitions: None,
        });
        batch_job.state = BatchJobState::Finished;
        (batch_job.start_time, batch_job.end_time) = (Some(start), Some(start + TimeDelta::seconds(5)));
        batch_job.status_info.insert("reason".into(), "preempted".into());
        assert_eq!(outcome(&batch_job).failed_at_once, None);
        batch_job.status_info.insert("error".into(), "no such file".into());
        assert_eq!(outcome(&batch_job).failed_at_once.as_deref(), Some("no such file"));
        batch_job.end_time = Some(start + TimeDelta::minutes(5));
        assert_eq!(outcome(&batch_job).failed_at_once, None);
    }
}
