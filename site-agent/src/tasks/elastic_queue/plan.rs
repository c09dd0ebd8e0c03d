//! What the elastic queue asks for and withdraws, given all that is known. Pure.
//!
//! Demand is what the Jobs that run or could run occupy, less what the open BatchJobs will take. Jobs that no
//! BatchJob of the allowed sizes could run are none.

use chrono::TimeDelta;
use copal_schemas::{
    BatchJobId, StringMap, Timestamp,
    batch_job::{BatchJob, BatchJobState, JobMode},
    job::Job,
    resources::WHOLE,
    settings::ElasticQueueSettings,
    site::BackfillWindow,
};

/// All that is known.
pub(super) struct View<'a> {
    pub(super) settings: &'a ElasticQueueSettings,
    /// Jobs that run or could run.
    pub(super) jobs: &'a [Job],
    /// For how many Jobs each of them stands.
    pub(super) scale: f64,
    /// The Site's BatchJobs that are not over.
    pub(super) open: &'a [BatchJob],
    /// Those of them that the elastic queue asked for, and when.
    pub(super) own: &'a [(BatchJobId, Timestamp)],
    /// What the queue could start now; `None` when that does not matter.
    pub(super) windows: Option<&'a [BackfillWindow]>,
    pub(super) now: Timestamp,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Nodes and minutes.
    pub(super) ask: Option<(i32, i32)>,
    /// BatchJobs that wait for nothing, and why.
    pub(super) withdraw: Vec<(BatchJobId, String)>,
    /// One line for people.
    pub(super) word: String,
}

pub(super) fn plan(view: &View<'_>) -> Plan {
    let settings = view.settings;
    let jobs: Vec<&Job> = view.jobs.iter().filter(|job| could_run(job, settings)).collect();
    let demand = footprint(&jobs, view.scale);
    let live = view.open.iter().filter(|batch_job| batch_job.state != BatchJobState::PendingDeletion);
    let supply: i32 = live.map(|batch_job| serves(batch_job, &jobs, view.scale)).fold(0, i32::saturating_add);
    let mut plan = Plan { withdraw: withdrawn(view, supply.saturating_sub(demand)), ..Plan::default() };

    let missing = demand.saturating_sub(supply);
    let widest = jobs.iter().map(|job| job.num_nodes).max().unwrap_or(0);
    let is_wide_enough =
        view.open.iter().any(|batch_job| batch_job.filter_tags.is_empty() && batch_job.num_nodes >= widest);
    let least = if is_wide_enough { settings.min_num_nodes } else { settings.min_num_nodes.max(widest) };
    plan.word = format!("Jobs need {demand} nodes, {supply} are there or asked for");
    if missing <= 0 && is_wide_enough || demand == 0 {
        return plan;
    }
    let waiting = view.open.iter().filter(|batch_job| is_waiting(batch_job)).count();
    if waiting >= settings.max_queued_jobs {
        plan.word = format!("{}; {waiting} BatchJobs wait already, which is the most allowed", plan.word);
        return plan;
    }
    match view.windows {
        None => {
            let nodes = missing.max(least).min(settings.max_num_nodes).max(1);
            plan.ask = Some((nodes, settings.max_wall_time_min));
        }
        Some(windows) => {
            plan.ask = window(windows, taken(view), settings, missing, least);
            if plan.ask.is_none() {
                plan.word = format!("{}; no backfill window of queue {:?} fits", plan.word, settings.submit_queue);
            }
        }
    }
    plan
}

/// Whether a BatchJob of the allowed sizes could run this Job.
fn could_run(job: &Job, settings: &ElasticQueueSettings) -> bool {
    job.num_nodes <= settings.max_num_nodes
        && job.wall_time_min <= settings.max_wall_time_min
        && (settings.job_mode == JobMode::Mpi || (job.num_nodes == 1 && job.ranks_per_node == 1))
}

/// Nodes that these Jobs occupy if all run at once, rounded up.
fn footprint(jobs: &[&Job], scale: f64) -> i32 {
    let shares: u64 =
        jobs.iter().map(|job| u64::try_from(job.num_nodes).unwrap_or(1) * u64::from(job.shape().occupancy())).sum();
    let nodes = shares as f64 * scale / f64::from(WHOLE);
    nodes.ceil().min(f64::from(i32::MAX)) as i32
}

/// How many nodes of a BatchJob these Jobs can use: one with tags takes only Jobs that have them.
fn serves(batch_job: &BatchJob, jobs: &[&Job], scale: f64) -> i32 {
    let matching = |tags: &StringMap| -> i32 {
        let jobs: Vec<&Job> = jobs
            .iter()
            .filter(|job| tags.iter().all(|(key, value)| job.tags.get(key) == Some(value)))
            .copied()
            .collect();
        footprint(&jobs, scale)
    };
    match &batch_job.partitions {
        Some(partitions) => partitions
            .iter()
            .map(|part| {
                if part.filter_tags.is_empty() {
                    part.num_nodes
                } else {
                    part.num_nodes.min(matching(&part.filter_tags))
                }
            })
            .fold(0, i32::saturating_add),
        None if batch_job.filter_tags.is_empty() => batch_job.num_nodes,
        None => batch_job.num_nodes.min(matching(&batch_job.filter_tags)),
    }
}

fn is_waiting(batch_job: &BatchJob) -> bool {
    matches!(batch_job.state, BatchJobState::PendingSubmission | BatchJobState::Queued)
}

/// Own BatchJobs that wait and are not needed, the newest first, or that have waited too long.
fn withdrawn(view: &View<'_>, mut surplus: i32) -> Vec<(BatchJobId, String)> {
    let limit = view.settings.max_queue_wait_time_min;
    let mut waiting: Vec<(&BatchJob, Timestamp)> = view
        .open
        .iter()
        .filter(|batch_job| is_waiting(batch_job))
        .filter_map(|batch_job| Some((batch_job, view.own.iter().find(|(id, _)| *id == batch_job.id)?.1)))
        .collect();
    waiting.sort_by_key(|(batch_job, _)| std::cmp::Reverse(batch_job.id));
    let mut withdrawn = Vec::new();
    for (batch_job, since) in waiting {
        if surplus >= batch_job.num_nodes {
            surplus -= batch_job.num_nodes;
            withdrawn.push((batch_job.id, "no Job needs it any more".into()));
        } else if limit > 0 && view.now - since > TimeDelta::minutes(i64::from(limit)) {
            withdrawn.push((batch_job.id, format!("it has waited for more than {limit} minutes")));
        }
    }
    withdrawn
}

/// Nodes of the queue that are idle still, and that the Site's own waiting BatchJobs will take.
fn taken(view: &View<'_>) -> i32 {
    let waiting = view.open.iter().filter(|batch_job| is_waiting(batch_job));
    let same_queue = waiting.filter(|batch_job| batch_job.queue == view.settings.submit_queue);
    same_queue.map(|batch_job| batch_job.num_nodes).fold(0, i32::saturating_add)
}

/// The request that makes most of a backfill window of which some nodes are taken: nodes and minutes.
fn window(
    windows: &[BackfillWindow],
    taken: i32,
    settings: &ElasticQueueSettings,
    missing: i32,
    least: i32,
) -> Option<(i32, i32)> {
    let wanted = missing.max(least).min(settings.max_num_nodes).max(1);
    windows
        .iter()
        .map(|window| {
            let minutes =
                window.wall_time_min.saturating_sub(settings.wall_time_pad_min).min(settings.max_wall_time_min);
            (window.num_nodes.saturating_sub(taken).min(wanted), minutes)
        })
        .filter(|(nodes, minutes)| *nodes >= least.max(1) && *minutes >= settings.min_wall_time_min.max(1))
        .max_by_key(|(nodes, minutes)| i64::from(*nodes) * i64::from(*minutes))
}

#[cfg(test)]
mod tests;
