//! Placement by examples. The properties are in `properties`.

use std::collections::BTreeMap;

use copal_schemas::{JobId, resources::ResourceShape, settings::SortBy};

use super::{Ask, Packer, Placement, queue::Line, reserve::Slot};
use crate::{
    hardware::{Core, Gpu, GpuVendor, NodeHardware},
    nodes::Node,
};

/// Nodes of `cores` cores in two NUMA domains and `gpus` GPUs, each cut into `slices` when that is not 0.
pub(super) fn nodes(count: usize, cores: u32, gpus: u32, slices: u32, mem_mb: u64) -> Vec<Node> {
    (0..count)
        .map(|number| {
            let core = |id| Core { id, threads: vec![id, id + cores], numa: id * 2 / cores.max(1) };
            // The last GPU is next to the first cores, as on Polaris.
            let near = |gpu: u32| {
                let width = cores / gpus.max(1);
                let place = gpus - 1 - gpu;
                (place * width..(place + 1) * width).collect::<Vec<_>>()
            };
            let gpu =
                |id: String, mig: bool, near_cores: Vec<u32>| Gpu { id, vendor: GpuVendor::Nvidia, mig, near_cores };
            let gpus = (0..gpus).flat_map(|device| {
                if slices == 0 {
                    vec![gpu(device.to_string(), false, near(device))]
                } else {
                    (0..slices).map(|slice| gpu(format!("MIG-{number}-{device}-{slice}"), true, near(device))).collect()
                }
            });
            let hardware = NodeHardware { cores: (0..cores).map(core).collect(), gpus: gpus.collect(), mem_mb };
            Node::new(format!("n{number}"), hardware, number == 0)
        })
        .collect()
}

fn ask(job: i64, shape: ResourceShape) -> Ask {
    Ask { job: JobId(job), shape, priority: 0, wall_time_min: 0, walltime_limit_min: None }
}

pub(super) fn timed(job: i64, shape: ResourceShape, wall_time_min: i32) -> Ask {
    Ask { wall_time_min, ..ask(job, shape) }
}

fn shape() -> ResourceShape {
    ResourceShape::default()
}

fn packed(count: i32) -> ResourceShape {
    ResourceShape { node_packing_count: count, ..shape() }
}

fn wide(nodes: i32) -> ResourceShape {
    ResourceShape { num_nodes: nodes, ..shape() }
}

fn push_all(packer: &mut Packer, asks: impl IntoIterator<Item = Ask>) {
    for ask in asks {
        packer.push(ask).unwrap();
    }
}

pub(super) fn place(packer: &mut Packer, now_sec: f64) -> Vec<Placement> {
    packer.place(now_sec, f64::INFINITY)
}

fn started(placed: &[Placement]) -> Vec<i64> {
    placed.iter().map(|placement| placement.job.0).collect()
}

#[test]
fn a_job_that_names_no_packing_owns_its_node() {
    let mut packer = Packer::new(&nodes(2, 4, 0, 0, 0), SortBy::Fifo);
    push_all(&mut packer, (0..3).map(|job| ask(job, shape())));
    let placed = place(&mut packer, 0.0);
    assert_eq!(placed.iter().map(|placement| placement.parts[0].node).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(
        packer.why(JobId(2)).unwrap(),
        "no node has room; on the emptiest one it must be empty (node_packing_count is 1)"
    );
    assert!(packer.release(JobId(0)));
    assert_eq!(started(&place(&mut packer, 1.0)), [2]);
    assert!(!packer.release(JobId(0)));
}

#[test]
fn seven_sevenths_fit_on_a_node() {
    let mut packer = Packer::new(&nodes(1, 16, 0, 0, 0), SortBy::Fifo);
    push_all(&mut packer, (0..9).map(|job| ask(job, packed(7))));
    assert_eq!(place(&mut packer, 0.0).len(), 7);
}

/// How many such Jobs run at once, and the GPU ids that each has.
fn gpus_at_once(nodes: &[Node], shape: ResourceShape) -> Vec<String> {
    let mut packer = Packer::new(nodes, SortBy::SmallFirst);
    push_all(&mut packer, (0..200).map(|job| ask(job, shape)));
    let placed = place(&mut packer, 0.0);
    let ids = |placement: &Placement| {
        let part = &placement.parts[0];
        let ids: Vec<&str> = nodes[part.node].gpus_of(part).iter().map(|gpu| gpu.id.as_str()).collect();
        format!("{}:{}", part.node, ids.join(","))
    };
    placed.iter().map(ids).collect()
}

#[test]
fn pitfall_089_mig_slices_run_48_jobs_each_with_its_own() {
    let nodes = nodes(2, 64, 8, 3, 0);
    let shape = ResourceShape { gpus_per_rank: 1.0, ..packed(24) };
    let mut ids = gpus_at_once(&nodes, shape);
    assert_eq!(ids.len(), 48);
    assert!(ids.iter().all(|id| id.contains("MIG-") && !id.contains(',')));
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 48);
}

#[test]
fn whole_and_shared_gpus_at_once() {
    let nodes = nodes(2, 64, 8, 0, 0);
    let with = |gpus: f64, packing: i32| ResourceShape { gpus_per_rank: gpus, ..packed(packing) };
    let eights = gpus_at_once(&nodes, with(1.0, 8));
    assert_eq!(eights.len(), 16);
    assert_eq!(eights.iter().collect::<std::collections::BTreeSet<_>>().len(), 16);
    assert_eq!(gpus_at_once(&nodes, with(1.0, 4)).len(), 8);
    assert_eq!(gpus_at_once(&nodes, with(8.0, 8)), ["0:0,1,2,3,4,5,6,7", "1:0,1,2,3,4,5,6,7"]);
    let halves = gpus_at_once(&nodes, with(0.5, 16));
    assert_eq!(halves.len(), 32);
    let mut users: BTreeMap<String, u32> = BTreeMap::new();
    halves.into_iter().for_each(|id| *users.entry(id).or_default() += 1);
    assert!(users.len() == 16 && users.values().all(|users| *users == 2));
}

#[test]
fn pitfall_084_asking_for_more_gpus_than_there_are_waits() {
    let nodes = nodes(1, 64, 8, 0, 0);
    let mut packer = Packer::new(&nodes, SortBy::Fifo);
    push_all(&mut packer, (0..10).map(|job| ask(job, ResourceShape { gpus_per_rank: 1.0, ..packed(10) })));
    assert_eq!(place(&mut packer, 0.0).len(), 8);
    assert_eq!(packer.why(JobId(9)).unwrap(), "no node has room; on the emptiest one its GPUs are in use");
    packer.release(JobId(3));
    assert_eq!(started(&place(&mut packer, 1.0)), [8]);
}

#[test]
fn pitfall_085_a_shape_that_no_node_holds_is_refused_with_the_reason() {
    let mut packer = Packer::new(&nodes(2, 8, 4, 0, 1_000), SortBy::Fifo);
    let mut why = |shape| packer.push(ask(1, shape)).unwrap_err().reason;
    assert_eq!(
        why(ResourceShape { ranks_per_node: 4, gpus_per_rank: 4.0, ..packed(2) }),
        "4 ranks x 4 GPUs need 16 GPUs; a node has 4"
    );
    assert_eq!(why(ResourceShape { ranks_per_node: 9, ..shape() }), "9 ranks x 1 threads need 9 CPUs; a node has 8");
    assert_eq!(why(wide(3)), "3 nodes are asked for; the allocation has 2");
    assert_eq!(
        why(ResourceShape { mem_mb: Some(2_000), ..shape() }),
        "2000 MiB of memory are asked for; a node has 1000"
    );
    assert_eq!(packer.waiting(), 0);
}

#[test]
fn pitfall_086_fractions_of_gpus_are_counted() {
    let mut packer = Packer::new(&nodes(1, 64, 1, 0, 0), SortBy::Fifo);
    push_all(&mut packer, (0..20).map(|job| ask(job, ResourceShape { gpus_per_rank: 0.3, ..packed(64) })));
    assert_eq!(place(&mut packer, 0.0).len(), 3);
}

#[test]
fn pitfall_089_a_rank_never_gets_two_slices() {
    let cut = nodes(1, 8, 2, 3, 0);
    let mut packer = Packer::new(&cut, SortBy::Fifo);
    let reason = packer.push(ask(1, ResourceShape { gpus_per_rank: 2.0, ..shape() })).unwrap_err().reason;
    assert!(reason.contains("MIG") && reason.contains("one at most"), "{reason}");
    push_all(&mut packer, [ask(2, ResourceShape { ranks_per_node: 2, gpus_per_rank: 1.0, ..shape() })]);
    assert_eq!(place(&mut packer, 0.0)[0].parts[0].gpus, [[0], [1]]);
}

#[test]
fn pitfall_090_cores_are_those_next_to_the_gpu() {
    let nodes = nodes(1, 32, 4, 0, 0);
    let mut packer = Packer::new(&nodes, SortBy::Fifo);
    push_all(
        &mut packer,
        (0..4).map(|job| ask(job, ResourceShape { gpus_per_rank: 1.0, threads_per_rank: 8, ..packed(4) })),
    );
    for placement in place(&mut packer, 0.0) {
        let part = &placement.parts[0];
        assert_eq!(part.cores[0], (3 - part.gpus[0][0]) * 8);
        assert_eq!(part.cores.len(), 8);
    }
    // A wide Job too: each rank is next to its own GPU.
    let mut packer = Packer::new(&super::tests::nodes(2, 32, 4, 0, 0), SortBy::Fifo);
    push_all(&mut packer, [ask(1, ResourceShape { ranks_per_node: 4, gpus_per_rank: 1.0, ..wide(2) })]);
    let placed = place(&mut packer, 0.0);
    assert!(placed[0].parts.iter().all(|part| part.cores == [24, 16, 8, 0]));
}

#[test]
fn ranks_of_a_job_that_owns_its_node_spread_over_the_domains() {
    let mut packer = Packer::new(&nodes(1, 16, 0, 0, 0), SortBy::Fifo);
    push_all(&mut packer, [ask(1, ResourceShape { ranks_per_node: 2, threads_per_rank: 4, ..shape() })]);
    assert_eq!(place(&mut packer, 0.0)[0].parts[0].cores, [0, 1, 2, 3, 8, 9, 10, 11]);
    // One that shares its node stays in one domain.
    let mut packer = Packer::new(&nodes(1, 16, 0, 0, 0), SortBy::Fifo);
    push_all(&mut packer, (0..3).map(|job| ask(job, ResourceShape { ranks_per_node: 5, ..packed(3) })));
    let cores: Vec<Vec<u32>> =
        place(&mut packer, 0.0).into_iter().map(|placement| placement.parts[0].cores.clone()).collect();
    assert_eq!(cores, [vec![0, 1, 2, 3, 4], vec![8, 9, 10, 11, 12], vec![5, 6, 7, 13, 14]]);
}

#[test]
fn threads_per_core_halves_the_cores() {
    let mut packer = Packer::new(&nodes(1, 4, 0, 0, 0), SortBy::Fifo);
    let both = ResourceShape { threads_per_rank: 2, threads_per_core: 2, ..packed(8) };
    push_all(&mut packer, (0..9).map(|job| ask(job, both)));
    assert_eq!(place(&mut packer, 0.0).len(), 4);
}

#[test]
fn wide_jobs_take_whole_near_nodes() {
    let mut packer = Packer::new(&nodes(10, 4, 0, 0, 0), SortBy::Fifo);
    push_all(&mut packer, (0..10).map(|job| ask(job, shape())));
    place(&mut packer, 0.0);
    for freed in [0, 2, 4, 5, 6, 9] {
        packer.release(JobId(freed));
    }
    push_all(&mut packer, [ask(20, wide(3))]);
    let placed = place(&mut packer, 1.0);
    assert_eq!(placed[0].parts.iter().map(|part| part.node).collect::<Vec<_>>(), [4, 5, 6]);
}

#[test]
fn memory_is_counted_where_asked() {
    let mut packer = Packer::new(&nodes(1, 16, 0, 0, 1_000), SortBy::Fifo);
    push_all(&mut packer, (0..4).map(|job| ask(job, ResourceShape { mem_mb: Some(400), ..packed(8) })));
    assert_eq!(place(&mut packer, 0.0).len(), 2);
    assert_eq!(
        packer.why(JobId(3)).unwrap(),
        "no node has room; on the emptiest one 200 of the 400 MiB of memory asked for are free"
    );
}

#[test]
fn orders() {
    let asks = [
        timed(1, packed(1), 10),
        timed(2, packed(4), 30),
        timed(3, wide(2), 20),
        timed(4, packed(4), 60),
        Ask { priority: 5, ..timed(5, wide(2), 1) },
    ];
    let order = |sort_by| {
        let mut packer = Packer::new(&nodes(2, 4, 0, 0, 0), sort_by);
        push_all(&mut packer, asks.clone());
        packer.waiting_jobs().into_iter().map(|job| job.0).collect::<Vec<_>>()
    };
    assert_eq!(order(SortBy::SmallFirst), [5, 4, 2, 1, 3]);
    assert_eq!(order(SortBy::LongLargeFirst), [5, 4, 2, 3, 1]);
    assert_eq!(order(SortBy::Fifo), [5, 1, 2, 3, 4]);
    assert_eq!(order(SortBy::Priority), [5, 1, 2, 3, 4]);
    assert_eq!(order(SortBy::ShortestFirst), [5, 1, 3, 2, 4]);
}

#[test]
fn a_wide_job_keeps_nodes_and_only_what_ends_before_goes_ahead() {
    let mut packer = Packer::new(&nodes(2, 4, 0, 0, 0), SortBy::Fifo);
    push_all(&mut packer, [timed(1, shape(), 60)]);
    place(&mut packer, 0.0);
    push_all(&mut packer, [timed(2, wide(2), 10), timed(3, packed(4), 61), timed(4, packed(4), 60), ask(5, packed(4))]);
    // Due in 60 minutes, so what takes longer, or nobody knows how long, waits.
    assert_eq!(started(&place(&mut packer, 0.0)), [4]);
    assert_eq!(packer.reserved(Slot::Wide).map(|held| held.due_sec), Some(3_600.0));
    let why = packer.why(JobId(2)).unwrap();
    assert_eq!(why, "it needs 2 empty nodes; 0 of 2 are empty; it keeps 2 nodes for its turn, due in 60 min");
    assert_eq!(packer.why(JobId(5)).unwrap(), "the free place is kept for Job 2, which waits longer");
}

#[test]
fn an_urgent_job_takes_a_reserved_place() {
    let mut packer = Packer::new(&nodes(2, 4, 0, 0, 0), SortBy::Fifo);
    push_all(&mut packer, [ask(1, shape())]);
    place(&mut packer, 0.0);
    push_all(&mut packer, [ask(2, wide(2)), ask(3, packed(4))]);
    assert!(place(&mut packer, 0.0).is_empty());
    push_all(&mut packer, [Ask { priority: 1, ..ask(4, packed(4)) }]);
    assert_eq!(started(&place(&mut packer, 0.0)), [4]);
    packer.release(JobId(1));
    packer.release(JobId(4));
    assert_eq!(started(&place(&mut packer, 1.0)), [2]);
    packer.release(JobId(2));
    assert_eq!(started(&place(&mut packer, 2.0)), [3]);
}

#[test]
fn a_large_job_on_one_node_is_not_overtaken_for_ever() {
    let mut packer = Packer::new(&nodes(1, 4, 0, 0, 0), SortBy::Fifo);
    push_all(&mut packer, (1..=4).map(|job| ask(job, packed(4))));
    assert_eq!(place(&mut packer, 0.0).len(), 4);
    push_all(&mut packer, [ask(5, ResourceShape { ranks_per_node: 4, ..shape() })]);
    push_all(&mut packer, (6..20).map(|job| ask(job, packed(4))));
    for job in 1..=3 {
        packer.release(JobId(job));
        assert!(place(&mut packer, job as f64).is_empty(), "{job}");
    }
    packer.release(JobId(4));
    assert_eq!(started(&place(&mut packer, 9.0)), [5]);
}

#[test]
fn pitfall_097_a_job_as_long_as_the_launcher_starts_and_a_longer_one_does_not() {
    let mut packer = Packer::new(&nodes(2, 4, 0, 0, 0), SortBy::Fifo);
    push_all(&mut packer, [timed(1, shape(), 60), timed(2, shape(), 62)]);
    assert_eq!(started(&packer.place(20.0, 3_595.0)), [1]);
    assert_eq!(packer.why(JobId(2)).unwrap(), "it takes 62 min, and 60 min are left");
    assert!(packer.is_late(&timed(2, shape(), 62)) && !packer.is_late(&timed(1, shape(), 60)));
    assert!(!packer.is_late(&ask(3, shape())));
    // One that would be in time, but not after those that run, keeps no nodes.
    push_all(&mut packer, [timed(3, wide(2), 30)]);
    assert!(packer.place(30.0, 3_595.0).is_empty());
    assert!(packer.reservations.iter().all(Option::is_none));
}

#[test]
fn a_node_set_aside_gets_nothing_until_it_is_back() {
    let mut packer = Packer::new(&nodes(2, 4, 0, 0, 0), SortBy::Fifo);
    packer.set_aside(0);
    push_all(&mut packer, (0..3).map(|job| ask(job, shape())));
    assert_eq!(started(&place(&mut packer, 0.0)), [0]);
    assert_eq!((packer.room().nodes, packer.room().empty_nodes), (1, 0));
    assert!(packer.why(JobId(1)).unwrap().ends_with("(1 node set aside)"));
    packer.bring_back(0);
    assert_eq!(started(&place(&mut packer, 0.0)), [1]);
}

#[test]
fn a_node_that_is_retired_holds_nothing_any_more() {
    let mut packer = Packer::new(&nodes(3, 4, 0, 0, 0), SortBy::Fifo);
    packer.set_aside(0);
    assert_eq!(packer.misfit(&ask(1, wide(3))), None);
    packer.retire(0);
    assert_eq!(packer.misfit(&ask(1, wide(3))).unwrap(), "3 nodes are asked for; the allocation has 2");
    push_all(&mut packer, [ask(2, wide(2))]);
    assert_eq!(started(&place(&mut packer, 0.0)), [2]);
}

#[test]
fn few_jobs_a_node_where_the_launcher_of_ranks_wants_it() {
    let mut packer = Packer::new(&nodes(2, 8, 0, 0, 0), SortBy::Fifo);
    packer.limit_jobs_per_node(1);
    push_all(&mut packer, (0..4).map(|job| ask(job, packed(8))));
    assert_eq!(place(&mut packer, 0.0).len(), 2);
    assert!(packer.why(JobId(3)).unwrap().contains("the most allowed"));
}

#[test]
fn a_worker_may_say_what_its_node_has() {
    let mut packer = Packer::new(&nodes(2, 4, 0, 0, 0), SortBy::Fifo);
    let big = ResourceShape { ranks_per_node: 16, ..shape() };
    assert!(packer.push(ask(1, big)).is_err());
    assert!(packer.set_node(1, &nodes(1, 16, 0, 0, 0)[0]));
    push_all(&mut packer, [ask(1, big)]);
    assert_eq!(place(&mut packer, 0.0)[0].parts[0].node, 1);
    assert!(!packer.set_node(1, &nodes(1, 4, 0, 0, 0)[0]));
}

#[test]
fn the_packer_forgets_what_is_over() {
    let mut packer = Packer::new(&nodes(4, 8, 0, 0, 0), SortBy::SmallFirst);
    let before = packer.room();
    for round in 0..50i64 {
        push_all(&mut packer, (0..40).map(|job| timed(round * 100 + job, packed(8), (round * 40 + job) as i32)));
        while packer.waiting() > 0 {
            for placement in place(&mut packer, round as f64) {
                packer.release(placement.job);
            }
        }
    }
    assert_eq!((packer.room(), packer.running(), packer.waiting_jobs().len()), (before, 0, 0));
    assert!(packer.queue.kept_groups() <= 1, "{}", packer.queue.kept_groups());
}

#[test]
fn a_thousand_nodes_and_ten_thousand_jobs_are_fast() {
    let mut packer = Packer::new(&nodes(1_000, 64, 0, 0, 0), SortBy::SmallFirst);
    let asks = (0..10_000i64).map(|job| {
        let shape = if job % 50 == 0 { wide(1 + (job % 7) as i32) } else { packed([4, 8, 16][job as usize % 3]) };
        timed(job, shape, (job % 60) as i32)
    });
    push_all(&mut packer, asks);
    let clock = std::time::Instant::now();
    let mut running: std::collections::VecDeque<JobId> =
        place(&mut packer, 0.0).into_iter().map(|placement| placement.job).collect();
    let mut count = running.len();
    let mut now = 0.0;
    while let Some(job) = running.pop_front() {
        packer.release(job);
        now += 0.01;
        let placed = place(&mut packer, now);
        count += placed.len();
        running.extend(placed.into_iter().map(|placement| placement.job));
    }
    assert_eq!((count, packer.waiting()), (10_000, 0));
    // Unoptimised and beside other tests; the example in `examples/` prints the real figure.
    assert!(clock.elapsed().as_secs() < 60, "{:?}", clock.elapsed());
}

#[test]
fn lines_bound_estimates_by_limits() {
    let line = |estimate, limit| Line::new(&Ask { walltime_limit_min: limit, ..timed(1, shape(), estimate) }).minutes;
    assert_eq!((line(0, None), line(5, None), line(0, Some(7)), line(9, Some(7)), line(5, Some(7))), (0, 5, 7, 7, 5));
}
