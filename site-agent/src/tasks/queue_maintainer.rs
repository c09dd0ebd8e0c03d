//! The queue maintainer: keeps BatchJobs of one size queued, whatever there is to run.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use copal_schemas::batch_job::{BatchJobCreate, BatchJobState};

use super::{Context, Passes, requests::Requests, run_passes, site_refresh};

/// How often the settings are looked at while there is no queue maintainer.
const OFF_PERIOD: Duration = Duration::from_secs(60);

/// Runs until the agent stops.
pub async fn run(context: Context) {
    run_passes(&context, QueueMaintainer { context: context.clone() }).await;
}

struct QueueMaintainer {
    context: Context,
}

impl Passes for QueueMaintainer {
    const NAME: &'static str = "queue_maintainer";

    async fn pass(&mut self) -> anyhow::Result<(String, Duration)> {
        let context = &self.context;
        let (settings, _) = context.settings.current();
        let Some(wanted) = &settings.queue_maintainer else { return Ok(("off".into(), OFF_PERIOD)) };
        let period =
            Duration::try_from_secs_f64(wanted.service_period).unwrap_or(OFF_PERIOD).max(Duration::from_secs(1));
        if let Some(error) = context.board.trouble("scheduler") {
            return Ok((format!("waits until the scheduler answers: {error}"), period));
        }
        let open = context.api.client().list_batch_jobs(&[context.site.id], site_refresh::OPEN_STATES).await?;
        let mut requests = Requests::open(context, Self::NAME)?;
        requests.learn(context, &open).await?;
        let waits = |state| matches!(state, BatchJobState::PendingSubmission | BatchJobState::Queued);
        let waiting = requests.own(&open).filter(|(batch_job, _)| waits(batch_job.state)).count();
        let word = format!("{waiting} of {} wait", wanted.num_queued_jobs);
        let now = Utc::now();
        let pause = TimeDelta::milliseconds((wanted.submit_period.clamp(0.0, 1e6) * 1e3) as i64);
        let is_early = requests.made.last().is_some_and(|last| now - last.time < pause);
        if waiting >= wanted.num_queued_jobs || is_early {
            return Ok((word, period));
        }
        if let Some(reason) = requests.hindrance(now, wanted.max_requests_per_hour) {
            return Ok((reason, period));
        }
        let create = BatchJobCreate {
            site_id: context.site.id,
            project: wanted.submit_project.clone(),
            queue: wanted.submit_queue.clone(),
            num_nodes: wanted.num_nodes,
            wall_time_min: wanted.wall_time_min,
            job_mode: wanted.job_mode,
            optional_params: Default::default(),
            filter_tags: Default::default(),
            partitions: None,
        };
        let queued = open.iter().filter(|other| waits(other.state) && other.queue == create.queue).count();
        let id = requests.ask(context, &create, queued).await?;
        Ok((format!("{word}; asked for BatchJob {id}"), period))
    }

    async fn rung(&self) {
        self.context.wakes.queue_maintainer.notified().await;
    }
}
