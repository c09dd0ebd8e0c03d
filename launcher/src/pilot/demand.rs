//! What to ask the service for: enough that no place stays empty, no more than will start soon, so that
//! another launcher of the Site finds the rest. Pure.
//!
//! While the service has Jobs, each question asks for what is missing and is answered at once. When one
//! comes back empty, the next one asks for a Job that does not fit yet, so that it gets its turn; then one waits at the
//! service until something turns up that fits. A Job that fits elsewhere goes there, since who has room for it waits.

use std::time::Duration;

use copal_schemas::{
    StringMap,
    session::{Acquire, MAX_ACQUIRE, MAX_WAIT_SEC},
    settings::SortBy,
};

use crate::packing::Room;

/// Seconds of work that wait here while Jobs end quickly, so that a place is refilled without asking.
const PREFETCH_SEC: f64 = 0.4;
/// While fewer Jobs end in a second nothing is fetched ahead: a question takes no time against theirs, and another
/// launcher may stand idle.
const MIN_RATE: f64 = 10.0;
/// Below this what was fetched ahead is given back. It is lower, so that a rate near the bound makes no to and fro.
const SLOW_RATE: f64 = MIN_RATE / 2.0;
/// The most Jobs that wait here for that.
const MAX_PREFETCH: f64 = 1_024.0;
/// Less than this part of a node is no room.
pub(super) const CRUMB: f64 = 1e-3;
/// How long a question waits at the service. It says what is free when it is asked, and while something runs more may
/// become free; with all nodes empty it can't.
const WAIT_SEC: f64 = MAX_WAIT_SEC * 0.8;
const SHORT_WAIT_SEC: f64 = 5.0;
/// What comes later than this before the end would be cut off at once, and perhaps come again to the next one: launchers
/// of one allocation end one after the other.
const LAST: Duration = Duration::from_secs(1);

/// Of which kind the next question is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// For what is missing, answered at once.
    #[default]
    Fill,
    /// For one Job that does not fit yet, answered at once.
    Turn,
    /// For what is missing; waits until there is something.
    Wait,
}

impl Kind {
    /// What to ask next, after a question that found so many Jobs.
    #[must_use]
    pub fn after(self, found: usize) -> Self {
        match self {
            _ if found > 0 => Self::Fill,
            Self::Fill | Self::Wait => Self::Turn,
            Self::Turn => Self::Wait,
        }
    }
}

/// What stays the same.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Tags that a Job must have.
    pub filter_tags: StringMap,
    /// Only Jobs of one rank on one node.
    pub serial_only: bool,
    /// The order.
    pub sort_by: SortBy,
}

/// How things are.
#[derive(Clone, Copy, Debug)]
pub struct Present {
    /// What is free.
    pub room: Room,
    /// Jobs of one node that wait here for the next place.
    pub waiting: usize,
    /// What they will occupy, in nodes.
    pub waiting_nodes: f64,
    /// Whether a Job waits here that did not fit when it came, or one of several nodes.
    pub turn_waits: bool,
    /// Jobs that end in a second.
    pub rate: f64,
    /// What one Job occupies on average, in nodes.
    pub mean_nodes: f64,
    /// Minutes that a Job may take.
    pub minutes_left: i32,
    /// The time until all runs are ended.
    pub left: Duration,
    /// Of which kind the question is.
    pub kind: Kind,
}

impl Present {
    /// Whether nothing runs: more than is free now can't become free.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.room.empty_nodes == self.room.nodes
    }
}

/// How many Jobs wait here while so many end in a second.
fn prefetch(rate: f64) -> f64 {
    let rate = if rate < MIN_RATE { 0.0 } else { rate };
    (rate * PREFETCH_SEC).min(MAX_PREFETCH).floor()
}

/// Whether Jobs end so slowly that none must wait here.
#[must_use]
pub fn is_slow(rate: f64) -> bool {
    rate < SLOW_RATE
}

/// The next question, and of which kind it really is; `None` when nothing is missing.
#[must_use]
pub fn question(terms: &Terms, present: &Present) -> Option<(Acquire, Kind)> {
    let Present { room, waiting, .. } = *present;
    let prefetch = prefetch(present.rate);
    let missing_jobs = room.free_jobs as f64 + prefetch - waiting as f64;
    let missing_nodes = room.free_nodes + prefetch * present.mean_nodes - present.waiting_nodes;
    // Small questions in a fast stream cost more than they bring.
    let is_worth_it = missing_jobs >= (prefetch / 2.0).max(1.0);
    if room.nodes == 0 || missing_nodes < CRUMB || !is_worth_it {
        return None;
    }
    let most_wait_sec = present.left.checked_sub(LAST)?.as_secs_f64();
    let all = room.nodes as f64;
    let is_partly_full = missing_nodes < all - CRUMB;
    let kind = match present.kind {
        Kind::Turn if !is_partly_full || present.turn_waits => Kind::Wait,
        kind => kind,
    };
    let most_nodes = match kind {
        _ if terms.serial_only => 1,
        // It has the next turn; only what fits beside it is asked for.
        _ if present.turn_waits => room.empty_nodes.max(1),
        // A question that waits takes nothing away from those who have room for it.
        Kind::Wait => room.empty_nodes.max(1),
        Kind::Fill | Kind::Turn => room.nodes,
    };
    let mut question = Acquire {
        max_num_jobs: (missing_jobs as i64).clamp(1, MAX_ACQUIRE),
        filter_tags: terms.filter_tags.clone(),
        max_wall_time_min: Some(present.minutes_left),
        max_nodes_per_job: i32::try_from(most_nodes).ok(),
        // The service adds fractions up in floating point; a hair more than a whole is still a whole.
        max_aggregate_nodes: Some(missing_nodes + 1e-6),
        serial_only: terms.serial_only,
        sort_by: Some(terms.sort_by.as_str().into()),
        ..Acquire::default()
    };
    match kind {
        Kind::Fill => {}
        // The first in the service's order may be one that does not fit yet. It is taken, alone, and waits
        // here for its turn; else everything behind it would wait with it.
        Kind::Turn => {
            question.max_num_jobs = 1;
            question.max_aggregate_nodes = Some(all + 1e-6);
        }
        Kind::Wait => {
            let wait_sec = if is_partly_full { SHORT_WAIT_SEC } else { WAIT_SEC };
            question.wait_sec = wait_sec.min(most_wait_sec);
        }
    }
    Some((question, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(nodes: usize, free: f64, cores: usize) -> Present {
        let room = Room { nodes, empty_nodes: free as usize, free_nodes: free, free_jobs: cores };
        Present {
            room,
            waiting: 0,
            waiting_nodes: 0.0,
            turn_waits: false,
            rate: 0.0,
            mean_nodes: 1.0,
            minutes_left: 10,
            left: Duration::from_secs(600),
            kind: Kind::Fill,
        }
    }

    fn terms(serial_only: bool) -> Terms {
        Terms { filter_tags: StringMap::new(), serial_only, sort_by: SortBy::SmallFirst }
    }

    #[test]
    fn empty_nodes_are_asked_to_be_filled_and_full_ones_not() {
        let (asked, _) = question(&terms(false), &present(4, 4.0, 256)).unwrap();
        assert_eq!((asked.max_num_jobs, asked.max_nodes_per_job, asked.wait_sec), (256, Some(4), 0.0));
        assert!(question(&terms(false), &present(4, 0.0, 0)).is_none());
        assert!(question(&terms(false), &present(0, 0.0, 0)).is_none());
    }

    #[test]
    fn what_waits_here_is_not_asked_for_again() {
        let full = Present { waiting: 8, waiting_nodes: 1.0, ..present(1, 1.0, 8) };
        assert!(question(&terms(true), &full).is_none());
    }

    #[test]
    fn quick_jobs_are_fetched_ahead_and_long_ones_not() {
        let quick = Present { rate: 1_000.0, mean_nodes: 0.5, ..present(1, 0.0, 0) };
        let (asked, _) = question(&terms(true), &quick).unwrap();
        assert_eq!(asked.max_num_jobs, 400);
        assert!(asked.max_aggregate_nodes.unwrap() > 199.0);
        let served = Present { waiting: 300, waiting_nodes: 150.0, ..quick };
        assert!(question(&terms(true), &served).is_none());
        assert!(question(&terms(true), &Present { rate: 9.0, ..quick }).is_none());
    }

    #[test]
    fn a_wide_job_gets_its_turn() {
        let drained = Present { kind: Kind::Turn, ..present(4, 1.5, 100) };
        let (asked, kind) = question(&terms(false), &drained).unwrap();
        assert_eq!((kind, asked.max_num_jobs, asked.max_nodes_per_job, asked.wait_sec), (Kind::Turn, 1, Some(4), 0.0));
        assert!(asked.max_aggregate_nodes.unwrap() >= 4.0);
        let waits = Present { turn_waits: true, ..drained };
        let (asked, kind) = question(&terms(false), &waits).unwrap();
        assert_eq!((kind, asked.max_nodes_per_job), (Kind::Wait, Some(1)));
        assert!(asked.max_aggregate_nodes.unwrap() < 2.0 && asked.wait_sec > 0.0);
    }

    #[test]
    fn who_waits_takes_nothing_that_does_not_fit() {
        let partly_full = Present { kind: Kind::Wait, ..present(4, 1.5, 100) };
        let (asked, _) = question(&terms(false), &partly_full).unwrap();
        assert_eq!((asked.max_nodes_per_job, asked.wait_sec), (Some(1), SHORT_WAIT_SEC));
        assert!(asked.max_aggregate_nodes.unwrap() < 2.0);
        // What is free does not grow while all is; a Job of all nodes fits.
        let empty = Present { kind: Kind::Wait, ..present(4, 4.0, 256) };
        let (asked, _) = question(&terms(false), &empty).unwrap();
        assert_eq!((asked.max_nodes_per_job, asked.wait_sec), (Some(4), WAIT_SEC));
    }

    #[test]
    fn nothing_is_asked_for_that_would_be_cut_off_at_once() {
        let late = Present { kind: Kind::Wait, left: Duration::from_secs(5), ..present(4, 4.0, 256) };
        assert_eq!(question(&terms(false), &late).unwrap().0.wait_sec, 4.0);
        assert!(question(&terms(false), &Present { left: Duration::from_millis(900), ..late }).is_none());
    }

    #[test]
    fn the_kinds_follow_each_other() {
        let kinds = std::iter::successors(Some(Kind::Fill), |kind| Some(kind.after(0)));
        assert_eq!(kinds.take(5).collect::<Vec<_>>(), [Kind::Fill, Kind::Turn, Kind::Wait, Kind::Turn, Kind::Wait]);
        assert_eq!(Kind::Wait.after(1), Kind::Fill);
    }
}
