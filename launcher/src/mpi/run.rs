//! One run of a Job on the nodes it was given: all that a command line is made of.

use copal_schemas::{
    JobId, StringMap,
    resources::{ResourceShape, WHOLE},
};

use crate::{
    hardware::Gpu,
    nodes::Node,
    packing::{Ask, NodePart, Placement},
};

/// One node of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunHost {
    /// Its name.
    pub name: String,
    /// For each rank its hardware threads; empty when ranks must not be bound, since others share the CPUs.
    pub cpus: Vec<Vec<u32>>,
    /// For each rank its GPUs; empty for none.
    pub gpus: Vec<Vec<Gpu>>,
}

/// By node and first core, which is given to one run at a time.
fn lane(part: &NodePart) -> String {
    format!("{}-{}", part.node, part.cores.first().copied().unwrap_or_default())
}

/// A run of a Job on given nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedRun {
    /// The Job.
    pub job: JobId,
    /// A name of its place, which no run beside it has.
    pub lane: String,
    /// Ranks, threads and GPUs.
    pub shape: ResourceShape,
    /// Where, in the order of the ranks.
    pub hosts: Vec<RunHost>,
    /// What each rank executes, and its arguments.
    pub program: Vec<String>,
    /// Variables that each rank gets besides what it inherits.
    pub env: StringMap,
    /// The Job's own words for the command, passed through.
    pub launch_params: StringMap,
}

impl RankedRun {
    /// A run of `program` where the Job was placed. `OMP_NUM_THREADS` is the threads of a rank unless `env` says
    /// otherwise, since a rank that is not bound would take all CPUs for its own. A Job on several nodes finds their
    /// names in `COPAL_NODES`, with commas.
    #[must_use]
    pub fn new(
        ask: &Ask,
        placement: &Placement,
        nodes: &[Node],
        program: Vec<String>,
        mut env: StringMap,
        launch_params: StringMap,
    ) -> Self {
        let host = |part: &NodePart| {
            let node = nodes.get(part.node)?;
            let cpus = node.cpus_of_ranks(part, &ask.shape);
            let of_rank =
                |gpus: &Vec<u32>| gpus.iter().filter_map(|gpu| node.gpus.get(*gpu as usize)).cloned().collect();
            Some(RunHost { name: node.name.clone(), cpus, gpus: part.gpus.iter().map(of_rank).collect() })
        };
        env.entry("OMP_NUM_THREADS".into()).or_insert_with(|| ask.shape.threads_per_rank.max(1).to_string());
        let hosts: Vec<RunHost> = placement.parts.iter().filter_map(host).collect();
        if hosts.len() > 1 {
            // For a script that starts ranks of its own on the nodes that it was given.
            let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
            env.insert("COPAL_NODES".into(), names.join(","));
        }
        Self {
            job: ask.job,
            lane: placement.parts.first().map_or_else(String::new, lane),
            shape: ask.shape,
            hosts,
            program,
            env,
            launch_params,
        }
    }

    /// Ranks on each node.
    pub(super) fn ranks_per_node(&self) -> u32 {
        u32::try_from(self.shape.ranks_per_node).unwrap_or(1).max(1)
    }

    /// All ranks.
    pub(super) fn ranks(&self) -> usize {
        self.hosts.len() * self.ranks_per_node() as usize
    }

    /// Threads of a rank.
    pub(super) fn threads_per_rank(&self) -> u32 {
        u32::try_from(self.shape.threads_per_rank).unwrap_or(1).max(1)
    }

    /// Hardware threads of a core in use.
    pub(super) fn threads_per_core(&self) -> u32 {
        u32::try_from(self.shape.threads_per_core).unwrap_or(1).max(1)
    }

    /// Cores of a rank, rounded up.
    pub(super) fn cores_per_rank(&self) -> u32 {
        self.threads_per_rank().div_ceil(self.threads_per_core())
    }

    /// Whole GPUs of a rank; 0 for a fraction or none.
    pub(super) fn whole_gpus_per_rank(&self) -> u32 {
        let share = self.shape.gpu_shares_per_rank();
        if share >= WHOLE { share.div_ceil(WHOLE) } else { 0 }
    }

    /// GPUs of a node, each once.
    pub(super) fn gpus_per_node(&self) -> usize {
        let Some(host) = self.hosts.first() else { return 0 };
        distinct(host.gpus.iter().flatten()).len()
    }

    /// The names of the nodes.
    pub(super) fn host_names(&self) -> Vec<&str> {
        self.hosts.iter().map(|host| host.name.as_str()).collect()
    }

    /// For each rank of a node its hardware threads, where they are known and the same on all nodes, and the Job
    /// has no word of its own about binding.
    pub(super) fn binding(&self) -> Option<&[Vec<u32>]> {
        let first = self.hosts.first().filter(|host| !host.cpus.is_empty())?;
        let same = self.hosts.iter().all(|host| host.cpus == first.cpus);
        (same && !super::params::has_own_binding(&self.launch_params)).then_some(&first.cpus)
    }
}

/// Each GPU once, in order.
pub(super) fn distinct<'a>(gpus: impl Iterator<Item = &'a Gpu>) -> Vec<&'a Gpu> {
    let mut once: Vec<&Gpu> = Vec::new();
    for gpu in gpus {
        if !once.iter().any(|known| known.id == gpu.id) {
            once.push(gpu);
        }
    }
    once
}
