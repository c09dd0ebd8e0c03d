//! A virtual machine for placement: random workloads, virtual time, and Balsam's rule to compare with.
//! Used by the example beside it and by a test of the library; knows neither clock nor service.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use copal_schemas::{
    JobId,
    resources::{ResourceShape, WHOLE},
    settings::SortBy,
};

use super::{
    hardware::{Core, Gpu, GpuVendor, NodeHardware},
    nodes::Node,
    packing::{Ask, Packer},
};

/// Cores of a node.
const CORES: u32 = 32;
/// GPUs of a node.
const GPUS: u32 = 4;

/// SplitMix64: the same table on every machine.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.next() % choices.len() as u64) as usize]
    }
}

/// A Job of a workload.
#[derive(Clone, Debug)]
pub(crate) struct SimJob {
    pub(crate) ask: Ask,
    arrives_sec: u64,
    takes_sec: u64,
}

/// Kinds of workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Jobs that share nodes.
    Small,
    /// Four of five share nodes, the fifth takes 2 to a quarter of all.
    Mixed,
    /// As `Mixed`, and nobody says how long they take.
    Unknown,
    /// 1 to half of all nodes.
    Wide,
    /// Whole GPUs and fractions of them.
    Gpus,
    /// As `Mixed`, arriving while others run.
    Stream,
}

impl Workload {
    pub(crate) const ALL: [Self; 6] = [Self::Small, Self::Mixed, Self::Unknown, Self::Wide, Self::Gpus, Self::Stream];

    /// Jobs for so many nodes.
    pub(crate) fn jobs(self, dice: &mut Dice, count: usize, nodes: usize) -> Vec<SimJob> {
        let mut clock = 0;
        let job = |number: usize| {
            let shape = self.shape(dice, nodes);
            let takes_sec = dice.between(60, 3_600);
            let minutes = (takes_sec * dice.between(100, 150)).div_ceil(6_000);
            let wall_time_min = if self == Self::Unknown { 0 } else { i32::try_from(minutes).unwrap_or(i32::MAX) };
            if self == Self::Stream {
                clock += dice.between(0, 40 * 64 / nodes.max(1) as u64);
            }
            let ask = Ask { job: JobId(number as i64), shape, priority: 0, wall_time_min, walltime_limit_min: None };
            SimJob { ask, arrives_sec: clock, takes_sec }
        };
        (0..count).map(job).collect()
    }

    fn shape(self, dice: &mut Dice, nodes: usize) -> ResourceShape {
        let whole = ResourceShape::default();
        let shared = |dice: &mut Dice| {
            let node_packing_count = dice.one_of(&[2, 4, 8, 16, 32]);
            ResourceShape { node_packing_count, ranks_per_node: CORES as i32 / node_packing_count, ..whole }
        };
        let wide = |dice: &mut Dice, most: usize| {
            let most = most.max(2) as u64;
            // Narrow ones are more common than wide ones.
            let width = dice.between(1, most).min(dice.between(1, most)).max(2);
            ResourceShape { num_nodes: width as i32, ..whole }
        };
        match self {
            Self::Small => shared(dice),
            Self::Mixed | Self::Unknown | Self::Stream if dice.between(1, 5) < 5 => shared(dice),
            Self::Mixed | Self::Unknown | Self::Stream => wide(dice, nodes / 4),
            Self::Wide if dice.between(1, 5) == 1 => whole,
            Self::Wide => wide(dice, nodes / 2),
            Self::Gpus => {
                let gpus_per_rank = dice.one_of(&[0.25, 0.5, 1.0, 2.0, 4.0]);
                ResourceShape { gpus_per_rank, node_packing_count: 16, ranks_per_node: 1, ..whole }
            }
        }
    }
}

/// Identical nodes.
pub(crate) fn machine(count: usize) -> Vec<Node> {
    let core = |id| Core { id, threads: vec![id], numa: id / (CORES / 2) };
    let gpu = |id: u32| Gpu { id: id.to_string(), vendor: GpuVendor::Nvidia, mig: false, near_cores: Vec::new() };
    let hardware =
        NodeHardware { cores: (0..CORES).map(core).collect(), gpus: (0..GPUS).map(gpu).collect(), mem_mb: 0 };
    (0..count).map(|number| Node::new(format!("n{number}"), hardware.clone(), false)).collect()
}

/// Who decides what starts.
pub(crate) trait Policy {
    /// A Job arrives.
    fn push(&mut self, job: &SimJob);
    /// Jobs that start now.
    fn place(&mut self, now_sec: u64) -> Vec<JobId>;
    /// A Job is over.
    fn release(&mut self, job: JobId);
}

impl Policy for Packer {
    fn push(&mut self, job: &SimJob) {
        assert!(Self::push(self, job.ask.clone()).is_ok(), "{:?} fits no node", job.ask);
    }

    fn place(&mut self, now_sec: u64) -> Vec<JobId> {
        Self::place(self, now_sec as f64, f64::INFINITY).into_iter().map(|placement| placement.job).collect()
    }

    fn release(&mut self, job: JobId) {
        Self::release(self, job);
    }
}

/// Copal with one of its orders.
pub(crate) fn copal(nodes: usize, sort_by: SortBy) -> Packer {
    Packer::new(&machine(nodes), sort_by)
}

/// What a Job takes of each of its nodes.
fn parts(shape: &ResourceShape) -> (u32, u32, Vec<u32>) {
    let share = shape.gpu_shares_per_rank();
    let per_rank =
        if share > WHOLE { vec![WHOLE; share.div_ceil(WHOLE) as usize] } else { vec![share; usize::from(share > 0)] };
    let gpus = per_rank.repeat(shape.ranks_per_node as usize);
    if shape.num_nodes > 1 {
        (CORES, WHOLE, vec![WHOLE; GPUS as usize])
    } else {
        (shape.cpus_per_node(), shape.occupancy(), gpus)
    }
}

/// Balsam's rule: take the smallest Jobs, as many as the free occupancy holds and none wider than the empty nodes,
/// give each the first nodes where it fits, and stash what does not fit for the next time. Nobody waits for nodes.
pub(crate) struct Balsam {
    /// Free cores, occupancy and shares of GPUs of each node.
    nodes: Vec<(u32, u32, Vec<u32>)>,
    /// By num_nodes up, node_packing_count down, wall_time_min down.
    waiting: std::collections::BTreeMap<(i32, i32, i32, i64), Ask>,
    stash: VecDeque<Ask>,
    running: std::collections::HashMap<JobId, Held>,
}

/// What a Job of Balsam's holds: on each node cores, occupancy and shares of GPUs.
type Held = Vec<(usize, u32, u32, Vec<(usize, u32)>)>;

impl Balsam {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            nodes: vec![(CORES, WHOLE, vec![WHOLE; GPUS as usize]); nodes],
            waiting: std::collections::BTreeMap::new(),
            stash: VecDeque::new(),
            running: std::collections::HashMap::new(),
        }
    }

    fn empty_nodes(&self) -> usize {
        self.nodes.iter().filter(|node| node.1 == WHOLE).count()
    }

    fn acquire(&mut self) {
        let mut free: i64 = self.nodes.iter().map(|node| i64::from(node.1)).sum();
        let empty = self.empty_nodes();
        let mut taken = Vec::new();
        for (key, ask) in &self.waiting {
            let size = i64::from(ask.shape.occupancy()) * i64::from(ask.shape.num_nodes);
            if size > free || free == 0 {
                break;
            }
            if ask.shape.num_nodes as usize <= empty.max(1) {
                free -= size;
                taken.push(*key);
            }
        }
        let taken: Vec<Ask> = taken.iter().filter_map(|key| self.waiting.remove(key)).collect();
        self.stash.extend(taken);
    }

    fn try_start(&mut self, ask: &Ask) -> bool {
        let (cores, occupancy, gpus) = parts(&ask.shape);
        let wanted = ask.shape.num_nodes as usize;
        let mut held: Held = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let mut shares = node.2.clone();
            let mut devices = Vec::new();
            for share in &gpus {
                // The fullest device that has it.
                let device =
                    (0..shares.len()).filter(|device| shares[*device] >= *share).min_by_key(|device| shares[*device]);
                let Some(device) = device else { break };
                shares[device] -= share;
                devices.push((device, *share));
            }
            if node.0 >= cores && node.1 >= occupancy && devices.len() == gpus.len() {
                held.push((number, cores, occupancy, devices));
                if held.len() == wanted {
                    break;
                }
            }
        }
        if held.len() < wanted {
            return false;
        }
        self.change(&held, false);
        self.running.insert(ask.job, held);
        true
    }

    fn change(&mut self, held: &Held, back: bool) {
        let step = |free: &mut u32, amount: u32| if back { *free += amount } else { *free -= amount };
        for (number, cores, occupancy, devices) in held {
            let node = &mut self.nodes[*number];
            step(&mut node.0, *cores);
            step(&mut node.1, *occupancy);
            devices.iter().for_each(|(device, share)| step(&mut node.2[*device], *share));
        }
    }
}

impl Policy for Balsam {
    fn push(&mut self, job: &SimJob) {
        let (shape, ask) = (&job.ask.shape, job.ask.clone());
        let key = (shape.num_nodes, -shape.node_packing_count, -job.ask.wall_time_min, job.ask.job.0);
        self.waiting.insert(key, ask);
    }

    fn place(&mut self, _now_sec: u64) -> Vec<JobId> {
        self.acquire();
        let mut started = Vec::new();
        for ask in std::mem::take(&mut self.stash) {
            if self.try_start(&ask) {
                started.push(ask.job);
            } else {
                self.stash.push_back(ask);
            }
        }
        started
    }

    fn release(&mut self, job: JobId) {
        if let Some(held) = self.running.remove(&job) {
            self.change(&held, true);
        }
    }
}

/// What came out of one workload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// When the last Job was over.
    pub(crate) makespan_sec: u64,
    /// No schedule can be shorter.
    pub(crate) bound_sec: u64,
    /// Used part of all nodes until then: of each node the scarcest resource.
    pub(crate) utilisation: f64,
    /// Mean time from arrival to start.
    pub(crate) mean_wait_sec: f64,
    /// The longest one of a Job on several nodes.
    pub(crate) longest_wide_wait_sec: u64,
    /// Jobs that ran.
    pub(crate) finished: usize,
}

/// Lets a workload run to its end.
pub(crate) fn run(policy: &mut dyn Policy, jobs: &[SimJob], nodes: usize) -> Outcome {
    let mut events: BinaryHeap<Reverse<(u64, bool, usize)>> = BinaryHeap::new();
    events.extend(jobs.iter().enumerate().map(|(number, job)| Reverse((job.arrives_sec, true, number))));
    let mut outcome = Outcome::default();
    let mut waits = 0.0;
    while let Some(Reverse((now, arrives, number))) = events.pop() {
        if arrives {
            policy.push(&jobs[number]);
        } else {
            policy.release(jobs[number].ask.job);
            outcome.makespan_sec = now;
            outcome.finished += 1;
        }
        // All that happens at one time is known before anything is placed.
        if events.peek().is_some_and(|Reverse(event)| event.0 == now) {
            continue;
        }
        for started in policy.place(now) {
            let number = started.0 as usize;
            let job = &jobs[number];
            events.push(Reverse((now + job.takes_sec, false, number)));
            let wait = now - job.arrives_sec;
            waits += wait as f64;
            if job.ask.shape.num_nodes > 1 {
                outcome.longest_wide_wait_sec = outcome.longest_wide_wait_sec.max(wait);
            }
        }
    }
    let area: f64 = jobs.iter().map(|job| job.takes_sec as f64 * part_of_nodes(&job.ask.shape)).sum();
    let latest = jobs.iter().map(|job| job.arrives_sec + job.takes_sec).max().unwrap_or(0);
    outcome.bound_sec = ((area / nodes as f64).ceil() as u64).max(latest);
    outcome.utilisation = area / nodes as f64 / outcome.makespan_sec.max(1) as f64;
    outcome.mean_wait_sec = waits / jobs.len().max(1) as f64;
    outcome
}

/// Nodes that a Job uses up: of its scarcest resource.
fn part_of_nodes(shape: &ResourceShape) -> f64 {
    let (cores, occupancy, gpus) = parts(shape);
    let gpus = f64::from(gpus.iter().sum::<u32>()) / f64::from(GPUS * WHOLE);
    let part = (f64::from(cores) / f64::from(CORES)).max(f64::from(occupancy) / f64::from(WHOLE)).max(gpus);
    part * f64::from(shape.num_nodes)
}
