//! The pilot's book: which Jobs wait here, which run in which slot of which worker. Decides by the packer
//! who starts where; tells workers; turns what they report into updates for the service.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::{Duration, Instant},
};

use chrono::Utc;
use copal_schemas::{AppId, JobId, JobState, Timestamp, job::Job, session::JobUpdate, settings::SortBy};
use tracing::{debug, info};

use super::{
    demand::Present,
    rate::Rate,
    verdict,
    waiting::{Held, Waiting},
};
use crate::{
    apps::Apps,
    fleet::Fleet,
    hardware::{NodeHardware, gpu_environment},
    mode::task::{Classes, Place, Workshop},
    nodes::Node,
    packing::{Ask, Packer, Placement},
    protocol::{Cause, Ended, Event, Outcome, RunId, Slot, SlotId, Task, ToWorker},
    stop::Deadline,
};

/// Seconds of work that a worker has at hand while Jobs end quickly.
const FOLLOW_SEC: f64 = 0.05;
/// Cancelled Jobs are gone within 5 s.
const CANCEL_GRACE_SEC: f64 = 3.0;

/// A run that a worker has.
#[derive(Debug)]
struct Run {
    held: Held,
    worker: usize,
    /// Where it runs; `None` while it is a follower.
    slot: Option<SlotId>,
    has_started: bool,
    /// The service does not want to hear of it any more.
    is_lost: bool,
    /// The same Job, acquired again while its lost run is still being ended.
    successor: Option<Box<Job>>,
}

/// A place that one Job after the other runs in.
#[derive(Debug)]
struct SlotState {
    slot: Slot,
    /// By which name the packer knows it.
    token: JobId,
    worker: usize,
    nodes: Vec<String>,
    gpus: Vec<String>,
}

/// What a worker has.
#[derive(Debug, Default)]
struct Post {
    /// Places on the list of nodes.
    nodes: Vec<usize>,
    followers: usize,
    slots: HashMap<u64, usize>,
    rate: Rate,
}

/// The book.
#[derive(Debug)]
pub(super) struct Book {
    start: Instant,
    nodes: Vec<Node>,
    of_node: Vec<usize>,
    posts: Vec<Post>,
    packer: Packer,
    workshop: Workshop,
    apps: Apps,
    classes: Classes,
    waiting: Waiting,
    /// Held, but too late to start: their grace before the end has begun. The end of the Session frees them.
    shelf: Waiting,
    runs: HashMap<RunId, Run>,
    run_of: HashMap<JobId, RunId>,
    slots: HashMap<SlotId, SlotState>,
    /// The packer's names of the slots.
    tokens: HashSet<JobId>,
    /// Runs with a checkpoint, by its grace in milliseconds.
    checkpoints: BTreeSet<(u64, RunId)>,
    next_id: u64,
    rate: Rate,
    mean_nodes: f64,
    started: u64,
    pub(super) last_recall: Instant,
}

impl Book {
    pub(super) fn new(nodes: Vec<Node>, of_node: Vec<usize>, sort_by: SortBy, workshop: Workshop) -> Self {
        let workers = of_node.iter().max().map_or(0, |last| last + 1);
        let mut posts: Vec<Post> = (0..workers).map(|_| Post::default()).collect();
        for (node, worker) in of_node.iter().enumerate() {
            posts[*worker].nodes.push(node);
        }
        Self {
            start: Instant::now(),
            packer: Packer::new(&nodes, sort_by),
            apps: Apps::new(workshop.site.clone()),
            nodes,
            of_node,
            posts,
            workshop,
            classes: Classes::default(),
            waiting: Waiting::default(),
            shelf: Waiting::default(),
            runs: HashMap::new(),
            run_of: HashMap::new(),
            slots: HashMap::new(),
            tokens: HashSet::new(),
            checkpoints: BTreeSet::new(),
            next_id: 1,
            rate: Rate::default(),
            mean_nodes: 1.0,
            started: 0,
            last_recall: Instant::now(),
        }
    }

    pub(super) fn limit_jobs_per_node(&mut self, limit: usize) {
        self.packer.limit_jobs_per_node(limit.max(1));
    }

    /// Starts nothing more on the nodes of a worker.
    pub(super) fn set_aside(&mut self, worker: usize) {
        for node in &self.posts[worker].nodes {
            self.packer.set_aside(*node);
        }
    }

    /// The worker is there, and perhaps says what its node has.
    pub(super) fn bring_back(&mut self, worker: usize, hardware: Option<NodeHardware>) {
        for node in &self.posts[worker].nodes {
            if let Some(hardware) = &hardware {
                let Node { name, is_local, .. } = self.nodes[*node].clone();
                self.nodes[*node] = Node::new(name, hardware.clone(), is_local);
                self.packer.set_node(*node, &self.nodes[*node]);
            }
            self.packer.bring_back(*node);
        }
    }

    pub(super) fn is_local(&self, worker: usize) -> bool {
        self.posts[worker].nodes.first().is_none_or(|node| self.nodes[*node].is_local || self.workshop.mpi.is_some())
    }

    pub(super) fn learn(&mut self, names: HashMap<AppId, String>) {
        self.apps.learn(names);
    }

    pub(super) fn known_apps(&self) -> HashSet<AppId> {
        self.apps.known()
    }

    /// How many workers there are.
    pub(super) fn workers(&self) -> usize {
        self.posts.len()
    }

    /// Whether no worker has anything to run.
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Runs that workers have.
    pub(super) fn running(&self) -> usize {
        self.runs.len()
    }

    /// Runs that have started so far.
    pub(super) fn started(&self) -> u64 {
        self.started
    }

    pub(super) fn has_followers(&self) -> bool {
        self.posts.iter().any(|post| post.followers > 0)
    }

    /// The Jobs that are here.
    pub(super) fn held(&self) -> HashSet<JobId> {
        self.run_of.keys().copied().chain(self.waiting.jobs()).chain(self.shelf.jobs()).collect()
    }

    /// How things are, for the next question to the service.
    pub(super) fn present(&mut self, now: Instant, minutes_left: i32, is_drained: bool) -> Present {
        Present {
            room: self.packer.room(),
            waiting: self.waiting.narrow(),
            waiting_nodes: self.waiting.narrow_nodes(),
            wide_waits: self.waiting.wide() > 0,
            rate: self.rate.per_sec(now),
            mean_nodes: self.mean_nodes,
            minutes_left,
            is_drained,
        }
    }

    /// Takes Jobs that the service gave. Returns the end of those that can never run here.
    pub(super) fn receive(&mut self, jobs: Vec<Job>, now: Instant, deadline: &Deadline) -> Vec<JobUpdate> {
        let left = deadline.term_at.saturating_duration_since(now).as_secs_f64();
        let is_late = |job: &Job| job.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.grace_sec >= left);
        let (late, jobs): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(is_late);
        for job in late {
            let job = Box::new(job);
            self.shelf.add(Held { class: 0, is_wide: false, nodes: 0.0, ask: Ask::from(&*job), job });
        }
        jobs.into_iter().filter_map(|job| self.enqueue(Box::new(job))).collect()
    }

    fn enqueue(&mut self, job: Box<Job>) -> Option<JobUpdate> {
        if let Some(run) = self.run_of.get(&job.id) {
            // No Job runs twice at the same time: the lost run must be gone first.
            if let Some(run) = self.runs.get_mut(run).filter(|run| run.is_lost) {
                run.successor = Some(job);
            }
            return None;
        }
        if self.waiting.has(job.id) {
            return None;
        }
        let shape = job.shape();
        let mut ask = Ask::from(&*job);
        // A slot keeps the name of the Job that opened it, which may be back before the slot is closed.
        if self.tokens.contains(&ask.job) {
            self.next_id += 1;
            ask.job = JobId(-i64::try_from(self.next_id).unwrap_or(i64::MAX));
        }
        if let Err(misfit) = self.packer.push(ask.clone()) {
            return Some(verdict::with_reason(job.id, JobState::Failed, Utc::now(), "misfit", &misfit.reason));
        }
        let nodes = f64::from(shape.num_nodes) / f64::from(shape.node_packing_count.max(1));
        self.mean_nodes += (nodes - self.mean_nodes) / 64.0;
        self.waiting.add(Held { class: self.classes.of(&shape), is_wide: shape.num_nodes > 1, nodes, ask, job });
        None
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Starts whatever may start now. Returns the end of those that can't: an App that is missing.
    pub(super) fn place(&mut self, now: Instant, deadline: &Deadline, fleet: &Fleet) -> Vec<JobUpdate> {
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
                Ok(task) => task,
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

    fn close_slot(&mut self, id: SlotId) {
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

    fn forget_run(&mut self, run: RunId) -> Option<Run> {
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
    pub(super) fn feed(&mut self, now: Instant, deadline: &Deadline, fleet: &Fleet) {
        if self.workshop.mpi.is_some() {
            return;
        }
        let Some(class) = self.waiting.only_class() else { return };
        for worker in 0..self.posts.len() {
            let post = &mut self.posts[worker];
            if post.slots.get(&class).is_none_or(|count| *count == 0) {
                continue;
            }
            let target = (post.rate.per_sec(now) * FOLLOW_SEC).ceil() as usize;
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

    /// Takes followers back where there is room elsewhere and nobody waits for it.
    pub(super) fn recall(&mut self, now: Instant, fleet: &Fleet) {
        self.last_recall = now;
        if self.waiting.is_empty() && self.packer.room().free_nodes > 1e-3 {
            for (worker, post) in self.posts.iter().enumerate() {
                if post.followers > 0 {
                    fleet.tell(worker, ToWorker::Recall(post.followers));
                }
            }
        }
    }

    /// Hears what a worker reports; returns what the service must hear.
    pub(super) fn hear(&mut self, worker: usize, events: Vec<Event>, fleet: &Fleet, now: Instant) -> Vec<JobUpdate> {
        let mut updates = Vec::new();
        for event in events {
            match event {
                Event::Started { run, slot, time } => self.hear_start(run, slot, time, &mut updates),
                Event::Ended(ended) => self.hear_end(worker, &ended, fleet, now, &mut updates),
                Event::Vacant(slot) => self.close_slot(slot),
                Event::Returned(run) => {
                    let Some(state) = self.forget_run(run) else { continue };
                    if !state.is_lost {
                        updates.extend(self.enqueue(state.held.job));
                    }
                }
            }
        }
        updates
    }

    fn hear_start(&mut self, run: RunId, slot: SlotId, time: Timestamp, updates: &mut Vec<JobUpdate>) {
        let Some(state) = self.runs.get_mut(&run) else { return };
        state.has_started = true;
        self.started += 1;
        if state.slot.replace(slot).is_none() {
            let followers = &mut self.posts[state.worker].followers;
            *followers = followers.saturating_sub(1);
        }
        if !state.is_lost {
            updates.push(verdict::plain(state.held.job.id, JobState::Running, time));
        }
    }

    fn hear_end(&mut self, worker: usize, ended: &Ended, fleet: &Fleet, now: Instant, updates: &mut Vec<JobUpdate>) {
        let Some(state) = self.forget_run(ended.run) else { return };
        self.rate.count(now, 1);
        self.posts[worker].rate.count(now, 1);
        let job = &state.held.job;
        if !state.is_lost {
            // By the table a run that could not be started fails from RUNNING, so that its retry policy counts.
            if !state.has_started && ended.outcome != Outcome::Withdrawn {
                updates.push(verdict::plain(job.id, JobState::Running, ended.start));
            }
            let place = ended.slot.and_then(|slot| self.slots.get(&slot));
            let (nodes, gpus) = place.map_or((&[][..], &[][..]), |place| (&place.nodes[..], &place.gpus[..]));
            if let Some(update) = verdict::of(job, ended, nodes, gpus) {
                if update.state != JobState::RunDone {
                    let text = |key: &str| update.state_data.get(key).and_then(|value| value.as_str());
                    let message = text("message").unwrap_or_default();
                    info!(job.id = %job.id, state = %update.state, "a Job ended: {message}");
                }
                updates.push(update);
            }
        }
        if let Some(slot) = ended.slot.filter(|_| ended.vacant) {
            self.vacate(slot, fleet);
        }
        if let Some(job) = state.successor {
            updates.extend(self.enqueue(job));
        }
    }

    /// A slot is vacant at its worker. Followers that were on their way to it may still use it.
    fn vacate(&mut self, slot: SlotId, fleet: &Fleet) {
        let Some(state) = self.slots.get(&slot) else { return };
        if self.posts[state.worker].followers > 0 {
            fleet.tell(state.worker, ToWorker::Reoffer(state.slot.clone()));
        } else {
            self.close_slot(slot);
        }
    }

    /// A worker is gone, and with it its runs: those that had started run again later, the others at once.
    pub(super) fn worker_lost(&mut self, worker: usize, reason: &str, message: &str) -> Vec<JobUpdate> {
        let runs: Vec<RunId> = self.runs.iter().filter(|(_, run)| run.worker == worker).map(|(id, _)| *id).collect();
        let slots: Vec<SlotId> =
            self.slots.iter().filter(|(_, slot)| slot.worker == worker).map(|(id, _)| *id).collect();
        slots.into_iter().for_each(|slot| self.close_slot(slot));
        let mut updates = Vec::new();
        for run in runs {
            let Some(state) = self.forget_run(run) else { continue };
            let job = state.held.job;
            if state.is_lost {
                updates.extend(state.successor.and_then(|job| self.enqueue(job)));
                continue;
            }
            // One that is sent but not reported may have started: it counts as a run that was cut off.
            if state.slot.is_none() {
                updates.extend(self.enqueue(job));
                continue;
            }
            if !state.has_started {
                updates.push(verdict::plain(job.id, JobState::Running, Utc::now()));
            }
            updates.push(verdict::with_reason(job.id, JobState::RunTimeout, Utc::now(), reason, message));
        }
        self.posts[worker].followers = 0;
        updates
    }

    /// Ends cancelled Jobs. Returns the end of those that have not been given to a worker.
    pub(super) fn cancel(&mut self, jobs: &[JobId], fleet: &Fleet, grace_sec: f64) -> Vec<JobUpdate> {
        let mut updates = Vec::new();
        let mut runs = Vec::new();
        for job in jobs {
            if let Some(held) = self.waiting.take_job(*job) {
                self.packer.withdraw(held.ask.job);
                updates.push(verdict::cancelled(*job));
            }
            if self.shelf.take_job(*job).is_some() {
                updates.push(verdict::cancelled(*job));
            }
            runs.extend(self.run_of.get(job));
        }
        self.kill(&runs, Cause::Cancelled, grace_sec.min(CANCEL_GRACE_SEC), fleet);
        updates
    }

    /// Ends runs of Jobs that the Session does not hold any more.
    pub(super) fn lose(&mut self, jobs: &[JobId], fleet: &Fleet) {
        let mut runs = Vec::new();
        for job in jobs {
            self.shelf.take_job(*job);
            if let Some(held) = self.waiting.take_job(*job) {
                self.packer.withdraw(held.ask.job);
            }
            if let Some(run) = self.run_of.get(job) {
                if let Some(state) = self.runs.get_mut(run) {
                    state.is_lost = true;
                }
                runs.push(*run);
            }
        }
        self.kill(&runs, Cause::LeaseLost, CANCEL_GRACE_SEC, fleet);
    }

    /// The same for all of them.
    pub(super) fn lose_all(&mut self, fleet: &Fleet) {
        let jobs: Vec<JobId> = self.held().into_iter().collect();
        self.lose(&jobs, fleet);
    }

    /// Ends everything; what waits is given up.
    pub(super) fn kill_all(&mut self, cause: Cause, grace_sec: f64, fleet: &Fleet) {
        for held in self.waiting.clear() {
            self.packer.withdraw(held.ask.job);
        }
        let runs: Vec<RunId> = self.runs.keys().copied().collect();
        self.kill(&runs, cause, grace_sec, fleet);
    }

    fn kill(&self, runs: &[RunId], cause: Cause, grace_sec: f64, fleet: &Fleet) {
        let mut of_worker: HashMap<usize, Vec<RunId>> = HashMap::new();
        for run in runs {
            if let Some(state) = self.runs.get(run) {
                of_worker.entry(state.worker).or_default().push(*run);
            }
        }
        for (worker, runs) in of_worker {
            fleet.tell(worker, ToWorker::Kill { runs, cause, grace_sec });
        }
    }

    /// The longest grace of a run that saves its state.
    pub(super) fn longest_checkpoint(&self) -> Duration {
        self.checkpoints.last().map_or(Duration::ZERO, |(grace, _)| Duration::from_millis(*grace))
    }

    /// When the next run must be told to save its state, so that it has its grace before the end.
    pub(super) fn next_checkpoint(&self, deadline: &Deadline) -> Option<Instant> {
        let (grace, _) = self.checkpoints.last()?;
        deadline.term_at.checked_sub(Duration::from_millis(*grace))
    }

    /// Tells those that are due.
    pub(super) fn checkpoint(&mut self, now: Instant, deadline: &Deadline, grace_sec: f64, fleet: &Fleet) {
        let mut due = Vec::new();
        while self.next_checkpoint(deadline).is_some_and(|at| now >= at) {
            due.extend(self.checkpoints.pop_last().map(|(_, run)| run));
        }
        if !due.is_empty() {
            info!(runs = due.len(), "the time is nearly over: telling runs to save their state");
            self.kill(&due, Cause::EndOfTime, grace_sec, fleet);
        }
    }
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds.clamp(0.0, 1e9) * 1_000.0) as u64
}
