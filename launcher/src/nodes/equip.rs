//! What the launcher may use of a node: what is found there, less what settings and scheduler say.

use super::Node;
use crate::hardware::{Core, Gpu, NodeHardware};

/// What settings and scheduler say of every node, whatever is found on one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// `cpus_per_node` of the settings.
    pub(super) cpus: Option<u32>,
    /// `gpu_ids` of the settings.
    pub(super) gpus: Option<Vec<Gpu>>,
    /// MiB that the scheduler granted on each node.
    pub(super) mem_mb: Option<u64>,
    /// Nodes are pretended, so that others may have the same CPUs.
    pub(super) is_pretended: bool,
}

impl Rules {
    /// The node on which this was found.
    #[must_use]
    pub fn equip(&self, node: &Node, found: NodeHardware) -> Node {
        let mut hardware = found;
        match self.cpus {
            Some(count) => set_cores(&mut hardware.cores, count),
            None => grant(&mut hardware.cores, node.granted_cpus),
        }
        if self.is_pretended {
            hardware.cores.iter_mut().for_each(|core| core.threads.clear());
        }
        if let Some(gpus) = &self.gpus {
            hardware.gpus.clone_from(gpus);
        }
        hardware.mem_mb = self.mem_mb.map_or(hardware.mem_mb, |granted| match hardware.mem_mb {
            0 => granted,
            has => has.min(granted),
        });
        Node { granted_cpus: node.granted_cpus, ..Node::new(node.name.clone(), hardware, node.is_local) }
    }

    /// Whether GPUs are what the settings say, so that none need be looked for.
    #[must_use]
    pub fn names_gpus(&self) -> bool {
        self.gpus.is_some()
    }
}

/// Leaves as many cores as the granted hardware threads fill. A scheduler that counts cores grants no fewer
/// than there are, so then nothing is taken away.
fn grant(cores: &mut Vec<Core>, cpus: Option<u32>) {
    let Some(cpus) = cpus.map(|cpus| cpus as usize).filter(|cpus| *cpus > 0 && *cpus < cores.len()) else { return };
    let threads = cores.first().map_or(1, |core| core.threads.len().max(1));
    cores.truncate(cpus.div_ceil(threads));
}

/// Exactly so many cores. Those that the system does not know are numbered on, without a thread that a rank
/// could be bound to.
fn set_cores(cores: &mut Vec<Core>, count: u32) {
    cores.truncate(count as usize);
    let mut next = cores.iter().flat_map(|core| &core.threads).max().map_or(0, |highest| highest + 1);
    while cores.len() < count as usize {
        cores.push(Core { id: next, threads: Vec::new(), numa: 0 });
        next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::GpuVendor;

    #[test]
    fn settings_win_over_what_is_found_on_a_node() {
        let gpu = |id: &str| Gpu { id: id.into(), vendor: GpuVendor::Nvidia, mig: false, near_cores: Vec::new() };
        let core = |id| Core { id, threads: vec![id], numa: 0 };
        let found = NodeHardware { cores: (0..8).map(core).collect(), gpus: vec![gpu("0"), gpu("1")], mem_mb: 64_000 };
        let node = Node { granted_cpus: Some(6), ..Node::new("n2", NodeHardware::default(), false) };
        let shape = |rules: &Rules| {
            let node = rules.equip(&node, found.clone());
            (node.cores.len(), node.gpus.len(), node.mem_mb, node.name)
        };
        assert_eq!(shape(&Rules::default()), (6, 2, 64_000, "n2".into()));
        let rules = Rules { cpus: Some(4), gpus: Some(vec![gpu("1")]), mem_mb: Some(32_000), is_pretended: false };
        assert_eq!(shape(&rules), (4, 1, 32_000, "n2".into()));
        // What is found later is judged by the same grant.
        assert_eq!(rules.equip(&rules.equip(&node, found.clone()), found.clone()).granted_cpus, Some(6));
    }
}
