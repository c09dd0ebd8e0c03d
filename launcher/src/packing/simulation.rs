//! Placement in virtual time: thousands of small random workloads, against Balsam's rule and a lower bound.
//! The table that `docs/PLACEMENT.md` shows is printed by the example that this shares its world with.

use copal_schemas::settings::SortBy;

use crate::{hardware, nodes, packing};

#[path = "../../examples/packing_simulation/world.rs"]
mod world;

use world::{Balsam, Dice, Outcome, Policy, Workload};

const NODES: usize = 8;
const JOBS: usize = 40;

/// Mean of makespan over bound, and mean of the longest wait of a wide Job in seconds.
fn means(workload: Workload, seeds: u64, policy: impl Fn() -> Box<dyn Policy>) -> (f64, f64) {
    let (mut excess, mut wide) = (0.0, 0.0);
    for seed in 0..seeds {
        let jobs = workload.jobs(&mut Dice::new(seed), JOBS, NODES);
        let outcome: Outcome = world::run(policy().as_mut(), &jobs, NODES);
        assert_eq!(outcome.finished, JOBS, "{workload:?} {seed}: Jobs were forgotten");
        assert!(outcome.makespan_sec >= outcome.bound_sec, "{workload:?} {seed}: too good to be true");
        assert!(outcome.utilisation <= 1.0 && outcome.mean_wait_sec >= 0.0);
        excess += outcome.makespan_sec as f64 / outcome.bound_sec as f64;
        wide += outcome.longest_wide_wait_sec as f64;
    }
    (excess / seeds as f64, wide / seeds as f64)
}

#[test]
fn every_order_finishes_every_workload_near_the_bound() {
    for workload in Workload::ALL {
        for sort_by in
            [SortBy::SmallFirst, SortBy::LongLargeFirst, SortBy::Fifo, SortBy::Priority, SortBy::ShortestFirst]
        {
            let (excess, _) = means(workload, 100, || Box::new(world::copal(NODES, sort_by)));
            assert!(excess < 1.7, "{workload:?} {sort_by:?}: {excess}");
        }
    }
}

#[test]
fn no_rule_of_balsams_is_better() {
    for workload in Workload::ALL {
        let (balsam, _) = means(workload, 200, || Box::new(Balsam::new(NODES)));
        let (copal, _) = means(workload, 200, || Box::new(world::copal(NODES, SortBy::LongLargeFirst)));
        assert!(copal <= balsam * 1.005, "{workload:?}: {copal} against {balsam}");
    }
}

#[test]
fn wide_jobs_of_a_stream_do_not_wait_for_its_end() {
    let (_, balsam) = means(Workload::Stream, 200, || Box::new(Balsam::new(NODES)));
    let (_, copal) = means(Workload::Stream, 200, || Box::new(world::copal(NODES, SortBy::SmallFirst)));
    assert!(copal < balsam, "{copal} against {balsam}");
}
