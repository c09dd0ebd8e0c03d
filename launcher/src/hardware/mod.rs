//! What one node has: cores with their hardware threads and NUMA domains, GPUs and MIG slices, memory.
//! Types, and [`detect`], which reads this machine. Which nodes there are is told by `nodes`; who gets
//! what, by `packing`.

mod amd;
mod command;
mod cpu;
mod gpu;
mod group;
mod intel;
mod memory;
mod nvidia;

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

pub(crate) use command::output;
pub use gpu::{GpuEnvironment, gpu_environment};

/// A core that this process may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// The system's number of its first hardware thread, which names the core.
    pub id: u32,
    /// The system's numbers of its hardware threads, lowest first; empty for a pretended core, to which nothing is bound.
    pub threads: Vec<u32>,
    /// Its NUMA domain.
    pub numa: u32,
}

/// Whose GPU it is, which says how a process is told to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuVendor {
    /// `CUDA_VISIBLE_DEVICES`.
    Nvidia,
    /// `ROCR_VISIBLE_DEVICES`.
    Amd,
    /// `ZE_AFFINITY_MASK`.
    Intel,
}

/// A GPU, or a part of one that counts as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// As the vendor's variable wants it: `0`, `GPU-…`, `MIG-…`, `3.1`.
    pub id: String,
    /// Whose it is.
    pub vendor: GpuVendor,
    /// Whether it is a MIG slice: a process sees one at most.
    pub mig: bool,
    /// Ids of the cores next to it; empty where not known.
    pub near_cores: Vec<u32>,
}

/// What one node has. A worker may report it, so that unequal nodes are known as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHardware {
    /// Cores, by id.
    pub cores: Vec<Core>,
    /// GPUs in the vendor's order.
    pub gpus: Vec<Gpu>,
    /// Memory in MiB; 0 where not known.
    pub mem_mb: u64,
}

/// Where the system tells about itself. Tests put another folder in its place.
#[derive(Clone, Debug)]
pub(crate) struct System {
    sys: PathBuf,
    proc: PathBuf,
    dev: PathBuf,
}

impl System {
    pub(crate) fn here() -> Self {
        Self::below(Path::new("/"))
    }

    pub(crate) fn below(root: &Path) -> Self {
        Self { sys: root.join("sys"), proc: root.join("proc"), dev: root.join("dev") }
    }

    /// Everything that this process may use.
    pub(crate) fn hardware(&self, env: &dyn Fn(&str) -> Option<String>) -> NodeHardware {
        let mut cores = cpu::allowed(cpu::topology(&self.sys), &self.proc);
        if let Some(quota) = cpu::quota(self) {
            cores.truncate(quota);
        }
        NodeHardware { cores, gpus: gpu::find(self, env), mem_mb: memory::mem_mb(self) }
    }

    /// All cores of the machine, whatever this process may use.
    pub(crate) fn all_cores(&self) -> Vec<Core> {
        cpu::topology(&self.sys)
    }

    /// GPUs with the ids that the settings name.
    pub(crate) fn named_gpus(&self, ids: &[String]) -> Vec<Gpu> {
        gpu::named(self, ids)
    }
}

/// What this machine has and this process may use. `env` reads an environment variable: an allocation that
/// was granted some of the GPUs says so there. May run the vendor's tool, with a time-out of ten seconds.
#[must_use]
pub fn detect(env: &dyn Fn(&str) -> Option<String>) -> NodeHardware {
    System::here().hardware(env)
}

/// Prints as one line of JSON what this machine has.
///
/// # Errors
/// When nobody reads it.
pub fn print() -> anyhow::Result<()> {
    let hardware = detect(&|name| std::env::var(name).ok());
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&hardware)?)?;
    Ok(())
}

/// The numbers of a list such as `0-3,8`; what makes no sense is left out.
fn number_list(text: &str) -> Vec<u32> {
    let numbers = crate::hostlist::numbers(text.trim()).unwrap_or_default();
    numbers.iter().filter_map(|number| number.parse().ok()).collect()
}
