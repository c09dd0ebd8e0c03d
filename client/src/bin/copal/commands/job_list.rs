//! `copal job ls`, also `--by-state`.

use std::collections::BTreeMap;

use copal_client::Client;
use copal_schemas::{AppId, JobState, app::App, job::Job};

use crate::{
    args::job::List,
    context::{Context, SelectedSites},
    failure::Result,
    human::{Clock, count},
    ids::Shortest,
    selection::{Counts, Jobs, summary, total},
    table::{Table, cell, job_state, maybe, pairs},
};

/// Rows of a table when --limit is left out.
const TABLE_LIMIT: i64 = 1000;

pub(super) async fn ls(context: Context, list: &List) -> Result<()> {
    let client = context.client()?;
    let selected = list.selection.resolve(&context, &client).await?;
    if list.by_state {
        let mut counts = selected.counts(&client).await?;
        if list.verbose {
            for state in JobState::ALL {
                counts.entry(*state).or_default();
            }
        }
        return context.out.data(&counts, "No Jobs.", || counts_table(&counts));
    }
    if context.out.is_data() {
        let mut records = context.out.records();
        let mut pages = selected.pages(list.limit, list.ordering.as_deref());
        while let Some(page) = pages.next(&client).await? {
            records.write(&page)?;
        }
        return records.finish();
    }
    let limit = list.limit.unwrap_or(TABLE_LIMIT);
    let jobs = selected.list(&client, Some(limit), list.ordering.as_deref()).await?;
    let apps = if jobs.is_empty() { Vec::new() } else { client.list_apps(&selected.sites.ids).await? };
    let wide = list.verbose || context.out.is_wide();
    context.out.data(&jobs, "No Jobs.", || table(&jobs, &apps, &selected.sites, context.clock, wide))?;
    if jobs.len() as i64 >= limit {
        let all = total(&selected.counts(&client).await?);
        if all > jobs.len() as i64 {
            context.out.talk(&format!("{} of {all} Jobs are shown; --limit shows more.", jobs.len()));
        }
    }
    Ok(())
}

fn table(jobs: &[Job], apps: &[App], sites: &SelectedSites, clock: Clock, wide: bool) -> Table {
    let apps: BTreeMap<AppId, &App> = apps.iter().map(|app| (app.id, app)).collect();
    let more = ["RESOURCES", "PARAMETERS", "EXIT", "RUNS", "BATCHJOB", "PRIORITY", "PARENTS"];
    let headings = ["ID", "SITE", "APP", "FOLDER", "STATE", "TAGS", "CHANGED"];
    let mut table = Table::with_headings(headings.iter().chain(if wide { &more[..] } else { &[] }));
    for job in jobs {
        let app = apps.get(&job.app_id);
        let mut row = vec![
            cell(job.id),
            cell(app.map_or_else(|| "-".into(), |app| sites.name(app.site_id))),
            cell(app.map_or_else(|| job.app_id.to_string(), |app| app.name.clone())),
            cell(&job.workdir),
            job_state(job.state),
            cell(pairs(&job.tags)),
            cell(clock.ago(job.last_update)),
        ];
        if wide {
            row.extend([
                cell(super::job_show::shape(&job.shape())),
                cell(pairs(&job.parameters)),
                maybe(job.return_code),
                cell(job.num_attempts),
                maybe(job.batch_job_id),
                cell(job.priority),
                cell(Shortest::of(job.parent_ids.iter().map(|id| id.0))),
            ]);
        }
        table.push(row);
    }
    table
}

/// Shows which Jobs a change would be made to.
pub(super) async fn show_selected(context: Context, client: &Client, selected: &Jobs, verb: &str) -> Result<()> {
    let counts = selected.counts_or_none(client).await?;
    if context.out.is_data() {
        let mut records = context.out.records();
        let mut pages = selected.pages(None, None);
        while let Some(page) = pages.next(client).await? {
            records.write(&page)?;
        }
        return records.finish();
    }
    let jobs = selected.list(client, Some(TABLE_LIMIT), None).await?;
    let apps = client.list_apps(&selected.sites.ids).await?;
    let rows = table(&jobs, &apps, &selected.sites, context.clock, context.out.is_wide());
    context.out.text(&rows.render(context.out.width()))?;
    context.out.talk(&format!("Would {verb} {} ({}).", count(total(&counts), "Job"), summary(&counts)));
    Ok(())
}

/// How many Jobs are in each state, in the order of a Job's life.
pub(super) fn counts_table(counts: &Counts) -> Table {
    let mut table = Table::new(["STATE", "JOBS"]);
    for (state, count) in counts {
        table.row([job_state(*state), cell(count)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::at_both_widths;

    #[test]
    fn jobs_fit_a_terminal_and_are_whole_in_a_pipe() {
        let job = |id: i64, workdir: &str, state: JobState| -> Job {
            serde_json::from_value(serde_json::json!({
                "id": id, "workdir": workdir, "tags": {"system": "H2O", "method": "ccsd"}, "app_id": 3, "session_id": null,
                "serialized_parameters": "", "serialized_return_value": "", "serialized_exception": "",
                "batch_job_id": null, "state": state, "last_update": "2026-11-30T11:58:00+00:00", "data": {},
                "return_code": null, "pending_file_cleanup": true, "parent_ids": [], "num_nodes": 1, "ranks_per_node": 1,
                "threads_per_rank": 1, "threads_per_core": 1, "gpus_per_rank": 0.0, "node_packing_count": 1,
                "wall_time_min": 0, "launch_params": {},
            }))
            .unwrap()
        };
        let jobs = [
            job(7, "demo/1", JobState::Preprocessed),
            job(4711, "a folder with spaces and ümlauts/of some length/000042", JobState::JobFinished),
        ];
        let sites = SelectedSites { all: Vec::new(), ids: Vec::new() };
        let clock = Clock::fixed("2026-11-30T12:00:00");
        let text =
            |width| anstream::adapter::strip_str(&table(&jobs, &[], &sites, clock, false).render(width)).to_string();
        insta::assert_snapshot!(text(None), @r"
        ID    SITE  APP  FOLDER                                                  STATE         TAGS                    CHANGED
        7     -     3    demo/1                                                  PREPROCESSED  method=ccsd system=H2O  2m ago
        4711  -     3    a folder with spaces and ümlauts/of some length/000042  JOB_FINISHED  method=ccsd system=H2O  2m ago
        ");
        insta::assert_snapshot!(text(Some(80)), @r"
        ID    SITE  APP  FOLDER           STATE         TAGS                     CHANGED
        7     -     3    demo/1           PREPROCESSED  method=ccsd system=H2O   2m ago
        4711  -     3    a folder with    JOB_FINISHED  method=ccsd system=H2O   2m ago
                         spaces and
                         ümlauts/of some
                         length/000042
        ");
        insta::assert_snapshot!(at_both_widths(|| table(&jobs, &[], &sites, clock, false)));
        let wide = table(&jobs, &[], &sites, clock, true).render(None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&wide).to_string());
    }

    #[test]
    fn states_are_counted_in_the_order_of_a_life() {
        let counts = Counts::from([(JobState::Failed, 2), (JobState::Ready, 0), (JobState::Running, 3)]);
        insta::assert_snapshot!(at_both_widths(|| counts_table(&counts)), @r"
        --- 80 columns
        STATE    JOBS
        READY    0
        RUNNING  3
        FAILED   2
        --- 160 columns
        STATE    JOBS
        READY    0
        RUNNING  3
        FAILED   2
        ");
    }
}
