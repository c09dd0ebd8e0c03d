//! Reservations: a Job that does not fit yet keeps nodes, and only Jobs that end before it is due are
//! started on them. At most one wide Job and one single-node Job keep nodes at a time, never the same ones.

use std::cmp::Reverse;

use copal_schemas::JobId;

use super::{
    Placement,
    packer::{MARGIN_SEC, Packer},
    queue::{Line, OrderKey},
};

/// Nodes that are looked at closely for a single-node Job's turn: the emptiest ones. A good one among them is
/// worth more than the best one of thousands a millisecond later.
const LOOKED_AT: usize = 32;

/// Which of the two reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Of a Job on several nodes: the first in order that does not fit has one.
    Wide,
    /// Of a Job on one node: made when somebody would overtake it.
    Single,
}

impl Slot {
    pub(super) const ALL: [Self; 2] = [Self::Wide, Self::Single];

    pub(super) fn of(line: &Line) -> Self {
        if line.need.is_wide() { Self::Wide } else { Self::Single }
    }
}

/// Nodes kept for a Job.
#[derive(Clone, Debug)]
pub(super) struct Reservation {
    pub(super) key: OrderKey,
    pub(super) line: Line,
    pub(super) nodes: Vec<usize>,
    /// When they are thought to be free; infinite when not known.
    pub(super) due_sec: f64,
}

/// `wanted` of the nodes, as near to each other as can be: those that span the least of the host list.
/// The last such ones, since single-node Jobs fill up from the front.
pub(super) fn nearest(nodes: &[usize], wanted: usize) -> Option<Vec<usize>> {
    let windows = nodes.windows(wanted).rev();
    windows.min_by_key(|window| window[wanted - 1] - window[0]).map(<[usize]>::to_vec)
}

impl Packer {
    pub(super) fn reserved(&self, slot: Slot) -> Option<&Reservation> {
        self.reservations[slot as usize].as_ref()
    }

    /// Reservations, first in line first.
    pub(super) fn reserved_in_order(&self) -> Vec<Slot> {
        let mut slots: Vec<Slot> = Slot::ALL.into_iter().filter(|slot| self.reserved(*slot).is_some()).collect();
        slots.sort_by_key(|slot| self.reserved(*slot).map(|held| held.key));
        slots
    }

    /// Whether a Job may start on a node as far as reservations are concerned. `slot` is its own.
    pub(super) fn may_use(&self, node: usize, line: &Line, urgency: i64, slot: Option<Slot>) -> bool {
        let Some(holder) = self.holder[node] else { return true };
        let Some(held) = self.reserved(holder) else { return true };
        slot == Some(holder)
            || urgency < held.key.urgency
            || (held.due_sec.is_finite() && self.now_sec + line.seconds() <= held.due_sec)
    }

    /// Gives up reservations that came too late, and moves the wide one where it is due earlier.
    pub(super) fn refresh_reservations(&mut self) {
        for slot in Slot::ALL {
            if self.reserved(slot).is_some_and(|held| !self.in_time(&held.line)) {
                self.requeue(slot);
            }
        }
        let Some(held) = self.reserved(Slot::Wide) else { return };
        let (line, due_sec) = (held.line, held.due_sec.max(self.now_sec));
        // Only a node that became free sooner can bring the turn forward.
        if !self.dirty_nodes().any(|node| self.nodes[node].empty_at(self.now_sec) < due_sec) {
            return;
        }
        if let Some((nodes, earlier)) = self.plan(&line, Slot::Wide).filter(|(_, due)| *due < due_sec) {
            let Some(held) = self.take_reservation(Slot::Wide) else { return };
            self.keep(Slot::Wide, Reservation { nodes, due_sec: earlier, ..held });
        }
    }

    /// Starts the Job of a reservation when it fits, on its own nodes or on others.
    pub(super) fn start_reserved(&mut self, slot: Slot) -> Option<Placement> {
        let held = self.reserved(slot)?;
        let (job, line) = (held.key.job, held.line);
        let nodes = self.find(&line, held.key.urgency, Some(slot), false)?;
        self.take_reservation(slot);
        Some(self.start(job, &line, nodes))
    }

    /// Keeps nodes for a waiting Job. Whether that helps it: not when it could not end in time.
    pub(super) fn reserve(&mut self, job: JobId) -> bool {
        let Some((key, line)) = self.queue.line(job) else { return false };
        let slot = Slot::of(&line);
        let Some((nodes, due_sec)) = self.plan(&line, slot) else { return false };
        self.queue.remove(job);
        self.keep(slot, Reservation { key, line, nodes, due_sec });
        true
    }

    /// The first wide Job that waits keeps nodes, unless another one does.
    pub(super) fn reserve_for_wide(&mut self) {
        if self.reserved(Slot::Wide).is_some() {
            return;
        }
        let first = self.queue.wide().find(|(_, line)| self.in_time(line)).map(|(key, _)| key.job);
        if let Some(job) = first {
            self.reserve(job);
        }
    }

    fn keep(&mut self, slot: Slot, reservation: Reservation) {
        for node in &reservation.nodes {
            self.holder[*node] = Some(slot);
        }
        self.reservations[slot as usize] = Some(reservation);
    }

    /// Ends a reservation; others may use its nodes again.
    pub(super) fn take_reservation(&mut self, slot: Slot) -> Option<Reservation> {
        let held = self.reservations[slot as usize].take()?;
        for node in &held.nodes {
            self.holder[*node] = None;
            self.mark_dirty(*node);
        }
        Some(held)
    }

    /// Ends a reservation; its Job waits in line again.
    fn requeue(&mut self, slot: Slot) {
        if let Some(held) = self.take_reservation(slot) {
            self.queue.push(held.key, held.line);
        }
    }

    pub(super) fn drop_reservation_of_node(&mut self, node: usize) {
        if let Some(slot) = self.holder[node] {
            self.requeue(slot);
        }
    }

    /// The nodes on which a Job that does not fit now could start the earliest, and when.
    fn plan(&self, line: &Line, slot: Slot) -> Option<(Vec<usize>, f64)> {
        let (nodes, due_sec) = match slot {
            Slot::Wide => self.plan_wide(line)?,
            Slot::Single => self.plan_single(line)?,
        };
        let useless = due_sec.is_finite() && line.minutes > 0 && due_sec + line.seconds() > self.end_sec + MARGIN_SEC;
        (!useless).then_some((nodes, due_sec))
    }

    fn plan_wide(&self, line: &Line) -> Option<(Vec<usize>, f64)> {
        let wanted = line.need.nodes;
        let mut ends: Vec<(f64, usize, usize)> = self
            .candidates(line, Slot::Wide)
            .map(|node| (self.nodes[node].empty_at(self.now_sec), self.nodes[node].count_running(), node))
            .collect();
        if ends.len() < wanted {
            return None;
        }
        ends.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| (a.1, a.2).cmp(&(b.1, b.2))));
        let due_sec = ends[wanted - 1].0;
        if due_sec.is_finite() {
            let mut free: Vec<usize> = ends.iter().filter(|end| end.0 <= due_sec).map(|end| end.2).collect();
            free.sort_unstable();
            return nearest(&free, wanted).map(|nodes| (nodes, due_sec));
        }
        ends.truncate(wanted);
        Some((ends.into_iter().map(|end| end.2).collect(), due_sec))
    }

    fn plan_single(&self, line: &Line) -> Option<(Vec<usize>, f64)> {
        let at = |node: usize| self.nodes[node].fits_at(&line.need, self.now_sec, |job| self.held(job, node));
        let mut emptiest: Vec<usize> = self.candidates(line, Slot::Single).collect();
        if emptiest.len() > LOOKED_AT {
            let fill =
                |node: &usize| (Reverse(self.nodes[*node].free_occupancy()), Reverse(self.nodes[*node].free_cores()));
            emptiest.select_nth_unstable_by_key(LOOKED_AT - 1, fill);
            emptiest.truncate(LOOKED_AT);
        }
        let ends = emptiest.into_iter().map(|node| (at(node), self.nodes[node].count_running(), node));
        let (due_sec, _, node) = ends.min_by(|a, b| a.0.total_cmp(&b.0).then_with(|| (a.1, a.2).cmp(&(b.1, b.2))))?;
        Some((vec![node], due_sec))
    }

    fn candidates(&self, line: &Line, slot: Slot) -> impl Iterator<Item = usize> {
        let usable = move |node: &usize| {
            let state = &self.nodes[*node];
            !state.is_aside() && self.holder[*node].is_none_or(|holder| holder == slot) && state.could_hold(&line.need)
        };
        (0..self.nodes.len()).filter(usable)
    }
}
