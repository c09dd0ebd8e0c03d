//! Who starts where: what the packer places, and what follows in a slot without asking it.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use chrono::Utc;
use copal_schemas::{JobState, session::JobUpdate};
use tracing::{debug, info};

use super::{
    super::{demand::CRUMB, verdict, waiting::Held},
    Book, Run, SlotState, milliseconds,
};
use crate::{
    fleet::Fleet,
    hardware::gpu_environment,
    mode::task::Place,
    packing::Placement,
    protocol::{RunId, Slot, SlotId, Task, ToWorker},
    stop::Deadline,
};

/// Above so many ends in a second at a worker, runs get no control groups: each costs a fork.
const GROUP_RATE: f64 = 20.0;

impl Book {
    /// Starts whatever may start now. Returns the end of those that can't: an App that is missing.
    pub(in crate::pilot) fn place(&mut self, now: Instant, deadline: &Deadline, fleet: &Fleet) -> Vec<JobUpdate> {
        let seconds = |at: Instant| at.saturating_duration_since(self.start).as_secs_f64();
        let placements = self.packer.place(seconds(now), seconds(deadline.term_at));
        let mut starts: HashMap<usize, Vec<(Slot, Task)>> = HashMap::new();
        let mut failed = Vec::new();
        let mut lines = Vec::new();
        for placement in placements {
            let Some(held) = self.waiting.take(placement.job) else {
                self.packer.release(placement.job);
                continue;
            };
            let Some(worker) = placement.parts.first().map(|part| self.of_node[part.node]) else { continue };
            let run = RunId(self.id());
            let is_mpi = self.workshop.mpi.is_some();
            let place = Place { ask: &held.ask, placement: &placement, nodes: &self.nodes };
            let task = match self.apps.of(&held.job) {
                Ok(app) => self
                    .workshop
                    .task(run, held.class, &held.job, app, is_mpi.then_some(place))
                    .map_err(|error| format!("{error:#}")),
                Err(message) => Err(message),
            };
            let task = match task {
                Ok(task) => self.grouped(task, worker, now),
                Err(message) => {
                    self.packer.release(placement.job);
                    failed.push(verdict::with_reason(held.job.id, JobState::Failed, Utc::now(), "app", &message));
                    continue;
                }
            };
            let slot = self.open_slot(&placement, &held, worker, is_mpi);
            lines.push(format!("{} on {}", held.job.id, self.slots[&slot.id].nodes.join("+")));
            self.note_run(run, held, worker, Some(slot.id));
            starts.entry(worker).or_default().push((slot, task));
        }
        if !lines.is_empty() {
            let more = lines.len().saturating_sub(20);
            lines.truncate(20);
            let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
            info!(waiting = self.packer.waiting(), "placed Jobs {}{rest}", lines.join(", "));
        }
        for (worker, tasks) in starts {
            fleet.tell(worker, ToWorker::Start(tasks));
        }
        failed
    }

    /// Gives a run a control group of its own, unless it is one of very many.
    fn grouped(&mut self, mut task: Task, worker: usize, now: Instant) -> Task {
        task.own_group |= self.posts[worker].rate_per_sec(now) < GROUP_RATE;
        task
    }

    fn open_slot(&mut self, placement: &Placement, held: &Held, worker: usize, is_mpi: bool) -> Slot {
        let (id, class) = (SlotId(self.id()), held.class);
        let cpus = if is_mpi { Vec::new() } else { self.cpus(placement, held) };
        let parts = || placement.parts.iter().map(|part| (&self.nodes[part.node], part));
        let gpus: Vec<_> = parts().flat_map(|(node, part)| node.gpus_of(part)).collect();
        // In mpi mode the command itself says which rank sees which.
        let environment = if is_mpi { Default::default() } else { gpu_environment(&gpus) };
        let state = SlotState {
            slot: Slot { id, class, env: environment.set, unset: environment.unset, cpus },
            token: placement.job,
            worker,
            nodes: parts().map(|(node, _)| node.name.clone()).collect(),
            gpus: gpus.iter().map(|gpu| gpu.id.clone()).collect(),
        };
        let slot = state.slot.clone();
        *self.posts[worker].slots.entry(class).or_default() += 1;
        self.tokens.insert(state.token);
        self.slots.insert(id, state);
        slot
    }

    /// The hardware threads of a Job that shares its node. One that owns it may use all of them.
    fn cpus(&self, placement: &Placement, held: &Held) -> Vec<u32> {
        let shape = &held.ask.shape;
        match &placement.parts[..] {
            [part] if shape.node_packing_count > 1 => self.nodes[part.node].cpus_of_ranks(part, shape).concat(),
            _ => Vec::new(),
        }
    }

    pub(super) fn close_slot(&mut self, id: SlotId) {
        if let Some(state) = self.slots.remove(&id) {
            self.packer.release(state.token);
            self.tokens.remove(&state.token);
            if let Some(count) = self.posts[state.worker].slots.get_mut(&state.slot.class) {
                *count = count.saturating_sub(1);
            }
        }
    }

    fn note_run(&mut self, run: RunId, held: Held, worker: usize, slot: Option<SlotId>) {
        self.run_of.insert(held.job.id, run);
        if let Some(checkpoint) = &held.job.checkpoint {
            self.checkpoints.insert((milliseconds(checkpoint.grace_sec), run));
        }
        let run_state = Run { held, worker, slot, has_started: false, is_lost: false, successor: None };
        self.runs.insert(run, run_state);
    }

    pub(super) fn forget_run(&mut self, run: RunId) -> Option<Run> {
        let state = self.runs.remove(&run)?;
        self.run_of.remove(&state.held.job.id);
        if let Some(checkpoint) = &state.held.job.checkpoint {
            self.checkpoints.remove(&(milliseconds(checkpoint.grace_sec), run));
        }
        if state.slot.is_none() {
            let followers = &mut self.posts[state.worker].followers;
            *followers = followers.saturating_sub(1);
        }
        Some(state)
    }

    /// Gives workers followers, so that the next Job starts the instant one ends. Only where all that
    /// waits is of one class: else the packer, and its order, decide about each place.
    pub(in crate::pilot) fn feed(&mut self, now: Instant, deadline: &Deadline, fleet: &Fleet) {
        if self.workshop.mpi.is_some() {
            return;
        }
        let Some(class) = self.waiting.only_class() else { return };
        for worker in 0..self.posts.len() {
            let post = &mut self.posts[worker];
            if post.slots.get(&class).is_none_or(|count| *count == 0) {
                continue;
            }
            let target = post.wanted_followers(now);
            if post.followers * 2 >= target {
                continue;
            }
            let mut tasks = Vec::new();
            for _ in post.followers..target {
                let Some(held) = self.waiting.next_of(class) else { break };
                // The same margin of a minute as the packer's.
                let minutes = held.job.wall_time_min.max(1).unsigned_abs() - 1;
                let ends = now + Duration::from_secs(60) * minutes;
                let run = RunId(self.id());
                let task = match self.apps.of(&held.job) {
                    Ok(app) if ends < deadline.term_at => self.workshop.task(run, class, &held.job, app, None).ok(),
                    // The packer says what becomes of it.
                    _ => None,
                };
                let Some(task) = task else {
                    self.waiting.add(held);
                    break;
                };
                let task = self.grouped(task, worker, now);
                self.packer.withdraw(held.ask.job);
                self.note_run(run, held, worker, None);
                self.posts[worker].followers += 1;
                tasks.push(task);
            }
            if !tasks.is_empty() {
                debug!(worker, jobs = tasks.len(), "sent followers");
                fleet.tell(worker, ToWorker::Follow(tasks));
            }
        }
    }

    /// Takes followers back where there is room elsewhere and nobody waits for it, and from workers where Jobs end
    /// too slowly for any: the one that runs there now may be a long one.
    pub(in crate::pilot) fn recall(&mut self, now: Instant, fleet: &Fleet) {
        self.last_recall = now;
        let is_room = self.waiting.is_empty() && self.packer.room().free_nodes > CRUMB;
        for (worker, post) in self.posts.iter_mut().enumerate() {
            if post.followers > 0 && (is_room || post.wanted_followers(now) == 0) {
                fleet.tell(worker, ToWorker::Recall(post.followers));
            }
        }
    }
}
