//! `copal job ls`, also `--by-state`.

use std::collections::BTreeMap;

use copal_schemas::{AppId, app::App, job::Job};

use crate::{
    args::job::List,
    context::{Context, SelectedSites},
    failure::Result,
    human::Clock,
    selection::{Counts, total},
    table::{Table, cell, job_state, pairs},
};

/// Rows of a table when --limit is left out.
const TABLE_LIMIT: i64 = 1000;

pub(super) async fn ls(context: Context, list: &List) -> Result<()> {
    let client = context.client()?;
    let selected = list.selection.resolve(&context, &client).await?;
    if list.by_state {
        let counts = selected.counts(&client).await?;
        return context.out.data(&counts, "No Jobs.", || counts_table(&counts));
    }
    let limit = list.limit.or(if context.out.is_json() { None } else { Some(TABLE_LIMIT) });
    let jobs = selected.list(&client, limit, list.ordering.as_deref()).await?;
    if context.out.is_json() {
        return context.out.json(&jobs);
    }
    let apps = if jobs.is_empty() { Vec::new() } else { client.list_apps(&selected.sites.ids).await? };
    context.out.data(&jobs, "No Jobs.", || table(&jobs, &apps, &selected.sites, context.clock))?;
    if limit.is_some_and(|limit| jobs.len() as i64 >= limit) {
        let all = total(&selected.counts(&client).await?);
        if all > jobs.len() as i64 {
            context.out.talk(&format!("{} of {all} Jobs are shown; --limit shows more.", jobs.len()));
        }
    }
    Ok(())
}

fn table(jobs: &[Job], apps: &[App], sites: &SelectedSites, clock: Clock) -> Table {
    let apps: BTreeMap<AppId, &App> = apps.iter().map(|app| (app.id, app)).collect();
    let mut table = Table::new(["ID", "SITE", "APP", "FOLDER", "STATE", "TAGS", "CHANGED"]);
    for job in jobs {
        let app = apps.get(&job.app_id);
        table.row([
            cell(job.id),
            cell(app.map_or_else(|| "-".into(), |app| sites.name(app.site_id))),
            cell(app.map_or_else(|| job.app_id.to_string(), |app| app.name.clone())),
            cell(&job.workdir),
            job_state(job.state),
            cell(pairs(&job.tags)),
            cell(clock.ago(job.last_update)),
        ]);
    }
    table
}

/// How many Jobs are in each state, in the order of a Job's life.
pub(super) fn counts_table(counts: &Counts) -> Table {
    let mut table = Table::new(["STATE", "JOBS"]);
    for (state, count) in counts.iter().filter(|(_, count)| **count > 0) {
        table.row([job_state(*state), cell(count)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use copal_schemas::JobState;

    use super::*;

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
        let text = |width| anstream::adapter::strip_str(&table(&jobs, &[], &sites, clock).render(width)).to_string();
        insta::assert_snapshot!(text(None), @r"
        ID    SITE  APP  FOLDER                                                  STATE         TAGS                    CHANGED
        7     -     3    demo/1                                                  PREPROCESSED  method=ccsd system=H2O  2m ago
        4711  -     3    a folder with spaces and ümlauts/of some length/000042  JOB_FINISHED  method=ccsd system=H2O  2m ago
        ");
        insta::assert_snapshot!(text(Some(80)), @r"
        ID    SITE  APP  FOLDER           STATE         TAGS         CHANGED
        7     -     3    demo/1           PREPROCESSED  method=ccsd  2m ago
                                                        system=H2O
        4711  -     3    a folder with    JOB_FINISHED  method=ccsd  2m ago
                         spaces and                     system=H2O
                         ümlauts/of some
                         length/000042
        ");
    }

    #[test]
    fn states_are_counted_in_the_order_of_a_life() {
        let counts = Counts::from([(JobState::Failed, 2), (JobState::Ready, 0), (JobState::Running, 3)]);
        let text = counts_table(&counts).render(None);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
        STATE    JOBS
        RUNNING  3
        FAILED   2
        ");
    }
}
