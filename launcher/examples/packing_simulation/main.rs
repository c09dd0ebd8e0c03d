//! Simulates placement on virtual nodes and prints how well they were used: Copal's orders beside Balsam's
//! rule and a lower bound. `cargo run --release -p copal-launcher --example packing_simulation -- [SEEDS]`

#![expect(clippy::print_stdout, reason = "the table is what the program is for")]

use std::time::{Duration, Instant};

use copal_launcher::{hardware, nodes, packing};
use copal_schemas::settings::SortBy;

mod world;

use world::{Balsam, Dice, Outcome, Policy, Workload};

const NODES: usize = 64;
const JOBS: usize = 3_000;

fn main() {
    let seeds: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(20);
    println!("{NODES} nodes, {JOBS} Jobs, mean of {seeds} random workloads each");
    println!(
        "| workload | rule | makespan / lower bound | utilisation | mean wait (min) | longest wait of a wide Job (min) |"
    );
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    for workload in Workload::ALL {
        row(workload, "Balsam", seeds, || Box::new(Balsam::new(NODES)));
        for sort_by in [SortBy::SmallFirst, SortBy::LongLargeFirst, SortBy::Fifo, SortBy::ShortestFirst] {
            row(workload, sort_by.as_str(), seeds, || Box::new(world::copal(NODES, sort_by)));
        }
    }
    println!();
    for (nodes, jobs) in [(64, 10_000), (1_000, 10_000), (1_000, 50_000), (5_000, 50_000)] {
        let (placed, time) = speed(nodes, jobs);
        let micros = time.as_secs_f64() * 1e6 / placed as f64;
        println!("{nodes} nodes, {jobs} waiting Jobs: {micros:.1} µs of placement a Job");
    }
}

fn row(workload: Workload, name: &str, seeds: u64, policy: impl Fn() -> Box<dyn Policy>) {
    let outcomes: Vec<Outcome> = (0..seeds)
        .map(|seed| {
            let jobs = workload.jobs(&mut Dice::new(seed), JOBS, NODES);
            world::run(policy().as_mut(), &jobs, NODES)
        })
        .collect();
    let mean = |value: &dyn Fn(&Outcome) -> f64| outcomes.iter().map(value).sum::<f64>() / seeds as f64;
    let excess = mean(&|outcome| outcome.makespan_sec as f64 / outcome.bound_sec as f64);
    let utilisation = mean(&|outcome| outcome.utilisation * 100.0);
    let wait = mean(&|outcome| outcome.mean_wait_sec / 60.0);
    let wide = mean(&|outcome| outcome.longest_wide_wait_sec as f64 / 60.0);
    println!("| {workload:?} | {name} | {excess:.3} | {utilisation:.1} % | {wait:.1} | {wide:.0} |");
}

/// Placement alone: how long the packer itself takes for a mixed workload.
fn speed(nodes: usize, count: usize) -> (usize, Duration) {
    struct Timed(packing::Packer, Duration);
    impl Policy for Timed {
        fn push(&mut self, job: &world::SimJob) {
            Policy::push(&mut self.0, job);
        }
        fn place(&mut self, now_sec: u64) -> Vec<copal_schemas::JobId> {
            let clock = Instant::now();
            let placed = Policy::place(&mut self.0, now_sec);
            self.1 += clock.elapsed();
            placed
        }
        fn release(&mut self, job: copal_schemas::JobId) {
            let clock = Instant::now();
            Policy::release(&mut self.0, job);
            self.1 += clock.elapsed();
        }
    }
    let jobs = Workload::Mixed.jobs(&mut Dice::new(7), count, nodes);
    let mut timed = Timed(world::copal(nodes, SortBy::SmallFirst), Duration::ZERO);
    let outcome = world::run(&mut timed, &jobs, nodes);
    (outcome.finished, timed.1)
}
