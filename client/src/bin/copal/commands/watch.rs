//! `copal queue watch` and `copal events watch`

use std::collections::BTreeMap;

use copal_client::api::StreamQuery;
use copal_schemas::{BatchJobId, JobId, batch_job::BatchJob, event::Change};

use super::{events, queue};
use crate::{
    args::events::Watch,
    context::Context,
    failure::Result,
    human::Clock,
    live::{Area, News, watch},
};

/// BatchJobs that are not over, in a table that changes, or a line for each change where there is no terminal.
pub(super) async fn queue(context: Context, site: Option<&str>) -> Result<()> {
    let client = context.client()?;
    let sites = context.sites(&client, site).await?;
    let query = StreamQuery { site_ids: sites.ids.clone(), kinds: vec!["batch_job"], ..StreamQuery::default() };
    // The stream is opened before the list is asked for, so that no change falls between the two.
    let stream = client.stream(&query, None).await?;
    let listed = client.list_batch_jobs(&sites.ids, &[]).await?;
    let mut known: BTreeMap<BatchJobId, BatchJob> = listed
        .into_iter()
        .filter(|known| queue::is_open(known, context.clock))
        .map(|known| (known.id, known))
        .collect();
    let area = Area::new();
    let mut records = context.out.is_data().then(|| context.out.records());
    let lines = !area.is_live() && records.is_none();
    if let Some(records) = &mut records {
        records.write(&known.values().collect::<Vec<_>>())?;
    } else if lines {
        known.values().try_for_each(|known| context.out.text(&queue::line(known, &sites, Clock::here())))?;
    }
    watch(context, &client, &query, stream, &area, |news| {
        match news {
            News::Change(change) => match *change {
                Change::BatchJob { batch_job } => {
                    if let Some(records) = &mut records {
                        records.write(&[&batch_job])?;
                    } else if lines && known.get(&batch_job.id) != Some(&*batch_job) {
                        context.out.text(&queue::line(&batch_job, &sites, Clock::here()))?;
                    }
                    known.insert(batch_job.id, *batch_job);
                }
                Change::BatchJobDeleted { batch_job_id, .. } => drop(known.remove(&batch_job_id)),
                Change::Job { .. } | Change::Site { .. } | Change::SiteDeleted { .. } => {}
            },
            News::Tick if area.is_live() && records.is_none() => {
                let rows: Vec<BatchJob> = known.values().cloned().collect();
                let table = queue::table(&rows, &sites, Clock::here(), context.out.is_wide());
                let text = if rows.is_empty() {
                    String::from("No BatchJobs that are not over.")
                } else {
                    table.render(context.out.width())
                };
                area.draw(&format!("{text}\nCtrl-C ends; the BatchJobs go on."));
            }
            News::Tick => {}
        }
        Ok(())
    })
    .await?;
    records.map_or(Ok(()), |records| records.finish())
}

/// State changes as they happen, a line each.
pub(super) async fn events(context: Context, wanted: &Watch) -> Result<()> {
    let client = context.client()?;
    let sites = context.sites(&client, wanted.site.site.as_deref()).await?;
    let jobs: Vec<JobId> = wanted.jobs.iter().flat_map(|list| list.ids()).map(JobId).collect();
    let query =
        StreamQuery { site_ids: sites.ids.clone(), tags: wanted.tags.iter().cloned().collect(), kinds: vec!["job"] };
    let area = Area::new();
    let mut records = context.out.is_data().then(|| context.out.records());
    let stream = client.stream(&query, None).await?;
    watch(context, &client, &query, stream, &area, |news| {
        let News::Change(change) = news else { return Ok(()) };
        let Change::Job { batch_job_id, event, .. } = *change else { return Ok(()) };
        let is_wanted = (jobs.is_empty() || jobs.contains(&event.job_id))
            && wanted.batch_job.is_none_or(|id| batch_job_id == Some(BatchJobId(id)))
            && wanted.from_state.is_none_or(|state| event.from_state == state)
            && wanted.to_state.is_none_or(|state| event.to_state == state);
        match &mut records {
            _ if !is_wanted => Ok(()),
            Some(records) => records.write(&[event]),
            None => context.out.text(&events::line(&event, context.clock)),
        }
    })
    .await?;
    records.map_or(Ok(()), |records| records.finish())
}
