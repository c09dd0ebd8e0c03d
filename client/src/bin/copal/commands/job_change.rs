//! `copal job cancel|rm|modify`: first how many Jobs are meant, then a question, then the change.

use copal_client::Client;
use copal_schemas::{
    JobState,
    job::{Cancelled, Job, JobPatch, JobPatchItem},
    page::MAX_BULK,
};
use serde_json::json;

use super::job_list::show_selected;
use crate::{
    args::job::{Change, Modify},
    context::Context,
    failure::{Failure, Result},
    human::count,
    prompt,
    selection::{Counts, Jobs, none_match, summary, total},
};

pub(super) async fn cancel(context: Context, change: &Change) -> Result<()> {
    let client = context.client()?;
    let jobs = selected(&context, &client, change).await?;
    if change.dry_run {
        return show_selected(context, &client, &jobs, "cancel what is not at an end of").await;
    }
    let mut counts = jobs.counts_or_none(&client).await?;
    counts.retain(|state, _| !state.is_terminal());
    let mut done = Cancelled::default();
    if total(&counts) > 0 {
        confirm("Cancel", &counts, change.yes.yes)?;
        for query in jobs.queries() {
            let part = client.cancel_jobs(query).await?;
            done.cancelled += part.cancelled;
            done.stopping += part.stopping;
        }
    }
    if context.out.is_data() {
        return context.out.value(&done);
    }
    context.out.talk(&outcome(done));
    Ok(())
}

/// What was cancelled, for people.
fn outcome(done: Cancelled) -> String {
    let stopping = match done.stopping {
        1 => "1 running Job is being stopped by its launcher".into(),
        many => format!("{many} running Jobs are being stopped by their launchers"),
    };
    match done {
        Cancelled { cancelled: 0, stopping: 0 } => "Nothing to cancel: all are at an end.".into(),
        Cancelled { cancelled, stopping: 0 } => format!("Cancelled {}.", count(cancelled, "Job")),
        Cancelled { cancelled: 0, .. } => format!("{stopping}."),
        Cancelled { cancelled, .. } => format!("Cancelled {} that waited; {stopping}.", count(cancelled, "Job")),
    }
}

pub(super) async fn rm(context: Context, change: &Change) -> Result<()> {
    let client = context.client()?;
    let jobs = selected(&context, &client, change).await?;
    if change.dry_run {
        return show_selected(context, &client, &jobs, "delete").await;
    }
    let counts = jobs.counts_or_none(&client).await?;
    confirm("Delete", &counts, change.yes.yes)?;
    for query in jobs.queries() {
        client.delete_jobs(query).await?;
    }
    let left = total(&jobs.counts(&client).await?);
    let deleted = (total(&counts) - left).max(0);
    if context.out.is_data() {
        context.out.value(&json!({"deleted": deleted, "left": left}))?;
    } else if deleted > 0 {
        context.out.talk(&format!("Deleted {}.", count(deleted, "Job")));
    }
    match left {
        0 => Ok(()),
        left => Err(Failure::new(format!(
            "{} not deleted: a launcher or an agent may hold what is left",
            count(left, "Job")
        ))
        .hint("wait until they are let go, or `copal job cancel` them; then run the command again")
        .after_changes()),
    }
}

pub(super) async fn modify(context: Context, modify: &Modify) -> Result<()> {
    let client = context.client()?;
    if !changes_something(modify) {
        return Err(Failure::usage("nothing is to be changed").hint("`copal job modify --help` lists what can be"));
    }
    let selected = selected(&context, &client, &modify.change).await?;
    if modify.change.dry_run {
        return show_selected(context, &client, &selected, "change").await;
    }
    let jobs = selected.list(&client, None, None).await?;
    if jobs.is_empty() {
        return Err(none_match());
    }
    let mut counts = Counts::new();
    jobs.iter().for_each(|job| *counts.entry(job.state).or_default() += 1);
    confirm("Change", &counts, modify.change.yes.yes)?;
    let patches: Vec<JobPatchItem> =
        jobs.iter().map(|job| JobPatchItem { id: job.id, patch: patch(modify, job) }).collect();
    let mut changed = 0;
    for chunk in patches.chunks(MAX_BULK) {
        changed += client.update_jobs(chunk).await?;
    }
    if context.out.is_data() {
        return context.out.value(&json!({"changed": changed}));
    }
    context.out.talk(&format!("Changed {}.", count(changed, "Job")));
    Ok(())
}

async fn selected(context: &Context, client: &Client, change: &Change) -> Result<Jobs> {
    match (change.selection.is_open(), change.all) {
        (true, false) => Err(Failure::usage("which Jobs?").hint("name ids, states or tags, or add --all")),
        (false, true) => Err(Failure::usage("--all goes with no other choice than --site")),
        _ => change.selection.resolve(context, client).await,
    }
}

/// One Job that was named needs no question.
fn confirm(verb: &str, counts: &Counts, yes: bool) -> Result<()> {
    match total(counts) {
        1 => Ok(()),
        many => prompt::confirm_change(&format!("{verb} {many} Jobs ({})?", summary(counts)), yes),
    }
}

fn changes_something(modify: &Modify) -> bool {
    let Modify {
        change: _,
        set_state,
        set_tags,
        remove_tags,
        set_parameters,
        priority,
        num_nodes,
        ranks_per_node,
        threads_per_rank,
        threads_per_core,
        gpus_per_rank,
        node_packing_count,
        mem_mb,
        wall_time_min,
        walltime_limit_min,
        max_restarts,
    } = modify;
    let numbers = [
        priority,
        num_nodes,
        ranks_per_node,
        threads_per_rank,
        threads_per_core,
        node_packing_count,
        wall_time_min,
        walltime_limit_min,
        max_restarts,
    ];
    set_state.is_some()
        || !set_tags.is_empty()
        || !remove_tags.is_empty()
        || !set_parameters.is_empty()
        || gpus_per_rank.is_some()
        || mem_mb.is_some()
        || numbers.iter().any(|number| number.is_some())
}

/// The change of one Job. Tags and parameters are replaced as a whole on the wire, so they are merged here.
fn patch(modify: &Modify, job: &Job) -> JobPatch {
    let mut tags = job.tags.clone();
    tags.retain(|key, _| !modify.remove_tags.contains(key));
    tags.extend(modify.set_tags.iter().cloned());
    let mut parameters = job.parameters.clone();
    parameters.extend(modify.set_parameters.iter().cloned());
    let state: Option<JobState> = modify.set_state;
    JobPatch {
        state,
        tags: (tags != job.tags).then_some(tags),
        parameters: (parameters != job.parameters).then_some(parameters),
        priority: modify.priority,
        num_nodes: modify.num_nodes,
        ranks_per_node: modify.ranks_per_node,
        threads_per_rank: modify.threads_per_rank,
        threads_per_core: modify.threads_per_core,
        gpus_per_rank: modify.gpus_per_rank,
        node_packing_count: modify.node_packing_count,
        mem_mb: modify.mem_mb.map(Some),
        wall_time_min: modify.wall_time_min,
        walltime_limit_min: modify.walltime_limit_min.map(Some),
        max_restarts: modify.max_restarts.map(Some),
        ..JobPatch::default()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command, job};

    fn parsed(line: &str) -> Modify {
        let words = ["copal", "job", "modify"].into_iter().chain(line.split_whitespace()).map(Into::into);
        match Cli::try_parse_from(crate::argv::rewrite(words)).unwrap().command {
            Command::Job(job::Command::Modify(modify)) => *modify,
            _ => panic!("not a modify"),
        }
    }

    #[test]
    fn tags_are_merged_and_the_rest_is_set() {
        let job: Job = serde_json::from_value(serde_json::json!({
            "id": 7, "workdir": "x", "tags": {"a": "1", "b": "2"}, "app_id": 3, "session_id": null,
            "serialized_parameters": "", "serialized_return_value": "", "serialized_exception": "",
            "batch_job_id": null, "state": "FAILED", "last_update": "2026-11-30T11:58:00+00:00", "data": {},
            "return_code": null, "pending_file_cleanup": true, "parent_ids": [], "num_nodes": 1, "ranks_per_node": 1,
            "threads_per_rank": 1, "threads_per_core": 1, "gpus_per_rank": 0.0, "node_packing_count": 1,
            "wall_time_min": 0, "launch_params": {},
        }))
        .unwrap();
        let modify = parsed("7 --set-tag c=3 --remove-tag a --priority -5 -npc 4 --set-state RESTART_READY");
        assert!(changes_something(&modify));
        let patch = serde_json::to_value(patch(&modify, &job)).unwrap();
        assert_eq!(
            patch,
            serde_json::json!({
                "state": "RESTART_READY", "tags": {"b": "2", "c": "3"}, "priority": -5, "node_packing_count": 4,
            })
        );
    }

    #[test]
    fn what_was_cancelled_is_told() {
        let told = |cancelled, stopping| outcome(Cancelled { cancelled, stopping });
        insta::assert_snapshot!([told(0, 0), told(1, 0), told(0, 1), told(2, 3)].join("\n"), @r"
        Nothing to cancel: all are at an end.
        Cancelled 1 Job.
        1 running Job is being stopped by its launcher.
        Cancelled 2 Jobs that waited; 3 running Jobs are being stopped by their launchers.
        ");
    }

    #[test]
    fn a_change_of_nothing_is_noticed() {
        assert!(!changes_something(&parsed("7")));
    }

    #[test]
    fn many_jobs_are_not_changed_without_a_yes() {
        let counts = Counts::from([(JobState::Failed, 2)]);
        assert!(confirm("Delete", &counts, true).is_ok());
        assert!(confirm("Delete", &Counts::from([(JobState::Failed, 1)]), false).is_ok());
    }
}
