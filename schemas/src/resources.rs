//! The resource shape of a Job, in whole units, and whether a node can hold it.
//! Who runs where is the launcher's `packing`; this is only what both sides must agree on.

use serde::{Deserialize, Serialize};

/// A whole, in shares: fractions of a node or of a GPU are integers of 1/10,000.
pub const WHOLE: u32 = 10_000;

/// What a Job asks of the nodes it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceShape {
    /// Nodes.
    pub num_nodes: i32,
    /// Ranks (processes) on each node.
    pub ranks_per_node: i32,
    /// Threads of each rank.
    pub threads_per_rank: i32,
    /// Hardware threads of one core that a rank's threads use.
    pub threads_per_core: i32,
    /// GPUs of each rank; a fraction shares a device.
    pub gpus_per_rank: f64,
    /// How many such Jobs may share a node.
    pub node_packing_count: i32,
    /// Memory on each node in MiB; `None` asks for none in particular.
    pub mem_mb: Option<i64>,
}

impl Default for ResourceShape {
    fn default() -> Self {
        Self {
            num_nodes: 1,
            ranks_per_node: 1,
            threads_per_rank: 1,
            threads_per_core: 1,
            gpus_per_rank: 0.0,
            node_packing_count: 1,
            mem_mb: None,
        }
    }
}

/// What one node of a Site has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeShape {
    /// Cores.
    #[serde(deserialize_with = "crate::lenient::int")]
    pub cpus: u32,
    /// GPUs (a MIG slice is one).
    #[serde(deserialize_with = "crate::lenient::int")]
    pub gpus: u32,
    /// Memory in MiB; 0 where it is not known.
    #[serde(deserialize_with = "crate::lenient::int")]
    pub mem_mb: u64,
}

/// A value that no Job can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct ShapeError {
    /// The field of the Job.
    pub field: &'static str,
    /// What is wrong, with the value and the remedy.
    pub message: String,
}

impl ResourceShape {
    /// Refuses values that no node could ever satisfy.
    ///
    /// # Errors
    /// [`ShapeError`] that names the field.
    pub fn validate(&self) -> Result<(), ShapeError> {
        let counts = [
            ("num_nodes", self.num_nodes),
            ("ranks_per_node", self.ranks_per_node),
            ("threads_per_rank", self.threads_per_rank),
            ("threads_per_core", self.threads_per_core),
            ("node_packing_count", self.node_packing_count),
        ];
        for (field, value) in counts {
            if !(1..=1_000_000).contains(&value) {
                return Err(ShapeError { field, message: format!("{value} is not between 1 and 1000000") });
            }
        }
        if !self.gpus_per_rank.is_finite() || !(0.0..=10_000.0).contains(&self.gpus_per_rank) {
            let message = format!("{} is not between 0 and 10000", self.gpus_per_rank);
            return Err(ShapeError { field: "gpus_per_rank", message });
        }
        if let Some(mem_mb) = self.mem_mb
            && !(1..=1_000_000_000).contains(&mem_mb)
        {
            let message = format!("{mem_mb} is not between 1 and 1000000000");
            return Err(ShapeError { field: "mem_mb", message });
        }
        Ok(())
    }

    /// Cores on each node, rounded up.
    #[must_use]
    pub fn cpus_per_node(&self) -> u32 {
        let threads = i64::from(self.ranks_per_node.max(1)) * i64::from(self.threads_per_rank.max(1));
        let per_core = i64::from(self.threads_per_core.max(1));
        u32::try_from((threads + per_core - 1) / per_core).unwrap_or(u32::MAX)
    }

    /// GPUs of one rank in shares of 1/10,000, rounded to the nearest; a positive ask is at least one share.
    #[must_use]
    pub fn gpu_shares_per_rank(&self) -> u32 {
        let shares = (self.gpus_per_rank * f64::from(WHOLE)).round().clamp(0.0, f64::from(u32::MAX)) as u32;
        if self.gpus_per_rank > 0.0 { shares.max(1) } else { 0 }
    }

    /// The occupancy of a node by one such Job, in shares rounded down, so that seven sevenths fit.
    #[must_use]
    pub fn occupancy(&self) -> u32 {
        if self.num_nodes > 1 {
            return WHOLE;
        }
        let count = u32::try_from(self.node_packing_count).unwrap_or(1).max(1);
        (WHOLE / count).max(1)
    }

    /// Why an empty node can't hold this Job's part, with the field that asks for too much; `None` when it can.
    #[must_use]
    pub fn misfit(&self, node: &NodeShape) -> Option<(&'static str, String)> {
        let cpus = self.cpus_per_node();
        // A multi-node Job owns its nodes, so more ranks than cores is its own decision.
        if self.num_nodes == 1 && cpus > node.cpus {
            let why = format!(
                "{} ranks x {} threads need {cpus} CPUs; a node has {}",
                self.ranks_per_node, self.threads_per_rank, node.cpus
            );
            return Some(("ranks_per_node", why));
        }
        let share = self.gpu_shares_per_rank();
        let ranks = u32::try_from(self.ranks_per_node).unwrap_or(1).max(1);
        let gpus = if share == 0 {
            0
        } else if share < WHOLE {
            ranks.div_ceil((WHOLE / share).max(1))
        } else {
            ranks.saturating_mul(share.div_ceil(WHOLE))
        };
        if gpus > node.gpus {
            let why = format!(
                "{} ranks x {} GPUs need {gpus} GPUs; a node has {}",
                self.ranks_per_node, self.gpus_per_rank, node.gpus
            );
            return Some(("gpus_per_rank", why));
        }
        match self.mem_mb.and_then(|mem| u64::try_from(mem).ok()) {
            Some(mem) if node.mem_mb > 0 && mem > node.mem_mb => {
                Some(("mem_mb", format!("{mem} MiB of memory are asked for; a node has {}", node.mem_mb)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn seven_sevenths_fit() {
        let shape = ResourceShape { node_packing_count: 7, ..Default::default() };
        assert!(shape.occupancy() * 7 <= WHOLE);
        assert!(shape.occupancy() * 8 > WHOLE);
    }

    #[test]
    fn pitfall_086_a_half_gpu_is_not_none() {
        let shape = ResourceShape { gpus_per_rank: 0.5, ..Default::default() };
        assert_eq!(shape.gpu_shares_per_rank(), 5_000);
        assert!(shape.misfit(&NodeShape { cpus: 4, gpus: 0, mem_mb: 0 }).is_some());
        assert_eq!(shape.misfit(&NodeShape { cpus: 4, gpus: 1, mem_mb: 0 }), None);
    }

    #[test]
    fn pitfall_085_an_impossible_shape_is_named() {
        let shape =
            ResourceShape { ranks_per_node: 4, gpus_per_rank: 4.0, node_packing_count: 2, ..Default::default() };
        let misfit = shape.misfit(&NodeShape { cpus: 64, gpus: 4, mem_mb: 0 }).unwrap();
        assert_eq!(misfit, ("gpus_per_rank", "4 ranks x 4 GPUs need 16 GPUs; a node has 4".into()));
    }

    proptest! {
        #[test]
        fn a_full_packing_never_exceeds_a_node(count in 1..10_000i32) {
            let shape = ResourceShape { node_packing_count: count, ..Default::default() };
            prop_assert!(u64::from(shape.occupancy()) * count as u64 <= u64::from(WHOLE));
        }

        #[test]
        fn valid_shapes_never_overflow(ranks in 1..1_000_000i32, threads in 1..1_000_000i32, gpus in 0.0..10_000.0f64) {
            let shape = ResourceShape { ranks_per_node: ranks, threads_per_rank: threads, gpus_per_rank: gpus, ..Default::default() };
            prop_assert!(shape.validate().is_ok());
            let _ = (shape.cpus_per_node(), shape.misfit(&NodeShape { cpus: 1, gpus: 1, mem_mb: 1 }));
        }
    }
}
