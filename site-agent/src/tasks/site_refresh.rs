//! Tells the service what the Site allows and has, at the start, after a change of the settings and
//! every minute: by `last_refresh` people see that the Site is alive.

use std::{sync::Arc, time::Duration};

use copal_schemas::{resources::NodeShape, settings::Settings, site::SitePatch};

use super::{Context, Passes, run_passes};
use crate::scheduler;

/// How often the service is told.
const PERIOD: Duration = Duration::from_secs(60);

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
        let node_shape = match &self.known {
            Some((seen, shape)) if *seen == settings => *shape,
            _ => {
                let shape = scheduler::node_shape(&settings).await;
                self.known = Some((Arc::clone(&settings), shape));
                shape
            }
        };
        self.context.api.client().update_site(self.context.site.id, &patch(&settings, node_shape)).await?;
        match mistake {
            Some(mistake) => anyhow::bail!(mistake),
            None => Ok(("the service knows the Site's limits".into(), PERIOD)),
        }
    }

    async fn rung(&self) {
        self.context.wakes.site.notified().await;
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
