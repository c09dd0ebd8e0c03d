//! Properties of placement: never oversubscribed, always work-conserving, reservations never put off,
//! and everything comes back.

use std::collections::HashMap;

use copal_schemas::{
    JobId,
    resources::{ResourceShape, WHOLE},
    settings::SortBy,
};
use proptest::prelude::*;

use super::{
    Ask, Packer, Placement,
    need::Need,
    tests::{nodes, place, timed},
};
use crate::nodes::Node;

/// What the nodes' owner sees: everything that runs, counted anew.
struct Ledger {
    nodes: Vec<Node>,
    running: HashMap<JobId, (Need, Placement)>,
}

impl Ledger {
    fn check(&self) -> Result<(), TestCaseError> {
        for (number, node) in self.nodes.iter().enumerate() {
            let mut cores = vec![0u32; node.cores.len()];
            let mut shares = vec![0u32; node.gpus.len()];
            let (mut occupancy, mut mem_mb) = (0, 0);
            for (need, placement) in self.running.values() {
                for part in placement.parts.iter().filter(|part| part.node == number) {
                    part.cores.iter().for_each(|core| cores[*core as usize] += 1);
                    part.gpus.iter().flatten().for_each(|gpu| shares[*gpu as usize] += need.gpu_share.min(WHOLE));
                    occupancy += need.occupancy;
                    mem_mb += need.mem_mb;
                }
            }
            prop_assert!(cores.iter().all(|users| *users <= 1), "a core of node {} is given twice", number);
            prop_assert!(shares.iter().all(|share| *share <= WHOLE), "a GPU of node {} is oversubscribed", number);
            prop_assert!(occupancy <= WHOLE, "node {} is over-occupied", number);
            prop_assert!(node.mem_mb == 0 || mem_mb <= node.mem_mb, "memory of node {}", number);
        }
        Ok(())
    }

    fn take(&mut self, ask: &Ask, placement: Placement) -> Result<(), TestCaseError> {
        let need = Need::new(&ask.shape);
        prop_assert_eq!(placement.parts.len(), need.nodes);
        for part in &placement.parts {
            if need.nodes == 1 {
                prop_assert_eq!(part.cores.len(), need.cores as usize);
            }
            let of_rank = if need.gpu_share == 0 { 0 } else { need.whole_gpus_per_rank().max(1) as usize };
            prop_assert!(need.gpu_share == 0 || part.gpus.len() == need.ranks as usize);
            prop_assert!(part.gpus.iter().all(|gpus| gpus.len() == of_rank));
        }
        self.running.insert(placement.job, (need, placement));
        Ok(())
    }
}

/// No Job waits that would fit where nobody keeps the place for himself.
fn is_work_conserving(packer: &Packer) -> Result<(), TestCaseError> {
    for job in packer.waiting_jobs() {
        let Some((key, line)) = packer.queue.line(job) else { continue };
        if !packer.in_time(&line) {
            continue;
        }
        let free = (0..packer.nodes.len())
            .filter(|node| packer.nodes[*node].fits(&line.need) && packer.may_use(*node, &line, key.urgency, None))
            .count();
        prop_assert!(free < line.need.nodes, "Job {} could run: {:?}", job, packer.why(job));
    }
    Ok(())
}

fn any_shape() -> impl Strategy<Value = ResourceShape> {
    let gpus = prop_oneof![4 => Just(0.0), 1 => Just(1.0), 1 => Just(0.5), 1 => Just(0.3), 1 => Just(2.0)];
    let nodes = prop_oneof![4 => Just(1), 1 => 2..5i32];
    (nodes, 1..5i32, 1..4i32, 1..3i32, gpus, 1..9i32, prop::option::of(1..900i64)).prop_map(
        |(num_nodes, ranks_per_node, threads_per_rank, threads_per_core, gpus_per_rank, node_packing_count, mem_mb)| {
            ResourceShape {
                num_nodes,
                ranks_per_node,
                threads_per_rank,
                threads_per_core,
                gpus_per_rank,
                node_packing_count,
                mem_mb,
            }
        },
    )
}

fn any_ask() -> impl Strategy<Value = (ResourceShape, i32, i32)> {
    (any_shape(), prop_oneof![Just(0), 1..30i32], 0..3i32)
}

#[derive(Clone, Debug)]
enum Step {
    Push(Vec<(ResourceShape, i32, i32)>),
    Place,
    Release(prop::sample::Index),
    Withdraw(prop::sample::Index),
    Aside(usize, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => prop::collection::vec(any_ask(), 1..8).prop_map(Step::Push),
        4 => Just(Step::Place),
        6 => any::<prop::sample::Index>().prop_map(Step::Release),
        1 => any::<prop::sample::Index>().prop_map(Step::Withdraw),
        1 => (0..6usize, any::<bool>()).prop_map(|(node, aside)| Step::Aside(node, aside)),
    ];
    prop::collection::vec(step, 1..60)
}

fn any_order() -> impl Strategy<Value = SortBy> {
    prop::sample::select(vec![
        SortBy::SmallFirst,
        SortBy::LongLargeFirst,
        SortBy::Fifo,
        SortBy::Priority,
        SortBy::ShortestFirst,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn never_oversubscribed_always_conserving_and_all_comes_back(
        steps in steps(),
        sort_by in any_order(),
        slices in prop::sample::select(vec![0u32, 0, 2]),
        limit in prop::option::of(1..6usize),
    ) {
        let nodes = nodes(6, 8, 2, slices, 1_000);
        let mut packer = Packer::new(&nodes, sort_by);
        limit.into_iter().for_each(|limit| packer.limit_jobs_per_node(limit));
        let before = packer.room();
        let mut ledger = Ledger { nodes, running: HashMap::new() };
        let mut asks: HashMap<JobId, Ask> = HashMap::new();
        let (mut now, mut next) = (0.0, 0);
        for step in steps {
            now += 30.0;
            match step {
                Step::Push(pushed) => for (shape, wall_time_min, priority) in pushed {
                    next += 1;
                    let ask = Ask { priority, ..timed(next, shape, wall_time_min) };
                    if packer.push(ask.clone()).is_ok() {
                        asks.insert(JobId(next), ask);
                    }
                },
                Step::Place => {
                    for placement in packer.place(now, 3_000.0) {
                        let ask = asks.get(&placement.job).cloned();
                        prop_assert!(ask.is_some() && !ledger.running.contains_key(&placement.job));
                        ledger.take(&ask.unwrap(), placement)?;
                    }
                    ledger.check()?;
                    is_work_conserving(&packer)?;
                }
                Step::Release(index) => if !ledger.running.is_empty() {
                    let mut running: Vec<JobId> = ledger.running.keys().copied().collect();
                    running.sort();
                    let job = *index.get(&running);
                    ledger.running.remove(&job);
                    prop_assert!(packer.release(job));
                },
                Step::Withdraw(index) => {
                    let waiting = packer.waiting_jobs();
                    if !waiting.is_empty() {
                        prop_assert!(packer.withdraw(*index.get(&waiting)));
                    }
                }
                Step::Aside(node, true) => packer.set_aside(node),
                Step::Aside(node, false) => packer.bring_back(node),
            }
            prop_assert_eq!(packer.running(), ledger.running.len());
            prop_assert!(packer.waiting_jobs().iter().all(|job| packer.why(*job).is_some()));
        }
        for job in ledger.running.into_keys() {
            packer.release(job);
        }
        for job in packer.waiting_jobs() {
            prop_assert!(packer.withdraw(job));
        }
        (0..6).for_each(|node| packer.bring_back(node));
        prop_assert_eq!(packer.room(), before);
        prop_assert!(packer.holder.iter().all(Option::is_none));
    }

    #[test]
    fn backfill_never_delays_a_reservation(
        asks in prop::collection::vec((any_shape(), 1..30i32, 1..101u32), 1..60),
        arrivals in prop::collection::vec(0..40u32, 60),
        sort_by in any_order(),
    ) {
        // Every Job says how long it takes at most, and ends then or earlier.
        let mut packer = Packer::new(&nodes(6, 8, 2, 0, 1_000), sort_by);
        let mut events: Vec<(u64, usize, bool)> = Vec::new();
        events.extend(arrivals.iter().take(asks.len()).enumerate().map(|(number, at)| (u64::from(*at) * 60, number, true)));
        let mut due: HashMap<JobId, f64> = HashMap::new();
        while !events.is_empty() {
            events.sort_by_key(|event| std::cmp::Reverse(*event));
            let Some((now, number, arrives)) = events.pop() else { break };
            let job = JobId(number as i64);
            let (shape, minutes, _) = asks[number];
            if arrives {
                let _ = packer.push(timed(job.0, shape, minutes));
            } else {
                packer.release(job);
            }
            // All that happens at one time is known before anything is placed.
            if events.last().is_some_and(|event| event.0 == now) {
                continue;
            }
            for placement in place(&mut packer, now as f64) {
                let (_, minutes, percent) = asks[placement.job.0 as usize];
                let seconds = u64::from(minutes as u32 * 60 * percent / 100).max(1);
                events.push((now + seconds, placement.job.0 as usize, false));
                if let Some(due) = due.remove(&placement.job) {
                    prop_assert!(now as f64 <= due, "Job {} was due at {due} and started at {now}", placement.job);
                }
            }
            for held in packer.reservations.iter().flatten() {
                let before = due.insert(held.key.job, held.due_sec);
                prop_assert!(before.is_none_or(|before| held.due_sec <= before));
                prop_assert!(held.due_sec >= now as f64, "Job {} is late", held.key.job);
            }
        }
        prop_assert_eq!(packer.waiting(), 0);
    }
}
