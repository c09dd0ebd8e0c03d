//! What a Job asks of each of its nodes, in whole units, and whether it is one that a node can hold.

use copal_schemas::resources::{NodeShape, ResourceShape, WHOLE};

use crate::nodes::Node;

/// A [`ResourceShape`] in the numbers that placement counts with. Equal needs are interchangeable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Need {
    pub(super) nodes: usize,
    pub(super) ranks: u32,
    pub(super) threads_per_rank: u32,
    pub(super) threads_per_core: u32,
    /// Cores on each node.
    pub(super) cores: u32,
    /// Of one rank, in 1/10,000.
    pub(super) gpu_share: u32,
    /// Of each node, in 1/10,000.
    pub(super) occupancy: u32,
    /// On each node; 0 for none in particular.
    pub(super) mem_mb: u64,
}

impl Need {
    pub(super) fn new(shape: &ResourceShape) -> Self {
        let positive = |number: i32| u32::try_from(number).unwrap_or(1).max(1);
        Self {
            nodes: positive(shape.num_nodes) as usize,
            ranks: positive(shape.ranks_per_node),
            threads_per_rank: positive(shape.threads_per_rank),
            threads_per_core: positive(shape.threads_per_core),
            cores: shape.cpus_per_node(),
            gpu_share: shape.gpu_shares_per_rank(),
            occupancy: shape.occupancy(),
            mem_mb: shape.mem_mb.and_then(|mem| u64::try_from(mem).ok()).unwrap_or(0),
        }
    }

    /// Whether it takes whole empty nodes.
    pub(super) fn is_wide(&self) -> bool {
        self.nodes > 1
    }

    /// Whole GPUs of each rank; 0 when it asks for a fraction or none.
    pub(super) fn whole_gpus_per_rank(&self) -> u32 {
        if self.gpu_share >= WHOLE { self.gpu_share.div_ceil(WHOLE) } else { 0 }
    }

    /// Whole GPUs on each node.
    pub(super) fn whole_gpus(&self) -> u32 {
        self.ranks.saturating_mul(self.whole_gpus_per_rank())
    }

    /// The rank that is the first to use a core, by the core's place among those of the Job.
    pub(super) fn first_rank_on(&self, core: u32) -> u32 {
        let slot = u64::from(core) * u64::from(self.threads_per_core);
        u32::try_from(slot / u64::from(self.threads_per_rank)).unwrap_or(u32::MAX)
    }
}

/// Nodes that have the same, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeKind {
    pub(super) shape: NodeShape,
    /// GPUs that are MIG slices.
    pub(super) slices: u32,
}

impl NodeKind {
    pub(super) fn new(node: &Node) -> Self {
        let slices = node.gpus.iter().filter(|gpu| gpu.mig).count();
        Self { shape: node.shape(), slices: u32::try_from(slices).unwrap_or(u32::MAX) }
    }

    /// Why an empty node can't hold its part of the Job, or `None` when it can.
    pub(super) fn misfit(&self, shape: &ResourceShape) -> Option<String> {
        let need = Need::new(shape);
        if need.whole_gpus_per_rank() > 1 && self.slices > 0 && self.shape.gpus - self.slices < need.whole_gpus() {
            return Some(format!(
                "a rank asks for {} GPUs, and the GPUs here are MIG slices, of which a process sees one at most",
                shape.gpus_per_rank
            ));
        }
        shape.misfit(&self.shape).map(|(_, why)| why)
    }
}
