//! The packer: takes Jobs in, says which may start and where, takes places back. The rules of
//! reservations are in `reserve`, what is free on a node in `node`, the order in `queue`.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap},
};

use copal_schemas::{JobId, settings::SortBy};

use super::{
    Ask, Misfit, NodePart, Placement, Room,
    index::Index,
    need::{Need, NodeKind},
    node::NodeState,
    queue::{GroupId, Head, Line, OrderKey, Queue},
    reserve::{Reservation, Slot, nearest},
};
use crate::nodes::Node;

/// Estimates are whole minutes: a Job that says it takes as long as the launcher lives may still start.
pub(super) const MARGIN_SEC: f64 = 60.0;

/// A Job that runs.
#[derive(Debug)]
struct Run {
    need: Need,
    parts: Vec<NodePart>,
}

/// The groups that are still to be asked, by their next Job.
#[derive(Debug, Default)]
struct LineUp {
    heads: BinaryHeap<Reverse<(OrderKey, GroupId)>>,
    /// The first Job for each slot that was asked in vain.
    passed: [Option<OrderKey>; 2],
}

impl LineUp {
    fn pass(&mut self, head: &Head) {
        let first = &mut self.passed[Slot::of(&head.line) as usize];
        if first.is_none_or(|first| head.key < first) {
            *first = Some(head.key);
        }
    }
}

/// Who waits, who runs where, and what is free.
#[derive(Debug)]
pub struct Packer {
    sort_by: SortBy,
    pub(super) nodes: Vec<NodeState>,
    /// The different kinds of nodes, and which one each node is.
    kinds: Vec<NodeKind>,
    kind_of: Vec<usize>,
    index: Index,
    /// Nodes on which nothing runs and that are not set aside.
    pub(super) empty: BTreeSet<usize>,
    pub(super) queue: Queue,
    running: HashMap<JobId, Run>,
    /// Nodes on which there may be more room than at the end of the last `place`.
    dirty: BTreeSet<usize>,
    pub(super) reservations: [Option<Reservation>; 2],
    /// Whose reservation a node is in.
    pub(super) holder: Vec<Option<Slot>>,
    pub(super) now_sec: f64,
    pub(super) end_sec: f64,
    most_jobs_per_node: usize,
}

impl Packer {
    /// All nodes empty, nobody waiting.
    #[must_use]
    pub fn new(nodes: &[Node], sort_by: SortBy) -> Self {
        let states: Vec<NodeState> = nodes.iter().map(|node| NodeState::new(node, usize::MAX)).collect();
        let index = Index::new(states.iter().map(NodeState::free));
        let mut packer = Self {
            sort_by,
            index,
            kinds: Vec::new(),
            kind_of: Vec::new(),
            empty: (0..nodes.len()).collect(),
            queue: Queue::default(),
            running: HashMap::new(),
            dirty: BTreeSet::new(),
            reservations: [None, None],
            holder: vec![None; nodes.len()],
            now_sec: 0.0,
            end_sec: f64::INFINITY,
            most_jobs_per_node: usize::MAX,
            nodes: states,
        };
        packer.kind_of = nodes.iter().map(|node| packer.kind(node)).collect();
        packer
    }

    fn kind(&mut self, node: &Node) -> usize {
        let kind = NodeKind::new(node);
        self.kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
            self.kinds.push(kind);
            self.kinds.len() - 1
        })
    }

    /// Lets at most so many Jobs (one at least) run on a node at the same time, whatever they ask.
    pub fn limit_jobs_per_node(&mut self, limit: usize) {
        self.most_jobs_per_node = limit.max(1);
        for node in 0..self.nodes.len() {
            self.nodes[node].limit_jobs(self.most_jobs_per_node);
            self.changed(node);
        }
    }

    /// Says what a node really has, as its own worker found it. Only while nothing runs there; whether it was done.
    pub fn set_node(&mut self, node: usize, hardware: &Node) -> bool {
        if !self.nodes.get(node).is_some_and(NodeState::is_empty) {
            return false;
        }
        let mut state = NodeState::new(hardware, self.most_jobs_per_node);
        state.set_aside(self.nodes[node].is_aside());
        self.nodes[node] = state;
        self.kind_of[node] = self.kind(hardware);
        self.drop_reservation_of_node(node);
        self.changed(node);
        true
    }

    /// A Job begins to wait. One that waits or runs already stays as it is.
    ///
    /// # Errors
    /// [`Misfit`] when no node (or not enough nodes) of the allocation could hold it even when empty.
    pub fn push(&mut self, ask: Ask) -> Result<(), Misfit> {
        if self.is_waiting(ask.job) || self.running.contains_key(&ask.job) {
            return Ok(());
        }
        if let Some(reason) = self.misfit(&ask) {
            return Err(Misfit { job: ask.job, reason });
        }
        let key = OrderKey::new(&ask, self.sort_by);
        self.queue.push(key, Line::new(&ask));
        Ok(())
    }

    /// Why the nodes of the allocation can't hold a Job even when all are empty; `None` when they can.
    #[must_use]
    pub fn misfit(&self, ask: &Ask) -> Option<String> {
        let wanted = Need::new(&ask.shape).nodes;
        let why: Vec<Option<String>> = self.kinds.iter().map(|kind| kind.misfit(&ask.shape)).collect();
        let kept = self.kind_of.iter().zip(&self.nodes).filter(|(_, node)| !node.is_retired());
        let fitting = kept.filter(|(kind, _)| why[**kind].is_none()).count();
        if fitting >= wanted {
            return None;
        }
        match why.into_iter().flatten().next() {
            Some(reason) if fitting == 0 => Some(reason),
            Some(reason) => Some(format!("{wanted} nodes are asked for; only {fitting} could hold it: {reason}")),
            None => Some(format!("{wanted} nodes are asked for; the allocation has {fitting}")),
        }
    }

    /// Whether it is too late to start a Job, as of the last [`Packer::place`].
    #[must_use]
    pub fn is_late(&self, ask: &Ask) -> bool {
        !self.in_time(&Line::new(ask))
    }

    /// A waiting Job is taken out. Whether it waited.
    pub fn withdraw(&mut self, job: JobId) -> bool {
        let slot = Slot::ALL.into_iter().find(|slot| self.reserved(*slot).is_some_and(|held| held.key.job == job));
        match slot {
            Some(slot) => self.take_reservation(slot).is_some(),
            None => self.queue.remove(job),
        }
    }

    /// Takes everything that may start at `now_sec` out of the waiting Jobs and gives it its place.
    /// `end_sec` is when all must be over; a Job that says it takes longer is not started.
    pub fn place(&mut self, now_sec: f64, end_sec: f64) -> Vec<Placement> {
        (self.now_sec, self.end_sec) = (now_sec, end_sec);
        let mut placed = Vec::new();
        self.refresh_reservations();
        self.forget_full_nodes();
        let mut untried = self.reserved_in_order();
        let mut line_up = LineUp::default();
        self.line_up(&mut line_up);
        loop {
            let head = line_up.heads.peek().map(|Reverse((key, _))| *key);
            // A Job with a reservation goes before all others, except those of higher priority.
            if let Some(slot) = untried.first().copied()
                && self.reserved(slot).is_none_or(|held| head.is_none_or(|head| held.key.urgency <= head.urgency))
            {
                untried.remove(0);
                placed.extend(self.start_reserved(slot));
                if untried.is_empty() && self.any_dirty() {
                    // Nodes that it kept may be free for others now.
                    self.line_up(&mut line_up);
                }
                continue;
            }
            let Some(Reverse((key, group))) = line_up.heads.pop() else { break };
            self.try_head(key, group, &mut line_up, &mut placed);
        }
        self.reserve_for_wide();
        self.dirty.clear();
        placed
    }

    /// Groups of which a Job might start now.
    fn line_up(&mut self, line_up: &mut LineUp) {
        line_up.heads.clear();
        let mut vain = Vec::new();
        for (group, need, is_open) in self.queue.groups() {
            if self.might_hold(need, !is_open) {
                let head = self.queue.head_after(group, None);
                line_up.heads.extend(head.map(|head| Reverse((head.key, group))));
            } else {
                vain.push(group);
                self.pass(group, None, line_up);
            }
        }
        vain.into_iter().for_each(|group| self.queue.block_group(group));
    }

    /// Remembers the first Job of a group behind `key` that could still end in time as one that is passed over.
    fn pass(&self, group: GroupId, key: Option<OrderKey>, line_up: &mut LineUp) {
        let heads = std::iter::successors(self.queue.head_after(group, key), |head| {
            self.queue.head_after(group, Some(head.key))
        });
        heads.filter(|head| self.in_time(&head.line)).take(1).for_each(|head| line_up.pass(&head));
    }

    /// Whether a node has what is asked, whoever keeps it. `freed_only` as in [`Packer::find`].
    fn might_hold(&self, need: &Need, freed_only: bool) -> bool {
        if need.is_wide() {
            return self.empty.len() >= need.nodes && !(freed_only && self.dirty.is_empty());
        }
        match freed_only {
            true => self.dirty.iter().any(|node| self.nodes[*node].fits(need)),
            false => self.index.first(need, &|node| self.nodes[node].fits(need)).is_some(),
        }
    }

    /// Starts the Job at `key` of a group if it may, and lines up the next one of the group.
    fn try_head(&mut self, key: OrderKey, group: GroupId, line_up: &mut LineUp, placed: &mut Vec<Placement>) {
        let Some(head) = self.queue.head(group, key) else { return };
        let line = head.line;
        let mut started = false;
        if self.in_time(&line) {
            let mut nodes = self.find(&line, key.urgency, None, head.blocked);
            if nodes.is_some() && self.keep_for_passed(key, line_up) {
                nodes = self.find(&line, key.urgency, None, head.blocked);
            }
            match nodes {
                Some(nodes) => {
                    self.queue.remove(key.job);
                    placed.push(self.start(key.job, &line, nodes));
                    started = true;
                }
                None => {
                    self.queue.block(group, &head);
                    line_up.pass(&head);
                }
            }
        }
        // Where nothing has room for one of them, the rest of the group need not be asked.
        if started && !self.might_hold(&line.need, head.blocked) {
            self.pass(group, Some(key), line_up);
            return;
        }
        let next = self.queue.head_after(group, Some(key));
        line_up.heads.extend(next.map(|next| Reverse((next.key, group))));
    }

    /// Keeps nodes for those that would be overtaken by the Job at `key`, one for each slot. If that can't help one,
    /// because it could not end in time, it may be overtaken. Whether anything was kept.
    fn keep_for_passed(&mut self, key: OrderKey, line_up: &mut LineUp) -> bool {
        let mut kept = false;
        for slot in Slot::ALL {
            if self.reserved(slot).is_none()
                && let Some(first) = line_up.passed[slot as usize].take_if(|passed| *passed < key)
            {
                kept |= self.reserve(first.job);
            }
        }
        kept
    }

    /// Whether a Job is over in time if it starts now.
    pub(super) fn in_time(&self, line: &Line) -> bool {
        line.minutes == 0 || self.now_sec + line.seconds() <= self.end_sec + MARGIN_SEC
    }

    /// Where a Job may start now. `freed_only` looks only at nodes that were freed since the last time.
    pub(super) fn find(&self, line: &Line, urgency: i64, slot: Option<Slot>, freed_only: bool) -> Option<Vec<usize>> {
        let need = &line.need;
        let check = |node: usize| self.nodes[node].fits(need) && self.may_use(node, line, urgency, slot);
        if need.is_wide() {
            if self.empty.len() < need.nodes || (freed_only && self.dirty.is_empty()) {
                return None;
            }
            let free: Vec<usize> = self.empty.iter().copied().filter(|node| check(*node)).collect();
            return nearest(&free, need.nodes);
        }
        let node = match freed_only {
            true => self.dirty.iter().copied().find(|node| check(*node)),
            false => self.index.first(need, &check),
        };
        node.map(|node| vec![node])
    }

    pub(super) fn start(&mut self, job: JobId, line: &Line, nodes: Vec<usize>) -> Placement {
        let until_sec = self.now_sec + line.seconds();
        let mut parts = Vec::with_capacity(nodes.len());
        for node in nodes {
            parts.push(self.nodes[node].take(node, job, &line.need, until_sec));
            self.empty.remove(&node);
            self.index.set(node, self.nodes[node].free());
            if !self.nodes[node].has_room() {
                self.dirty.remove(&node);
            }
        }
        self.running.insert(job, Run { need: line.need, parts: parts.clone() });
        Placement { job, parts }
    }

    /// A run is over: its place is free again. Whether it ran.
    pub fn release(&mut self, job: JobId) -> bool {
        let Some(run) = self.running.remove(&job) else { return false };
        for part in &run.parts {
            self.nodes[part.node].give_back(job, &run.need, part);
            self.changed(part.node);
        }
        true
    }

    /// A node may have more room, or less.
    fn changed(&mut self, node: usize) {
        let state = &self.nodes[node];
        self.index.set(node, state.free());
        if state.is_empty() && !state.is_aside() {
            self.empty.insert(node);
        } else {
            self.empty.remove(&node);
        }
        self.dirty.insert(node);
    }

    pub(super) fn mark_dirty(&mut self, node: usize) {
        self.dirty.insert(node);
    }

    pub(super) fn dirty_nodes(&self) -> impl Iterator<Item = usize> + '_ {
        self.dirty.iter().copied()
    }

    fn any_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    fn forget_full_nodes(&mut self) {
        let nodes = &self.nodes;
        self.dirty.retain(|node| nodes[*node].has_room());
    }

    /// Starts nothing more on a node; what runs there goes on.
    pub fn set_aside(&mut self, node: usize) {
        self.keep_aside(node, true);
    }

    /// A node will not be used any more: set aside for good.
    pub fn retire(&mut self, node: usize) {
        if let Some(state) = self.nodes.get_mut(node) {
            state.retire();
            self.keep_aside(node, true);
        }
    }

    /// Whether all nodes are still used that there were.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.nodes.iter().any(NodeState::is_retired)
    }

    /// Ends [`Packer::set_aside`].
    pub fn bring_back(&mut self, node: usize) {
        self.keep_aside(node, false);
    }

    fn keep_aside(&mut self, node: usize, aside: bool) {
        if node < self.nodes.len() {
            self.nodes[node].set_aside(aside);
            self.drop_reservation_of_node(node);
            self.changed(node);
        }
    }

    /// What could be acquired now. A node that is kept for a wide Job has no room for others.
    #[must_use]
    pub fn room(&self) -> Room {
        let mut room = Room { empty_nodes: self.empty.len(), ..Room::default() };
        for (state, holder) in self.nodes.iter().zip(&self.holder) {
            if state.is_aside() {
                continue;
            }
            room.nodes += 1;
            if state.has_room() && *holder != Some(Slot::Wide) {
                room.free_jobs += state.free_jobs();
                room.free_nodes += f64::from(state.free_occupancy()) / f64::from(copal_schemas::resources::WHOLE);
            }
        }
        room
    }

    /// How many Jobs wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.reservations.iter().flatten().count()
    }

    /// Whether a Job waits.
    #[must_use]
    pub fn is_waiting(&self, job: JobId) -> bool {
        self.queue.contains(job) || self.reservations.iter().flatten().any(|held| held.key.job == job)
    }

    /// How many Jobs run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// The Jobs that wait, first in line first.
    #[must_use]
    pub fn waiting_jobs(&self) -> Vec<JobId> {
        let reserved = self.reservations.iter().flatten().map(|held| held.key);
        let mut keys: Vec<OrderKey> = self.queue.keys().chain(reserved).collect();
        keys.sort_unstable();
        keys.into_iter().map(|key| key.job).collect()
    }

    /// What a running Job holds on a node.
    pub(super) fn held(&self, job: JobId, node: usize) -> Option<(&Need, &NodePart)> {
        let run = self.running.get(&job)?;
        Some((&run.need, run.parts.iter().find(|part| part.node == node)?))
    }
}
