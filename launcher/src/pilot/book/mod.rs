//! The pilot's book: which Jobs wait here, which run in which slot of which worker, and which are given back.
//!
//! `starts` decides by the packer who starts where and tells workers; `ends` turns what they report into
//! updates for the service, and ends runs; `spare` gives back what waits here in vain.

mod ends;
mod spare;
mod starts;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Instant,
};

use copal_schemas::{AppId, JobId, job::Job, session::Release, settings::SortBy};
use tracing::info;

use super::{
    demand::{self, Kind, Present},
    rate::Rate,
    waiting::{Held, Waiting},
};
use crate::{
    apps::Apps,
    hardware::NodeHardware,
    mode::task::{Classes, Workshop},
    nodes::{Node, Rules},
    packing::{Ask, Packer},
    protocol::{RunId, Slot, SlotId},
    stop::Deadline,
};

/// Seconds of work that a worker has at hand while Jobs end quickly.
const FOLLOW_SEC: f64 = 0.1;

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

impl Post {
    /// Runs that end here in a second.
    fn rate_per_sec(&mut self, now: Instant) -> f64 {
        let places = self.slots.values().sum();
        self.rate.per_sec(now, places)
    }

    /// How many Jobs it should have at hand.
    fn wanted_followers(&mut self, now: Instant) -> usize {
        let rate = self.rate_per_sec(now);
        if demand::is_slow(rate) { 0 } else { (rate * FOLLOW_SEC).ceil() as usize }
    }
}

/// The book.
#[derive(Debug)]
pub(super) struct Book {
    start: Instant,
    nodes: Vec<Node>,
    rules: Rules,
    /// Nodes on which nothing starts before it is known what they have.
    awaited: BTreeSet<usize>,
    of_node: Vec<usize>,
    posts: Vec<Post>,
    packer: Packer,
    workshop: Workshop,
    apps: Apps,
    classes: Classes,
    waiting: Waiting,
    /// Jobs that no node known so far can hold, while some are awaited.
    doubtful: Vec<Job>,
    /// Jobs that can't run here, until the service is told.
    given_back: Vec<Release>,
    /// Jobs of which the log says why they wait.
    told: HashSet<JobId>,
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
    last_late: Instant,
}

impl Book {
    pub(super) fn new(
        nodes: Vec<Node>,
        rules: Rules,
        of_node: Vec<usize>,
        sort_by: SortBy,
        workshop: Workshop,
    ) -> Self {
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
            rules,
            awaited: BTreeSet::new(),
            of_node,
            posts,
            workshop,
            classes: Classes::default(),
            waiting: Waiting::default(),
            doubtful: Vec::new(),
            given_back: Vec::new(),
            told: HashSet::new(),
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
            last_late: Instant::now(),
        }
    }

    pub(super) fn limit_jobs_per_node(&mut self, limit: usize) {
        self.packer.limit_jobs_per_node(limit.max(1));
    }

    /// Starts nothing on a node until it is known what it has.
    pub(super) fn await_node(&mut self, node: usize) {
        self.awaited.insert(node);
        self.packer.set_aside(node);
    }

    /// The name of the node that a worker is on, or of the first of those that it serves.
    pub(super) fn node_of(&self, worker: usize) -> &str {
        self.posts[worker].nodes.first().map_or("", |node| self.name(*node))
    }

    /// Starts nothing more on the nodes of a worker.
    pub(super) fn set_aside(&mut self, worker: usize) {
        for node in &self.posts[worker].nodes {
            self.packer.set_aside(*node);
        }
    }

    /// The worker is there, and perhaps says what its node has.
    pub(super) fn bring_back(&mut self, worker: usize, found: Option<NodeHardware>) {
        for node in self.posts[worker].nodes.clone() {
            self.use_node(node, found.clone());
        }
        self.judge_again();
    }

    /// The nodes of a worker will not be used any more: Jobs that only they could hold are given back.
    pub(super) fn retire(&mut self, worker: usize) {
        for node in self.posts[worker].nodes.clone() {
            self.retire_node(node);
        }
        self.judge_again();
    }

    /// A node has said what it has, or can't be asked and so not be used.
    pub(super) fn hear_node(&mut self, node: usize, found: Option<NodeHardware>) {
        match found {
            Some(found) => self.use_node(node, Some(found)),
            None => self.retire_node(node),
        }
        self.judge_again();
    }

    /// The name of a node.
    pub(super) fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    fn use_node(&mut self, node: usize, found: Option<NodeHardware>) {
        if let Some(found) = found {
            self.nodes[node] = self.rules.equip(&self.nodes[node], found);
            self.packer.set_node(node, &self.nodes[node]);
        }
        self.awaited.remove(&node);
        self.packer.bring_back(node);
    }

    fn retire_node(&mut self, node: usize) {
        self.awaited.remove(&node);
        self.packer.retire(node);
    }

    /// Judges anew which Jobs can run here, now that more is known of the nodes.
    fn judge_again(&mut self) {
        for job in std::mem::take(&mut self.doubtful) {
            self.enqueue(Box::new(job), false);
        }
        let misfits: Vec<(JobId, String)> =
            self.waiting.all().filter_map(|held| Some((held.job.id, self.packer.misfit(&held.ask)?))).collect();
        for (job, reason) in misfits {
            if let Some(held) = self.waiting.take_job(job) {
                self.packer.withdraw(held.ask.job);
                self.turn_away(*held.job, reason);
            }
        }
    }

    /// A Job that no node can hold is given back, unless nodes are still awaited that perhaps can.
    fn turn_away(&mut self, job: Job, reason: String) {
        if self.awaited.is_empty() {
            let for_now = !self.packer.is_whole();
            self.give_back(&job, reason, for_now);
        } else {
            self.doubtful.push(job);
        }
    }

    /// `for_now`: another launcher with the same nodes may well run it.
    fn give_back(&mut self, job: &Job, message: String, for_now: bool) {
        info!(job.id = %job.id, "gives a Job back: {message}");
        self.given_back.push(Release { job_id: job.id, message: Some(message), for_now });
    }

    /// The Jobs to give back, which are not held here any more.
    pub(super) fn take_given_back(&mut self) -> Vec<Release> {
        std::mem::take(&mut self.given_back)
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

    /// The Jobs that are here.
    pub(super) fn held(&self) -> HashSet<JobId> {
        let doubtful = self.doubtful.iter().map(|job| job.id);
        self.run_of.keys().copied().chain(self.waiting.jobs()).chain(doubtful).collect()
    }

    /// How things are, for the next question to the service.
    pub(super) fn present(&mut self, now: Instant, deadline: &Deadline, kind: Kind) -> Present {
        Present {
            room: self.packer.room(),
            waiting: self.waiting.for_next(),
            waiting_nodes: self.waiting.next_nodes(),
            turn_waits: self.waiting.for_turn() > 0,
            rate: self.rate.per_sec(now, self.slots.len()),
            mean_nodes: self.mean_nodes,
            minutes_left: deadline.minutes_left(now),
            left: deadline.term_at.saturating_duration_since(now),
            kind,
        }
    }

    /// Takes Jobs that the service gave; `for_turn` when they were asked for though they do not fit yet.
    pub(super) fn receive(&mut self, jobs: Vec<Job>, for_turn: bool, now: Instant, deadline: &Deadline) {
        let left = deadline.term_at.saturating_duration_since(now).as_secs_f64();
        for job in jobs {
            match job.checkpoint.as_ref().map(|checkpoint| checkpoint.grace_sec) {
                Some(grace) if grace >= left => {
                    let reason = format!("it takes {grace} s to save its state, and {left:.0} s are left");
                    self.give_back(&job, reason, true);
                }
                _ => self.enqueue(Box::new(job), for_turn),
            }
        }
    }

    /// Takes a Job in: it waits, or it waits until its lost run is gone, or it is turned away.
    fn enqueue(&mut self, job: Box<Job>, for_turn: bool) {
        if let Some(run) = self.run_of.get(&job.id) {
            // No Job runs twice at the same time: the lost run must be gone first.
            if let Some(run) = self.runs.get_mut(run).filter(|run| run.is_lost) {
                run.successor = Some(job);
            }
            return;
        }
        if self.waiting.has(job.id) {
            return;
        }
        let shape = job.shape();
        let mut ask = Ask::from(&*job);
        // A slot keeps the name of the Job that opened it, which may be back before the slot is closed.
        if self.tokens.contains(&ask.job) {
            self.next_id += 1;
            ask.job = JobId(-i64::try_from(self.next_id).unwrap_or(i64::MAX));
        }
        if let Err(misfit) = self.packer.push(ask.clone()) {
            self.turn_away(*job, misfit.reason);
            return;
        }
        let nodes = f64::from(shape.num_nodes) / f64::from(shape.node_packing_count.max(1));
        self.mean_nodes += (nodes - self.mean_nodes) / 64.0;
        self.waiting.add(Held {
            class: self.classes.of(&shape),
            for_turn: for_turn || shape.num_nodes > 1,
            since: Instant::now(),
            nodes,
            ask,
            job,
        });
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds.clamp(0.0, 1e9) * 1_000.0) as u64
}
