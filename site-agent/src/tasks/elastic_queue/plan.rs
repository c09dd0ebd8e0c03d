//! What the elastic queue asks for and withdraws, given all that is known. Pure.
//!
//! Demand is what the Jobs that run or could run occupy, less those that the open BatchJobs will take (`supply.rs`). Jobs
//! that no BatchJob of the allowed sizes could run are none.

use chrono::TimeDelta;
use copal_schemas::{
    BatchJobId, JobState, Timestamp,
    batch_job::{BatchJob, BatchJobState, JobMode},
    job::Job,
    settings::ElasticQueueSettings,
    site::BackfillWindow,
};

use super::supply::{Rest, footprint, is_for_serial, rest};

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
    let rest = rest(&jobs, view.scale, view.open, view.now);
    let mut plan = Plan { withdraw: withdrawn(view, &rest), ..Plan::default() };

    let missing = rest.nodes(settings.max_num_nodes, settings.max_wall_time_min);
    plan.word = format!("Jobs need {demand} nodes, {} of them are there or asked for", demand.saturating_sub(missing));
    if missing == 0 {
        return plan;
    }
    let waiting = view.open.iter().filter(|batch_job| is_waiting(batch_job)).count();
    if waiting >= settings.max_queued_jobs {
        plan.word = format!("{}; {waiting} BatchJobs wait already, which is the most allowed", plan.word);
        return plan;
    }
    match view.windows {
        None => {
            let nodes = missing.max(settings.min_num_nodes).min(settings.max_num_nodes).max(1);
            plan.ask = Some((nodes, settings.max_wall_time_min));
        }
        Some(windows) => {
            plan.ask = window(windows, taken(view), settings, &rest);
            if plan.ask.is_none() {
                plan.word = format!("{}; no backfill window of queue {:?} fits", plan.word, settings.submit_queue);
            }
        }
    }
    plan
}

/// Whether a BatchJob of the allowed sizes could run this Job. One that runs has shown it.
fn could_run(job: &Job, settings: &ElasticQueueSettings) -> bool {
    job.state == JobState::Running
        || job.num_nodes <= settings.max_num_nodes
            && job.wall_time_min <= settings.max_wall_time_min
            && (settings.job_mode == JobMode::Mpi || is_for_serial(job))
}

fn is_waiting(batch_job: &BatchJob) -> bool {
    matches!(batch_job.state, BatchJobState::PendingSubmission | BatchJobState::Queued)
}

/// Own BatchJobs that wait and that no Job needs, or that have waited too long.
fn withdrawn(view: &View<'_>, rest: &Rest<'_>) -> Vec<(BatchJobId, String)> {
    let limit = view.settings.max_queue_wait_time_min;
    let own = |id: BatchJobId| view.own.iter().find(|(own, _)| *own == id).map(|(_, since)| *since);
    let waiting = view.open.iter().filter(|batch_job| is_waiting(batch_job));
    let reason = |id: BatchJobId, since: Timestamp| {
        if !rest.used.contains(&id) {
            Some("no Job needs it any more".to_owned())
        } else if limit > 0 && view.now - since > TimeDelta::minutes(i64::from(limit)) {
            Some(format!("it has waited for more than {limit} minutes"))
        } else {
            None
        }
    };
    waiting.filter_map(|batch_job| Some((batch_job.id, reason(batch_job.id, own(batch_job.id)?)?))).collect()
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
    rest: &Rest<'_>,
) -> Option<(i32, i32)> {
    let least = settings.min_num_nodes.max(1);
    windows
        .iter()
        .filter_map(|window| {
            let minutes =
                window.wall_time_min.saturating_sub(settings.wall_time_pad_min).min(settings.max_wall_time_min);
            let room = window.num_nodes.saturating_sub(taken).min(settings.max_num_nodes);
            let useful = rest.nodes(room, minutes);
            let is_enough = room >= least && minutes >= settings.min_wall_time_min.max(1) && useful > 0;
            is_enough.then_some((useful.max(least).min(room), minutes))
        })
        .max_by_key(|(nodes, minutes)| i64::from(*nodes) * i64::from(*minutes))
}

#[cfg(test)]
mod tests;
