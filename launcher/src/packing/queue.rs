//! The Jobs that wait, in order. Jobs that ask the same stand in one line, since where the first of
//! them does not fit the others don't either.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use copal_schemas::{JobId, settings::SortBy};

use super::{Ask, need::Need};

/// A Job's place in the order: smaller is earlier. Priority comes before the rest of any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OrderKey {
    /// Priority, negated.
    pub(super) urgency: i64,
    rest: [i64; 3],
    pub(super) job: JobId,
}

impl OrderKey {
    pub(super) fn new(ask: &Ask, sort_by: SortBy) -> Self {
        let nodes = i64::from(ask.shape.num_nodes);
        let packing = i64::from(ask.shape.node_packing_count);
        let minutes = i64::from(ask.wall_time_min);
        let rest = match sort_by {
            SortBy::SmallFirst => [nodes, -packing, -minutes],
            SortBy::LongLargeFirst => [-minutes, -nodes, -packing],
            SortBy::Fifo | SortBy::Priority => [0; 3],
            SortBy::ShortestFirst => [minutes, 0, 0],
        };
        Self { urgency: -i64::from(ask.priority), rest, job: ask.job }
    }
}

/// What makes Jobs interchangeable, except for their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Line {
    pub(super) need: Need,
    /// Minutes that it is thought to take; 0 where not known.
    pub(super) minutes: u32,
}

impl Line {
    pub(super) fn new(ask: &Ask) -> Self {
        let positive = |minutes: i32| u32::try_from(minutes).ok().filter(|minutes| *minutes > 0);
        // The limit is enforced, so it bounds an estimate and stands in for one.
        let limit = ask.walltime_limit_min.and_then(positive);
        let minutes = match (positive(ask.wall_time_min), limit) {
            (Some(estimate), Some(limit)) => estimate.min(limit),
            (estimate, limit) => estimate.or(limit).unwrap_or(0),
        };
        Self { need: Need::new(&ask.shape), minutes }
    }

    /// Seconds that it is thought to take; infinite where not known.
    pub(super) fn seconds(&self) -> f64 {
        if self.minutes == 0 { f64::INFINITY } else { f64::from(self.minutes) * 60.0 }
    }
}

/// The Jobs of one line.
#[derive(Debug)]
struct Members {
    line: Line,
    keys: BTreeSet<OrderKey>,
    /// It was tried and did not fit; only nodes freed since then can change that.
    blocked: bool,
}

/// All lines, and the order between their first Jobs.
#[derive(Debug, Default)]
pub(super) struct Queue {
    lines: Vec<Option<Members>>,
    unused: Vec<usize>,
    by_line: HashMap<Line, usize>,
    heads: BTreeMap<OrderKey, usize>,
    of: HashMap<JobId, (OrderKey, usize)>,
    /// The Jobs on more than one node.
    wide: BTreeSet<OrderKey>,
    /// Lines that are not blocked.
    open: usize,
}

/// The first Job of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) key: OrderKey,
    pub(super) line: Line,
    pub(super) blocked: bool,
    at: usize,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    /// How many lines there are, with those kept for later use.
    #[cfg(test)]
    pub(super) fn lines(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn contains(&self, job: JobId) -> bool {
        self.of.contains_key(&job)
    }

    /// Whether a line waits that was not tried in vain.
    pub(super) fn has_open(&self) -> bool {
        self.open > 0
    }

    pub(super) fn push(&mut self, key: OrderKey, line: Line) {
        let at = match self.by_line.get(&line) {
            Some(at) => *at,
            None => self.add_line(line),
        };
        let Some(members) = self.lines[at].as_mut() else { return };
        let before = members.keys.first().copied();
        members.keys.insert(key);
        self.of.insert(key.job, (key, at));
        if line.need.is_wide() {
            self.wide.insert(key);
        }
        if before.is_some_and(|before| before < key) {
            return;
        }
        if let Some(before) = &before {
            self.heads.remove(before);
        }
        self.heads.insert(key, at);
        // What was kept from a less urgent Job may be free for a more urgent one.
        if members.blocked && before.is_none_or(|before| key.urgency < before.urgency) {
            members.blocked = false;
            self.open += 1;
        }
    }

    fn add_line(&mut self, line: Line) -> usize {
        let members = Members { line, keys: BTreeSet::new(), blocked: false };
        let at = match self.unused.pop() {
            Some(at) => {
                self.lines[at] = Some(members);
                at
            }
            None => {
                self.lines.push(Some(members));
                self.lines.len() - 1
            }
        };
        self.by_line.insert(line, at);
        self.open += 1;
        at
    }

    /// Takes a Job out. Whether it was in.
    pub(super) fn remove(&mut self, job: JobId) -> bool {
        let Some((key, at)) = self.of.remove(&job) else { return false };
        let Some(members) = self.lines[at].as_mut() else { return false };
        members.keys.remove(&key);
        self.wide.remove(&key);
        self.heads.remove(&key);
        match members.keys.first() {
            Some(first) => {
                self.heads.insert(*first, at);
            }
            None => {
                self.open -= usize::from(!members.blocked);
                self.by_line.remove(&members.line);
                self.lines[at] = None;
                self.unused.push(at);
            }
        }
        true
    }

    /// The first head behind `key`, or the first of all.
    pub(super) fn head_after(&self, key: Option<OrderKey>) -> Option<Head> {
        let from = key.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let (key, at) = self.heads.range((from, std::ops::Bound::Unbounded)).next()?;
        let members = self.lines[*at].as_ref()?;
        Some(Head { key: *key, line: members.line, blocked: members.blocked, at: *at })
    }

    /// The Jobs on more than one node, in order.
    pub(super) fn wide(&self) -> impl Iterator<Item = (OrderKey, Line)> + '_ {
        let line = |key: &OrderKey| Some((*key, self.lines[self.of.get(&key.job)?.1].as_ref()?.line));
        self.wide.iter().filter_map(line)
    }

    /// Remembers that a line was tried in vain.
    pub(super) fn block(&mut self, head: &Head) {
        if let Some(members) = self.lines[head.at].as_mut()
            && !members.blocked
        {
            members.blocked = true;
            self.open -= 1;
        }
    }

    /// The line of a Job, and its place in the order.
    pub(super) fn line(&self, job: JobId) -> Option<(OrderKey, Line)> {
        let (key, at) = self.of.get(&job)?;
        Some((*key, self.lines[*at].as_ref()?.line))
    }

    /// All Jobs with their place in the order.
    pub(super) fn keys(&self) -> impl Iterator<Item = OrderKey> + '_ {
        self.of.values().map(|(key, _)| *key)
    }
}
