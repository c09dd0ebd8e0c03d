//! Which Jobs the open BatchJobs will take, and what is left for more of them. Pure.
//!
//! As launchers do it, roughly: a Job goes where its tags, its width, its mode and the time that is left allow. What runs,
//! runs where it is. One that asks for tags takes its Jobs first, since they have fewer places; of the rest those that
//! run, then the oldest, so that what waits and is needed no more is left empty.

use std::collections::BTreeSet;

use copal_schemas::{
    BatchJobId, JobState, StringMap, Timestamp,
    batch_job::{BatchJob, BatchJobState, JobMode},
    job::Job,
    resources::WHOLE,
};

/// What the open BatchJobs leave.
pub(super) struct Rest<'a> {
    /// Jobs that no BatchJob has room for, with what they would occupy, in parts of [`WHOLE`] of a node.
    jobs: Vec<(&'a Job, u64)>,
    /// BatchJobs that some Job can use.
    pub(super) used: BTreeSet<BatchJobId>,
}

impl Rest<'_> {
    /// How many nodes the rest can use of a BatchJob that is so wide and so long.
    pub(super) fn nodes(&self, num_nodes: i32, minutes: i32) -> i32 {
        whole_nodes(self.jobs.iter().filter(|(job, _)| fits(job, num_nodes, minutes)).map(|(_, size)| *size).sum())
    }
}

/// Whether a Job is neither too wide nor too long.
fn fits(job: &Job, num_nodes: i32, minutes: i32) -> bool {
    job.num_nodes <= num_nodes && job.wall_time_min <= minutes
}

/// So much in whole nodes.
fn whole_nodes(size: u64) -> i32 {
    i32::try_from(size.div_ceil(u64::from(WHOLE))).unwrap_or(i32::MAX)
}

/// What a Job occupies, in parts of [`WHOLE`] of a node.
fn size(job: &Job) -> u64 {
    u64::try_from(job.num_nodes).unwrap_or(1).saturating_mul(u64::from(job.shape().occupancy()))
}

/// What a Job occupies that stands for `scale` like it.
fn scaled(job: &Job, scale: f64) -> u64 {
    (size(job) as f64 * scale).round() as u64
}

/// Nodes that these Jobs occupy if all run at once.
pub(super) fn footprint(jobs: &[&Job], scale: f64) -> i32 {
    whole_nodes(jobs.iter().map(|job| scaled(job, scale)).fold(0, u64::saturating_add))
}

/// A BatchJob or one of its partitions.
struct Place<'a> {
    batch_job: &'a BatchJob,
    mode: JobMode,
    tags: &'a StringMap,
    num_nodes: i32,
    /// Minutes left.
    minutes: i32,
    /// What is free of it, in parts of [`WHOLE`] of a node.
    room: u64,
}

impl Place<'_> {
    fn takes(&self, job: &Job) -> bool {
        if job.state == JobState::Running {
            return job.batch_job_id == Some(self.batch_job.id);
        }
        fits(job, self.num_nodes, self.minutes)
            && self.tags.iter().all(|(key, value)| job.tags.get(key) == Some(value))
            && (self.mode == JobMode::Mpi || is_for_serial(job))
    }

    /// Takes what there is room for of this size; a Job of several nodes only as a whole. Gives the rest.
    fn take(&mut self, job: &Job, wanted: u64) -> u64 {
        let room = match size(job) {
            one if job.num_nodes > 1 => self.room / one.max(1) * one,
            _ => self.room,
        };
        let taken = room.min(wanted);
        self.room -= taken;
        wanted - taken
    }
}

/// Whether serial mode runs it.
pub(super) fn is_for_serial(job: &Job) -> bool {
    job.num_nodes == 1 && job.ranks_per_node == 1
}

/// Gives Jobs to the BatchJobs that are not over. Each Job stands for `scale` like it.
pub(super) fn rest<'a>(jobs: &[&'a Job], scale: f64, open: &[BatchJob], now: Timestamp) -> Rest<'a> {
    let mut places: Vec<Place<'_>> =
        open.iter().filter(|other| other.state != BatchJobState::PendingDeletion).flat_map(|b| parts(b, now)).collect();
    places.sort_by_key(|place| {
        (place.tags.is_empty(), place.batch_job.state != BatchJobState::Running, place.batch_job.id)
    });
    let mut jobs: Vec<&Job> = jobs.to_vec();
    jobs.sort_by_key(|job| (job.state != JobState::Running, std::cmp::Reverse(job.num_nodes)));
    let mut rest = Rest { jobs: Vec::new(), used: BTreeSet::new() };
    for job in jobs {
        let wanted = scaled(job, scale);
        let mut left = wanted;
        for place in places.iter_mut().filter(|place| place.takes(job)) {
            let before = left;
            left = place.take(job, left);
            if left < before {
                rest.used.insert(place.batch_job.id);
            }
            if left == 0 {
                break;
            }
        }
        // What runs elsewhere asks for nothing more.
        if left > 0 && job.state != JobState::Running {
            rest.jobs.push((job, left));
        }
    }
    rest
}

/// The parts of a BatchJob that launchers of their own work for.
fn parts(batch_job: &BatchJob, now: Timestamp) -> Vec<Place<'_>> {
    let ran = batch_job.start_time.map_or(0, |start| (now - start).num_minutes().max(0));
    let minutes = batch_job.wall_time_min.saturating_sub(i32::try_from(ran).unwrap_or(i32::MAX));
    let place = |mode, tags, num_nodes: i32| Place {
        batch_job,
        mode,
        tags,
        num_nodes,
        minutes,
        room: u64::try_from(num_nodes).unwrap_or(0).saturating_mul(u64::from(WHOLE)),
    };
    match &batch_job.partitions {
        Some(parts) => parts.iter().map(|part| place(part.job_mode, &part.filter_tags, part.num_nodes)).collect(),
        None => vec![place(batch_job.job_mode, &batch_job.filter_tags, batch_job.num_nodes)],
    }
}
