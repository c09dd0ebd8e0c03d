//! The elastic queue: asks for BatchJobs as the Site's Jobs need them, and withdraws those that nobody
//! needs any more. How many is `elastic_queue/plan.rs`,
//! which Jobs have a place already `elastic_queue/supply.rs`.

mod plan;
mod supply;

use std::{fs, time::Duration};

use chrono::{TimeDelta, Utc};
use copal_client::api::JobQuery;
use copal_schemas::{
    JobState, Timestamp,
    batch_job::{BatchJobCreate, BatchJobState},
    job::Job,
    settings::{ElasticQueueSettings, SchedulerSettings},
};

use super::{
    Context, Passes,
    requests::{Requests, withdraw},
    run_passes, site_refresh,
};
use plan::{Plan, View};

/// The most Jobs that are looked at in one pass; where there are more, these stand for all.
const SAMPLE: usize = 2_000;
const PAGE: i64 = 500;
/// A Job that allocations of the queue gave back gets another chance after this time.
const GIVEN_BACK_FOR: TimeDelta = TimeDelta::days(1);
/// How often the settings are looked at while there is no elastic queue.
const OFF_PERIOD: Duration = Duration::from_secs(60);

/// Runs until the agent stops.
pub async fn run(context: Context) {
    run_passes(&context, ElasticQueue { context: context.clone() }).await;
}

struct ElasticQueue {
    context: Context,
}

impl Passes for ElasticQueue {
    const NAME: &'static str = "elastic_queue";

    async fn pass(&mut self) -> anyhow::Result<(String, Duration)> {
        let (settings, _) = self.context.settings.current();
        let Some(elastic) = &settings.elastic_queue else { return Ok(("off".into(), OFF_PERIOD)) };
        let period = Duration::try_from_secs_f64(elastic.service_period).unwrap_or(Duration::from_secs(60));
        Ok((self.look(&bounded(elastic, &settings.scheduler)).await?, period.max(Duration::from_secs(1))))
    }

    async fn rung(&self) {
        self.context.wakes.elastic_queue.notified().await;
    }
}

/// The settings within what the queue allows: what is beyond it would be refused every time.
fn bounded(elastic: &ElasticQueueSettings, scheduler: &SchedulerSettings) -> ElasticQueueSettings {
    let mut bounded = elastic.clone();
    if let Some(limits) = scheduler.allowed_queues.get(&elastic.submit_queue) {
        bounded.max_num_nodes = bounded.max_num_nodes.min(limits.max_nodes);
        bounded.max_wall_time_min = bounded.max_wall_time_min.min(limits.max_walltime);
    }
    bounded
}

impl ElasticQueue {
    async fn look(&self, settings: &ElasticQueueSettings) -> anyhow::Result<String> {
        let context = &self.context;
        // While the scheduler is away, what it holds is not known, and more of it would be asked for.
        if let Some(error) = context.board.trouble("scheduler") {
            return Ok(format!("waits until the scheduler answers: {error}"));
        }
        let client = context.api.client();
        let open = client.list_batch_jobs(&[context.site.id], site_refresh::OPEN_STATES).await?;
        let mut requests = Requests::open(context, Self::NAME)?;
        requests.learn(context, &open).await?;
        let (jobs, scale) = self.sample(&settings.submit_queue).await?;
        let windows = match settings.use_backfill {
            true => {
                let (all, _) = context.settings.current();
                let windows = crate::scheduler::inventory::of(&all).nodes().await.windows;
                Some(windows.and_then(|mut windows| windows.remove(&settings.submit_queue)).unwrap_or_default())
            }
            false => None,
        };
        let own: Vec<_> = requests.own(&open).map(|(batch_job, time)| (batch_job.id, time)).collect();
        let view =
            View { settings, jobs: &jobs, scale, open: &open, own: &own, windows: windows.as_deref(), now: Utc::now() };
        let plan = plan::plan(&view);
        for (id, reason) in &plan.withdraw {
            tracing::info!(batch_job.id = id.0, "withdrawn: {reason}");
            withdraw(context, *id).await?;
        }
        let Plan { ask: Some((num_nodes, wall_time_min)), word, .. } = plan else { return Ok(plan.word) };
        if let Some(reason) = requests.hindrance(view.now, settings.max_requests_per_hour) {
            return Ok(reason);
        }
        let wanted = BatchJobCreate {
            site_id: context.site.id,
            project: settings.submit_project.clone(),
            queue: settings.submit_queue.clone(),
            num_nodes,
            wall_time_min,
            job_mode: settings.job_mode,
            optional_params: Default::default(),
            filter_tags: Default::default(),
            partitions: None,
        };
        let waiting = |state| matches!(state, BatchJobState::PendingSubmission | BatchJobState::Queued);
        let queued = open.iter().filter(|other| waiting(other.state) && other.queue == wanted.queue).count();
        let id = requests.ask(context, &wanted, queued).await?;
        Ok(format!("{word}; asked for BatchJob {id}"))
    }

    /// Since when it counts that allocations gave a Job back. With other settings, the same nodes may hold it.
    fn judged_since(&self) -> Timestamp {
        let settings = fs::metadata(self.context.dir.settings_path()).and_then(|file| file.modified()).ok();
        settings.map_or(Timestamp::MIN_UTC, Timestamp::from).max(Utc::now() - GIVEN_BACK_FOR)
    }

    /// Jobs that run or could run, and for how many each stands.
    async fn sample(&self, queue: &str) -> anyhow::Result<(Vec<Job>, f64)> {
        let mut query = JobQuery {
            site_ids: vec![self.context.site.id],
            states: vec![JobState::Preprocessed, JobState::RestartReady, JobState::Running],
            limit: Some(PAGE),
            // What the queue's nodes can't hold, more of them could not either.
            not_given_back_in: Some(queue.to_owned()),
            not_given_back_since: Some(self.judged_since()),
            ordering: Some("id".into()),
            ..JobQuery::default()
        };
        let mut jobs: Vec<Job> = Vec::new();
        let mut total = 0;
        while jobs.len() < SAMPLE {
            let page = self.context.api.client().list_jobs(&query).await?;
            total = total.max(page.count);
            query.after_id = page.results.last().map(|job| job.id);
            let is_last = (page.results.len() as i64) < PAGE;
            jobs.extend(page.results);
            if is_last {
                return Ok((jobs, 1.0));
            }
        }
        let scale = (total as f64 / jobs.len() as f64).max(1.0);
        Ok((jobs, scale))
    }
}

#[cfg(test)]
mod tests {
    use copal_schemas::settings::QueueLimits;

    use super::*;

    #[test]
    fn nothing_is_asked_for_that_the_queue_forbids() {
        let limits = QueueLimits { max_nodes: 4, max_walltime: 60, max_queued_jobs: 1 };
        let scheduler =
            SchedulerSettings { allowed_queues: [("debug".into(), limits)].into(), ..SchedulerSettings::default() };
        let elastic = ElasticQueueSettings { submit_queue: "debug".into(), ..ElasticQueueSettings::default() };
        let bounds = |elastic: &ElasticQueueSettings| {
            let bounded = bounded(elastic, &scheduler);
            (bounded.max_num_nodes, bounded.max_wall_time_min)
        };
        assert_eq!(bounds(&elastic), (4, 60));
        assert_eq!(
            bounds(&ElasticQueueSettings { max_num_nodes: 2, max_wall_time_min: 30, ..elastic.clone() }),
            (2, 30)
        );
        assert_eq!(bounds(&ElasticQueueSettings { submit_queue: "any".into(), ..elastic }), (512, 360));
    }
}
