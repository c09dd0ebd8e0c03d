//! Placement: given nodes and Jobs, who runs where and when. Pure: no clock, no I/O; time is an
//! argument in seconds. Starting what is placed is the worker's part. `docs/PLACEMENT.md` says the rules.

mod bits;
mod index;
mod need;
mod node;
mod packer;
mod queue;
mod reserve;
mod why;

use copal_schemas::{JobId, job::Job, resources::ResourceShape};

pub use packer::Packer;

/// What a Job asks, and what orders it among others.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The Job.
    pub job: JobId,
    /// Nodes, ranks, threads, GPUs, memory.
    pub shape: ResourceShape,
    /// Higher goes first.
    pub priority: i32,
    /// Expected minutes; 0 where not known.
    pub wall_time_min: i32,
    /// Minutes after which the run is cut off.
    pub walltime_limit_min: Option<i32>,
}

impl From<&Job> for Ask {
    fn from(job: &Job) -> Self {
        Self {
            job: job.id,
            shape: job.shape(),
            priority: job.priority,
            wall_time_min: job.wall_time_min,
            walltime_limit_min: job.walltime_limit_min,
        }
    }
}

/// What a Job is given on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePart {
    /// The node, by its place in the allocation.
    pub node: usize,
    /// Its cores, by their place in the node's list, rank after rank.
    pub cores: Vec<u32>,
    /// For each rank its GPUs, by their place in the node's list; empty when it asked for none.
    pub gpus: Vec<Vec<u32>>,
}

/// A Job that may start now, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The Job.
    pub job: JobId,
    /// One for each node, in the order of the allocation.
    pub parts: Vec<NodePart>,
}

/// A Job that no node here can hold, now or ever.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Misfit {
    /// The Job.
    pub job: JobId,
    /// Why, with the numbers.
    pub reason: String,
}

/// What could be acquired now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Room {
    /// Nodes in use or free, without those set aside: no Job may ask for more.
    pub nodes: usize,
    /// Nodes on which nothing runs.
    pub empty_nodes: usize,
    /// The free occupancy of all nodes, in nodes; a node without a free core has none.
    pub free_nodes: f64,
    /// No more Jobs than that can start at once: one needs a core at least.
    pub free_jobs: usize,
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
