//! The Jobs that wait, in order. Jobs that ask the same and take as long stand in one line, since where
//! the first of them may not start the others may not either; lines that ask the same make a group, since
//! where one of them does not fit the others don't either.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
};

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
#[derive(Debug, Default)]
struct Members {
    keys: BTreeSet<OrderKey>,
    /// It was tried and did not fit; only nodes freed since then can change that.
    blocked: bool,
}

/// The lines that ask the same and differ in how long they take.
#[derive(Debug)]
struct Group {
    need: Need,
    /// By minutes.
    lines: BTreeMap<u32, Members>,
    /// The first Job of each line, and its minutes.
    heads: BTreeMap<OrderKey, u32>,
    /// Lines that are not blocked.
    open: usize,
}

/// A group, by its place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupId(usize);

/// All groups. There are few, however many Jobs wait, so that each look at them is short.
#[derive(Debug, Default)]
pub(super) struct Queue {
    groups: Vec<Option<Group>>,
    unused: Vec<usize>,
    by_need: HashMap<Need, usize>,
    of: HashMap<JobId, (OrderKey, usize, u32)>,
    /// The Jobs on more than one node.
    wide: BTreeSet<OrderKey>,
}

/// The first Job of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) key: OrderKey,
    pub(super) line: Line,
    pub(super) blocked: bool,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    /// How many groups there are, with those kept for later use.
    #[cfg(test)]
    pub(super) fn kept_groups(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn contains(&self, job: JobId) -> bool {
        self.of.contains_key(&job)
    }

    /// All groups, with what they ask and whether a line waits that was not tried in vain.
    pub(super) fn groups(&self) -> impl Iterator<Item = (GroupId, &Need, bool)> {
        let groups = self.groups.iter().enumerate();
        groups.filter_map(|(at, group)| group.as_ref().map(|group| (GroupId(at), &group.need, group.open > 0)))
    }

    /// The first head of a group behind `key`, or the first of all.
    pub(super) fn head_after(&self, id: GroupId, key: Option<OrderKey>) -> Option<Head> {
        let group = self.groups.get(id.0)?.as_ref()?;
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        let (key, minutes) = group.heads.range((from, Bound::Unbounded)).next()?;
        let blocked = group.lines.get(minutes)?.blocked;
        Some(Head { key: *key, line: Line { need: group.need, minutes: *minutes }, blocked })
    }

    /// The head at `key`.
    pub(super) fn head(&self, id: GroupId, key: OrderKey) -> Option<Head> {
        let group = self.groups.get(id.0)?.as_ref()?;
        let minutes = *group.heads.get(&key)?;
        let blocked = group.lines.get(&minutes)?.blocked;
        Some(Head { key, line: Line { need: group.need, minutes }, blocked })
    }

    pub(super) fn push(&mut self, key: OrderKey, line: Line) {
        let at = match self.by_need.get(&line.need) {
            Some(at) => *at,
            None => self.add_group(line.need),
        };
        let Some(group) = self.groups[at].as_mut() else { return };
        let known = group.lines.len();
        let members = group.lines.entry(line.minutes).or_default();
        let before = members.keys.first().copied();
        members.keys.insert(key);
        self.of.insert(key.job, (key, at, line.minutes));
        if line.need.is_wide() {
            self.wide.insert(key);
        }
        if before.is_none_or(|before| key < before) {
            if let Some(before) = &before {
                group.heads.remove(before);
            }
            group.heads.insert(key, line.minutes);
            // What was kept from a less urgent Job may be free for a more urgent one.
            if members.blocked && before.is_none_or(|before| key.urgency < before.urgency) {
                members.blocked = false;
                group.open += 1;
            }
        }
        group.open += group.lines.len() - known;
    }

    fn add_group(&mut self, need: Need) -> usize {
        let group = Group { need, lines: BTreeMap::new(), heads: BTreeMap::new(), open: 0 };
        let at = match self.unused.pop() {
            Some(at) => {
                self.groups[at] = Some(group);
                at
            }
            None => {
                self.groups.push(Some(group));
                self.groups.len() - 1
            }
        };
        self.by_need.insert(need, at);
        at
    }

    /// Takes a Job out. Whether it was in.
    pub(super) fn remove(&mut self, job: JobId) -> bool {
        let Some((key, at, minutes)) = self.of.remove(&job) else { return false };
        self.wide.remove(&key);
        let Some(group) = self.groups[at].as_mut() else { return false };
        group.heads.remove(&key);
        if let Some(members) = group.lines.get_mut(&minutes) {
            members.keys.remove(&key);
            match members.keys.first() {
                Some(first) => {
                    group.heads.insert(*first, minutes);
                }
                None => {
                    group.open -= usize::from(!members.blocked);
                    group.lines.remove(&minutes);
                }
            }
        }
        if group.lines.is_empty() {
            self.by_need.remove(&group.need);
            self.groups[at] = None;
            self.unused.push(at);
        }
        true
    }

    /// The Jobs on more than one node, in order.
    pub(super) fn wide(&self) -> impl Iterator<Item = (OrderKey, Line)> + '_ {
        self.wide.iter().filter_map(|key| self.line(key.job))
    }

    /// Remembers that a line was tried in vain.
    pub(super) fn block(&mut self, id: GroupId, head: &Head) {
        let Some(group) = self.groups.get_mut(id.0).and_then(Option::as_mut) else { return };
        if let Some(members) = group.lines.get_mut(&head.line.minutes)
            && !members.blocked
        {
            members.blocked = true;
            group.open -= 1;
        }
    }

    /// Remembers that all lines of a group were tried in vain.
    pub(super) fn block_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(id.0).and_then(Option::as_mut) else { return };
        if group.open > 0 {
            group.lines.values_mut().for_each(|members| members.blocked = true);
            group.open = 0;
        }
    }

    /// The line of a Job, and its place in the order.
    pub(super) fn line(&self, job: JobId) -> Option<(OrderKey, Line)> {
        let (key, at, minutes) = self.of.get(&job)?;
        Some((*key, Line { need: self.groups[*at].as_ref()?.need, minutes: *minutes }))
    }

    /// All Jobs with their place in the order.
    pub(super) fn keys(&self) -> impl Iterator<Item = OrderKey> + '_ {
        self.of.values().map(|(key, _, _)| *key)
    }
}
