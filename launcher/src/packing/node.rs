//! What is free on one node, and which cores and GPUs a Job gets there. Knows one node only;
//! which node is tried is the packer's choice.

use std::collections::BTreeMap;

use copal_schemas::{JobId, resources::WHOLE};

use super::{NodePart, bits::Bits, need::Need};
use crate::nodes::Node;

/// The free half of a node.
#[derive(Debug)]
pub(super) struct NodeState {
    free: Bits,
    free_cores: u32,
    free_occupancy: u32,
    /// `None` where the node's memory is not known: it is not counted then.
    free_mem_mb: Option<u64>,
    total_mem_mb: u64,
    total_cores: u32,
    /// Of each GPU, in 1/10,000.
    free_shares: Vec<u32>,
    mig: Vec<bool>,
    /// For each GPU the cores next to it.
    near: Vec<Bits>,
    /// The cores of each NUMA domain.
    domains: Vec<Bits>,
    running: BTreeMap<JobId, f64>,
    /// The latest end among them.
    latest_sec: f64,
    most_jobs: usize,
    aside: bool,
    /// Aside for good.
    retired: bool,
}

/// The free amounts of a node, or the largest of each over several nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Free {
    cores: u32,
    occupancy: u32,
    mem_mb: u64,
    whole_gpus: u32,
    best_share: u32,
}

impl Free {
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            cores: self.cores.max(other.cores),
            occupancy: self.occupancy.max(other.occupancy),
            mem_mb: self.mem_mb.max(other.mem_mb),
            whole_gpus: self.whole_gpus.max(other.whole_gpus),
            best_share: self.best_share.max(other.best_share),
        }
    }

    /// Whether a single-node Job might fit. `false` is certain.
    pub(super) fn may_hold(&self, need: &Need) -> bool {
        self.cores >= need.cores
            && self.occupancy >= need.occupancy
            && self.mem_mb >= need.mem_mb
            && self.whole_gpus >= need.whole_gpus()
            && self.best_share >= need.gpu_share.min(WHOLE)
    }
}

impl NodeState {
    pub(super) fn new(node: &Node, most_jobs: usize) -> Self {
        let cores = node.cores.len();
        let mut domains: BTreeMap<u32, Bits> = BTreeMap::new();
        for (place, core) in node.cores.iter().enumerate() {
            domains.entry(core.numa).or_default().insert(place);
        }
        let near = |ids: &[u32]| {
            let near =
                node.cores.iter().enumerate().filter(|(_, core)| {
                    ids.contains(&core.id) || core.threads.iter().any(|thread| ids.contains(thread))
                });
            near.map(|(place, _)| place).collect::<Bits>()
        };
        Self {
            free: Bits::all(cores),
            free_cores: u32::try_from(cores).unwrap_or(u32::MAX),
            free_occupancy: WHOLE,
            free_mem_mb: (node.mem_mb > 0).then_some(node.mem_mb),
            total_mem_mb: node.mem_mb,
            total_cores: u32::try_from(cores).unwrap_or(u32::MAX),
            free_shares: vec![WHOLE; node.gpus.len()],
            mig: node.gpus.iter().map(|gpu| gpu.mig).collect(),
            near: node.gpus.iter().map(|gpu| near(&gpu.near_cores)).collect(),
            domains: domains.into_values().collect(),
            running: BTreeMap::new(),
            latest_sec: f64::NEG_INFINITY,
            most_jobs,
            aside: false,
            retired: false,
        }
    }

    /// What a single-node Job could still get; nothing when the node is set aside.
    pub(super) fn free(&self) -> Free {
        if self.aside || self.running.len() >= self.most_jobs {
            return Free::default();
        }
        Free {
            cores: self.free_cores,
            occupancy: self.free_occupancy,
            mem_mb: self.free_mem_mb.unwrap_or(u64::MAX),
            whole_gpus: self.free_shares.iter().map(|free| u32::from(*free == WHOLE)).sum(),
            best_share: self.free_shares.iter().copied().max().unwrap_or(0),
        }
    }

    /// Whether anything at all could be started here.
    pub(super) fn has_room(&self) -> bool {
        !self.aside && self.running.len() < self.most_jobs && self.free_cores > 0 && self.free_occupancy > 0
    }

    pub(super) fn retire(&mut self) {
        self.retired = true;
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired
    }

    pub(super) fn is_aside(&self) -> bool {
        self.aside
    }

    pub(super) fn set_aside(&mut self, aside: bool) {
        self.aside = aside;
    }

    pub(super) fn limit_jobs(&mut self, limit: usize) {
        self.most_jobs = limit;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) fn free_cores(&self) -> u32 {
        self.free_cores
    }

    /// How many Jobs could be started here at most.
    pub(super) fn free_jobs(&self) -> usize {
        self.most_jobs.saturating_sub(self.running.len()).min(self.free_cores as usize)
    }

    pub(super) fn free_occupancy(&self) -> u32 {
        self.free_occupancy
    }

    /// When the last of its Jobs ends: `now_sec` when it is empty or its Jobs are late, infinite when not known.
    pub(super) fn empty_at(&self, now_sec: f64) -> f64 {
        self.latest_sec.max(now_sec)
    }

    pub(super) fn count_running(&self) -> usize {
        self.running.len()
    }

    /// Whether a Job's part fits now.
    pub(super) fn fits(&self, need: &Need) -> bool {
        if self.aside || self.running.len() >= self.most_jobs {
            return false;
        }
        if need.is_wide() {
            return self.running.is_empty() && self.could_hold(need);
        }
        self.free_cores >= need.cores
            && self.free_occupancy >= need.occupancy
            && self.free_mem_mb.is_none_or(|free| free >= need.mem_mb)
            && self.fits_gpus(need)
    }

    /// Whether a Job's part would fit if the node were empty. A wide Job owns its nodes, so that more ranks
    /// than cores is its own decision.
    pub(super) fn could_hold(&self, need: &Need) -> bool {
        let has_gpus = || need.gpu_share == 0 || fits_shares(&vec![WHOLE; self.free_shares.len()], &self.mig, need);
        (need.is_wide() || self.total_cores >= need.cores)
            && (self.total_mem_mb == 0 || self.total_mem_mb >= need.mem_mb)
            && has_gpus()
    }

    fn fits_gpus(&self, need: &Need) -> bool {
        fits_shares(&self.free_shares, &self.mig, need)
    }

    /// Gives a Job that fits its cores and GPUs. `until_sec` is when it is thought to end, infinite when not known.
    pub(super) fn take(&mut self, node: usize, job: JobId, need: &Need, until_sec: f64) -> NodePart {
        let gpus = self.take_gpus(need);
        let cores = self.take_cores(need, &gpus);
        self.free_occupancy -= need.occupancy.min(self.free_occupancy);
        if let Some(free) = &mut self.free_mem_mb {
            *free -= need.mem_mb.min(*free);
        }
        self.running.insert(job, until_sec);
        self.latest_sec = self.latest_sec.max(until_sec);
        NodePart { node, cores, gpus }
    }

    /// Takes everything back.
    pub(super) fn give_back(&mut self, job: JobId, need: &Need, part: &NodePart) {
        self.running.remove(&job);
        self.latest_sec = self.running.values().copied().fold(f64::NEG_INFINITY, f64::max);
        for core in &part.cores {
            self.free.insert(*core as usize);
        }
        self.free_cores += u32::try_from(part.cores.len()).unwrap_or(0);
        self.free_occupancy += need.occupancy;
        if let Some(free) = &mut self.free_mem_mb {
            *free += need.mem_mb;
        }
        for gpu in part.gpus.iter().flatten() {
            self.free_shares[*gpu as usize] += need.gpu_share.min(WHOLE);
        }
    }

    /// Chooses GPUs: whole ones that still have free cores next to them first, fractions where they fill a device up.
    fn take_gpus(&mut self, need: &Need) -> Vec<Vec<u32>> {
        if need.gpu_share == 0 {
            return Vec::new();
        }
        let per_rank = need.whole_gpus_per_rank();
        if per_rank == 0 {
            return (0..need.ranks).map(|_| self.take_share(need.gpu_share)).collect();
        }
        let cores_per_rank = need.threads_per_rank.div_ceil(need.threads_per_core);
        let mut devices: Vec<usize> = (0..self.free_shares.len())
            .filter(|device| self.free_shares[*device] == WHOLE && !(per_rank > 1 && self.mig[*device]))
            .collect();
        devices.sort_by_key(|device| self.near[*device].count_common(&self.free) < cores_per_rank);
        let mut devices = devices.into_iter();
        let mut gpus = Vec::new();
        for _ in 0..need.ranks {
            let of_rank: Vec<u32> = devices.by_ref().take(per_rank as usize).map(|device| device as u32).collect();
            of_rank.iter().for_each(|device| self.free_shares[*device as usize] = 0);
            gpus.push(of_rank);
        }
        gpus
    }

    /// The fullest device that still has the share.
    fn take_share(&mut self, share: u32) -> Vec<u32> {
        let with_room = (0..self.free_shares.len()).filter(|device| self.free_shares[*device] >= share);
        let Some(device) = with_room.min_by_key(|device| self.free_shares[*device]) else { return Vec::new() };
        self.free_shares[device] -= share;
        vec![device as u32]
    }

    /// Chooses cores, rank after rank: next to the rank's GPU, else in one NUMA domain. A Job that owns its node
    /// spreads its ranks over the domains, one that shares it takes the domain that it fills up best.
    fn take_cores(&mut self, need: &Need, gpus: &[Vec<u32>]) -> Vec<u32> {
        let wanted = need.cores.min(self.free_cores);
        let mut home = None;
        if need.occupancy < WHOLE {
            let enough = |domain: &usize| self.domains[*domain].count_common(&self.free) >= wanted;
            home = (0..self.domains.len())
                .filter(enough)
                .min_by_key(|domain| self.domains[*domain].count_common(&self.free));
        }
        let mut cores = Vec::with_capacity(wanted as usize);
        for place in 0..wanted {
            let rank = need.first_rank_on(place);
            let gpu = gpus.get(rank as usize).and_then(|gpus| gpus.first());
            let domain = home.unwrap_or_else(|| spread(rank, need.ranks, self.domains.len()));
            let core = gpu
                .and_then(|gpu| self.near[*gpu as usize].first_common(&self.free))
                .or_else(|| self.domains.get(domain)?.first_common(&self.free))
                .or_else(|| self.free.first());
            let Some(core) = core else { break };
            self.free.remove(core);
            cores.push(core as u32);
        }
        self.free_cores -= cores.len() as u32;
        cores
    }

    /// When a single-node Job would fit if nothing else started: the earliest end after which it does.
    /// `part_of` tells what a running Job holds.
    pub(super) fn fits_at<'a>(
        &self,
        need: &Need,
        now_sec: f64,
        part_of: impl Fn(JobId) -> Option<(&'a Need, &'a NodePart)>,
    ) -> f64 {
        let (mut cores, mut occupancy, mut mem) = (self.free_cores, self.free_occupancy, self.free_mem_mb);
        let mut shares = self.free_shares.clone();
        let mut ends: Vec<(f64, JobId)> = self.running.iter().map(|(job, end)| (end.max(now_sec), *job)).collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (end, job) in ends {
            let Some((held, part)) = part_of(job) else { continue };
            cores += part.cores.len() as u32;
            occupancy += held.occupancy;
            mem = mem.map(|mem| mem + held.mem_mb);
            part.gpus.iter().flatten().for_each(|gpu| shares[*gpu as usize] += held.gpu_share.min(WHOLE));
            if cores >= need.cores
                && occupancy >= need.occupancy
                && mem.is_none_or(|mem| mem >= need.mem_mb)
                && fits_shares(&shares, &self.mig, need)
            {
                return end;
            }
        }
        f64::INFINITY
    }

    /// What the node lacks for a single-node Job, in words; `None` when it fits.
    pub(super) fn lack(&self, need: &Need) -> Option<String> {
        if self.aside {
            return Some("the node is set aside".into());
        }
        if self.running.len() >= self.most_jobs {
            return Some(format!("it runs {} Jobs already, the most allowed", self.running.len()));
        }
        if self.free_cores < need.cores {
            return Some(format!("{} of the {} CPUs asked for are free", self.free_cores, need.cores));
        }
        if self.free_occupancy < need.occupancy {
            return Some(match need.occupancy {
                WHOLE => "it must be empty (node_packing_count is 1)".into(),
                _ => "node_packing_count lets no more Jobs on".into(),
            });
        }
        if let Some(free) = self.free_mem_mb.filter(|free| *free < need.mem_mb) {
            return Some(format!("{free} of the {} MiB of memory asked for are free", need.mem_mb));
        }
        (!self.fits_gpus(need)).then(|| "its GPUs are in use".into())
    }
}

fn fits_shares(shares: &[u32], mig: &[bool], need: &Need) -> bool {
    match need.gpu_share {
        0 => true,
        share if share >= WHOLE => {
            let many = need.whole_gpus_per_rank() > 1;
            let whole = shares.iter().zip(mig).filter(|(free, mig)| **free == WHOLE && !(many && **mig)).count();
            whole >= need.whole_gpus() as usize
        }
        share => shares.iter().map(|free| free / share).sum::<u32>() >= need.ranks,
    }
}

/// The domain of a rank when ranks are spread evenly.
fn spread(rank: u32, ranks: u32, domains: usize) -> usize {
    (rank as usize * domains / ranks.max(1) as usize).min(domains.saturating_sub(1))
}
