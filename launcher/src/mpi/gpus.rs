//! How the ranks of a run are told their GPUs: all ranks of a node see the node's GPUs of the Job, as long as
//! that says the same everywhere. MIG slices go one to a rank, since a process sees one at most.

use super::run::{RankedRun, distinct};
use crate::hardware::{GpuEnvironment, gpu_environment};

/// What the ranks are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GpuPlan {
    /// The same for all ranks; nothing where the Job has no GPUs.
    Same(GpuEnvironment),
    /// For each rank its own. All set the same variables.
    ByRank(Vec<GpuEnvironment>),
}

/// What the ranks of a run are told.
pub(super) fn plan(run: &RankedRun) -> GpuPlan {
    let of_nodes: Vec<GpuEnvironment> =
        run.hosts.iter().map(|host| gpu_environment(&distinct(host.gpus.iter().flatten()))).collect();
    let slices = run
        .hosts
        .iter()
        .any(|host| distinct(host.gpus.iter().flatten()).len() > 1 && host.gpus.iter().flatten().any(|gpu| gpu.mig));
    let ranks = run.ranks_per_node() as usize;
    if slices {
        let own = |gpus: &Vec<crate::hardware::Gpu>| gpu_environment(&gpus.iter().collect::<Vec<_>>());
        return GpuPlan::ByRank(run.hosts.iter().flat_map(|host| host.gpus.iter().map(own)).collect());
    }
    if of_nodes.windows(2).all(|pair| pair[0] == pair[1]) {
        return GpuPlan::Same(of_nodes.into_iter().next().unwrap_or_default());
    }
    GpuPlan::ByRank(of_nodes.into_iter().flat_map(|environment| std::iter::repeat_n(environment, ranks)).collect())
}
