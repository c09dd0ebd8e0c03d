//! Tells the service what the Site allows and has, at the start, after a change of the settings and
//! every minute: by `last_refresh` people see that the Site is alive.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use chrono::Utc;
use copal_schemas::{
    Timestamp,
    batch_job::{BatchJob, BatchJobState},
    resources::NodeShape,
    settings::Settings,
    site::{NodeAside, QueuedJob, SitePatch},
};

use super::{Context, Passes, run_passes};
use crate::{nodes_aside, scheduler::inventory};

/// How often the service is told.
const PERIOD: Duration = Duration::from_secs(60);

/// States of BatchJobs that are not over.
pub(super) const OPEN_STATES: &[BatchJobState] =
    &[BatchJobState::PendingSubmission, BatchJobState::Queued, BatchJobState::Running, BatchJobState::PendingDeletion];

/// Runs until the agent stops.
pub async fn run(context: Context) {
    run_passes(&context, SiteRefresh { context: context.clone(), known: None }).await;
}

struct SiteRefresh {
    context: Context,
    /// What a node has, found out anew when the settings changed.
    known: Option<(Arc<Settings>, Option<NodeShape>)>,
}

impl Passes for SiteRefresh {
    const NAME: &'static str = "site";

    async fn pass(&mut self) -> anyhow::Result<(String, Duration)> {
        let (settings, mistake) = self.context.settings.current();
        let machine = inventory::of(&settings);
        let node_shape = match &self.known {
            Some((seen, shape)) if *seen == settings => *shape,
            _ => {
                let shape = machine.node_shape().await;
                self.known = Some((Arc::clone(&settings), shape));
                shape
            }
        };
        let client = self.context.api.client();
        let open = client.list_batch_jobs(&[self.context.site.id], OPEN_STATES).await?;
        let nodes = machine.nodes().await;
        let patch = SitePatch {
            // Nothing is known where the scheduler does not answer: no hole is promised.
            backfill_windows: Some(nodes.windows.unwrap_or_default()),
            node_states: Some(nodes.states.unwrap_or_default()),
            nodes_aside: Some(self.nodes_aside()),
            queued_jobs: Some(queued_jobs(&open, Utc::now())),
            ..patch(&settings, node_shape)
        };
        client.update_site(self.context.site.id, &patch).await?;
        match mistake {
            Some(mistake) => anyhow::bail!(mistake),
            None => Ok(("the service knows the Site's limits".into(), PERIOD)),
        }
    }

    async fn rung(&self) {
        self.context.wakes.site.notified().await;
    }
}

impl SiteRefresh {
    /// Nodes that are set aside now. What can't be read sets none aside.
    fn nodes_aside(&self) -> Vec<NodeAside> {
        nodes_aside::current(&self.context.dir.qsubmit(), Utc::now()).unwrap_or_else(|error| {
            tracing::warn!("can't read which nodes are set aside: {error}");
            Vec::new()
        })
    }
}

fn patch(settings: &Settings, node_shape: Option<NodeShape>) -> SitePatch {
    SitePatch {
        optional_batch_job_params: Some(settings.scheduler.optional_batch_job_params.clone()),
        allowed_projects: Some(settings.scheduler.allowed_projects.clone()),
        allowed_queues: Some(settings.scheduler.allowed_queues.clone()),
        transfer_locations: Some(settings.transfers.transfer_locations.clone()),
        // Unknown to this agent is no reason to forget what the owner may have set.
        node_shape: node_shape.map(Some),
        ..SitePatch::default()
    }
}

/// The Site's jobs at the scheduler, by its id.
fn queued_jobs(open: &[BatchJob], now: Timestamp) -> BTreeMap<String, QueuedJob> {
    let at_scheduler = |state| matches!(state, BatchJobState::Queued | BatchJobState::Running);
    open.iter()
        .filter(|batch_job| at_scheduler(batch_job.state))
        .filter_map(|batch_job| {
            let id = batch_job.scheduler_id.clone()?;
            let ran = batch_job.start_time.map_or(0, |start| (now - start).num_minutes().clamp(0, i64::from(i32::MAX)));
            let job = QueuedJob {
                scheduler_id: id.clone(),
                state: batch_job.state,
                queue: batch_job.queue.clone(),
                num_nodes: batch_job.num_nodes,
                wall_time_min: batch_job.wall_time_min,
                project: batch_job.project.clone(),
                time_remaining_min: batch_job
                    .wall_time_min
                    .saturating_sub(i32::try_from(ran).unwrap_or(i32::MAX))
                    .max(0),
                // Since when it waits is not in a BatchJob.
                queued_time_min: 0,
            };
            Some((id.0, job))
        })
        .collect()
}
