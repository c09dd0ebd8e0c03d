//! What to ask the service for: enough that no place stays empty, no more than will start soon, so that
//! another launcher of the Site finds the rest. Pure.
//!
//! While the service has Jobs, each question asks for what is missing and is answered at once. When one
//! comes back empty, the next one waits at the service until a Job turns up.

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
/// The most Jobs that wait here for that.
const MAX_PREFETCH: f64 = 1_024.0;
/// Less than this part of a node is no room.
const CRUMB: f64 = 1e-3;

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
    /// Jobs of one node that wait here.
    pub waiting: usize,
    /// What they will occupy, in nodes.
    pub waiting_nodes: f64,
    /// Whether a Job of several nodes waits here.
    pub wide_waits: bool,
    /// Jobs that end in a second.
    pub rate: f64,
    /// What one Job occupies on average, in nodes.
    pub mean_nodes: f64,
    /// Minutes that a Job may take.
    pub minutes_left: i32,
    /// Whether the last question came back empty.
    pub is_drained: bool,
}

/// The next question; `None` when nothing is missing.
#[must_use]
pub fn question(terms: &Terms, present: &Present) -> Option<Acquire> {
    let Present { room, waiting, .. } = *present;
    let rate = if present.rate < MIN_RATE { 0.0 } else { present.rate };
    let prefetch = (rate * PREFETCH_SEC).min(MAX_PREFETCH).floor();
    let missing_jobs = room.free_cores as f64 + prefetch - waiting as f64;
    let missing_nodes = room.free_nodes + prefetch * present.mean_nodes - present.waiting_nodes;
    // Small questions in a fast stream cost more than they bring.
    let is_worth_it = missing_jobs >= (prefetch / 2.0).max(1.0);
    if room.nodes == 0 || missing_nodes < CRUMB || !is_worth_it {
        return None;
    }
    let all = room.nodes as f64;
    let most_nodes = match (terms.serial_only, present.wide_waits) {
        (true, _) => 1,
        // It has the next turn; only what fits beside it is asked for.
        (false, true) => room.empty_nodes.max(1),
        (false, false) => room.nodes,
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
    if present.is_drained {
        question.wait_sec = MAX_WAIT_SEC * 0.8;
        if !terms.serial_only && !present.wide_waits && missing_nodes < all {
            // The first in the service's order may be one that does not fit yet. It is taken, alone, and waits
            // here for its turn; else everything behind it would wait with it.
            question.max_num_jobs = 1;
            question.max_aggregate_nodes = Some(all + 1e-6);
        }
    }
    Some(question)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(nodes: usize, free: f64, cores: usize) -> Present {
        let room = Room { nodes, empty_nodes: free as usize, free_nodes: free, free_cores: cores };
        Present {
            room,
            waiting: 0,
            waiting_nodes: 0.0,
            wide_waits: false,
            rate: 0.0,
            mean_nodes: 1.0,
            minutes_left: 10,
            is_drained: false,
        }
    }

    fn terms(serial_only: bool) -> Terms {
        Terms { filter_tags: StringMap::new(), serial_only, sort_by: SortBy::SmallFirst }
    }

    #[test]
    fn empty_nodes_are_asked_to_be_filled_and_full_ones_not() {
        let asked = question(&terms(false), &present(4, 4.0, 256)).unwrap();
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
        let asked = question(&terms(true), &quick).unwrap();
        assert_eq!(asked.max_num_jobs, 400);
        assert!(asked.max_aggregate_nodes.unwrap() > 199.0);
        let served = Present { waiting: 300, waiting_nodes: 150.0, ..quick };
        assert!(question(&terms(true), &served).is_none());
        assert!(question(&terms(true), &Present { rate: 9.0, ..quick }).is_none());
    }

    #[test]
    fn a_wide_job_gets_its_turn() {
        let drained = Present { is_drained: true, ..present(4, 1.5, 100) };
        let asked = question(&terms(false), &drained).unwrap();
        assert_eq!((asked.max_num_jobs, asked.max_nodes_per_job), (1, Some(4)));
        assert!(asked.wait_sec > 0.0 && asked.max_aggregate_nodes.unwrap() >= 4.0);
        let waits = Present { wide_waits: true, ..drained };
        let asked = question(&terms(false), &waits).unwrap();
        assert_eq!(asked.max_nodes_per_job, Some(1));
        assert!(asked.max_aggregate_nodes.unwrap() < 2.0);
    }
}
