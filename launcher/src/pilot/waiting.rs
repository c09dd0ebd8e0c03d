//! Jobs that are held and have not been given to a worker, by the packer's name for them and by class.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Instant,
};

use copal_schemas::{JobId, job::Job};

use crate::packing::Ask;

/// A Job that the Session holds.
#[derive(Debug)]
pub(super) struct Held {
    /// The Job.
    pub(super) job: Box<Job>,
    /// What it asks, under the packer's name for it.
    pub(super) ask: Ask,
    /// Jobs of the same class may follow each other in a slot.
    pub(super) class: u64,
    /// What it occupies, in nodes.
    pub(super) nodes: f64,
    /// Whether it waits for its turn and not for the next place: it takes several nodes, or did not fit when it came.
    pub(super) for_turn: bool,
    /// Since when it waits here.
    pub(super) since: Instant,
}

/// Those that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    held: HashMap<JobId, Held>,
    token_of: HashMap<JobId, JobId>,
    /// Packer's names in the order of arrival. Those that were taken another way are skipped when met.
    order: BTreeMap<u64, VecDeque<JobId>>,
    counts: BTreeMap<u64, usize>,
    turns: usize,
    next_nodes: f64,
}

impl Waiting {
    pub(super) fn add(&mut self, held: Held) {
        self.token_of.insert(held.job.id, held.ask.job);
        let count = self.counts.entry(held.class).or_default();
        *count += 1;
        let order = self.order.entry(held.class).or_default();
        // What was taken another way must not pile up.
        if order.len() > 2 * *count + 64 {
            order.retain(|token| self.held.contains_key(token));
        }
        order.push_back(held.ask.job);
        match held.for_turn {
            true => self.turns += 1,
            false => self.next_nodes += held.nodes,
        }
        self.held.insert(held.ask.job, held);
    }

    /// Takes out one by the packer's name for it.
    pub(super) fn take(&mut self, token: JobId) -> Option<Held> {
        let held = self.held.remove(&token)?;
        self.token_of.remove(&held.job.id);
        if let Some(count) = self.counts.get_mut(&held.class) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&held.class);
                self.order.remove(&held.class);
            }
        }
        match held.for_turn {
            true => self.turns -= 1,
            false => self.next_nodes -= held.nodes,
        }
        if self.held.is_empty() {
            // Rounding errors do not add up for ever.
            self.next_nodes = 0.0;
        }
        Some(held)
    }

    /// Takes out one by its Job.
    pub(super) fn take_job(&mut self, job: JobId) -> Option<Held> {
        let token = *self.token_of.get(&job)?;
        self.take(token)
    }

    /// Takes out the one of a class that came first.
    pub(super) fn next_of(&mut self, class: u64) -> Option<Held> {
        loop {
            let token = self.order.get_mut(&class)?.pop_front()?;
            if let Some(held) = self.take(token) {
                return Some(held);
            }
        }
    }

    /// The class of all that wait, where it is only one.
    pub(super) fn only_class(&self) -> Option<u64> {
        match self.counts.len() {
            1 => self.counts.keys().next().copied(),
            _ => None,
        }
    }

    pub(super) fn clear(&mut self) -> Vec<Held> {
        std::mem::take(self).held.into_values().collect()
    }

    pub(super) fn has(&self, job: JobId) -> bool {
        self.token_of.contains_key(&job)
    }

    pub(super) fn jobs(&self) -> impl Iterator<Item = JobId> + '_ {
        self.token_of.keys().copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Held> + '_ {
        self.held.values()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// One by the packer's name for it.
    pub(super) fn get(&self, token: JobId) -> Option<&Held> {
        self.held.get(&token)
    }

    /// How many wait for the next place.
    pub(super) fn for_next(&self) -> usize {
        self.held.len() - self.turns
    }

    /// What these occupy, in nodes.
    pub(super) fn next_nodes(&self) -> f64 {
        self.next_nodes
    }

    /// How many wait for their turn.
    pub(super) fn for_turn(&self) -> usize {
        self.turns
    }
}
