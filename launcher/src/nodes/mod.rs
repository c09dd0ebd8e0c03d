//! The nodes of the allocation that the launcher runs in, from the scheduler's environment.
//! One file each for a scheduler; what a node has comes from `hardware`.

mod cobalt;
mod equip;
mod flux;
mod local;
mod lsf;
mod pbs;
mod slurm;
mod topology;

use copal_schemas::{
    resources::{NodeShape, ResourceShape},
    settings::{LauncherSettings, SchedulerKind, Settings},
};

use crate::{
    hardware::{Core, Gpu, NodeHardware, System},
    hostlist::HostlistError,
    packing::NodePart,
};
pub use equip::Rules;

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// As the scheduler and `mpiexec` know it.
    pub name: String,
    /// Cores, by id.
    pub cores: Vec<Core>,
    /// GPUs in the vendor's order.
    pub gpus: Vec<Gpu>,
    /// Memory in MiB; 0 where not known.
    pub mem_mb: u64,
    /// Whether it is this machine: the launcher's own node, or a pretended one.
    pub is_local: bool,
    /// Hardware threads that the scheduler granted, where it says so.
    pub granted_cpus: Option<u32>,
}

impl Node {
    /// A node with this hardware.
    #[must_use]
    pub fn new(name: impl Into<String>, hardware: NodeHardware, is_local: bool) -> Self {
        let NodeHardware { cores, gpus, mem_mb } = hardware;
        Self { name: name.into(), cores, gpus, mem_mb, is_local, granted_cpus: None }
    }

    /// What it has, as numbers.
    #[must_use]
    pub fn shape(&self) -> NodeShape {
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        NodeShape { cpus: count(self.cores.len()), gpus: count(self.gpus.len()), mem_mb: self.mem_mb }
    }

    /// For each rank of a part on this node the numbers of the hardware threads that it is given.
    /// Empty when ranks must not be bound: there are more ranks than CPUs, which only a Job that owns its nodes
    /// may do, or the cores are pretended ones.
    #[must_use]
    pub fn cpus_of_ranks(&self, part: &NodePart, shape: &ResourceShape) -> Vec<Vec<u32>> {
        let per_rank = usize::try_from(shape.threads_per_rank).unwrap_or(1).max(1);
        let ranks = usize::try_from(shape.ranks_per_node).unwrap_or(1).max(1);
        let per_core = usize::try_from(shape.threads_per_core).unwrap_or(1).max(1);
        let slots: Vec<u32> = part
            .cores
            .iter()
            .filter_map(|core| self.cores.get(*core as usize))
            .flat_map(|core| core.threads.iter().cycle().take(per_core).copied())
            .collect();
        if slots.len() < ranks * per_rank {
            return Vec::new();
        }
        slots.chunks(per_rank).take(ranks).map(distinct).collect()
    }

    /// The GPUs of a part on this node, each once, in the node's order.
    #[must_use]
    pub fn gpus_of(&self, part: &NodePart) -> Vec<&Gpu> {
        let places = distinct(&part.gpus.concat());
        places.iter().filter_map(|gpu| self.gpus.get(*gpu as usize)).collect()
    }
}

/// Each number once, lowest first.
fn distinct(numbers: &[u32]) -> Vec<u32> {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Where the list of nodes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Slurm.
    Slurm,
    /// OpenPBS and PBS Pro.
    Pbs,
    /// Cobalt.
    Cobalt,
    /// LSF.
    Lsf,
    /// Flux.
    Flux,
    /// This machine, as one node or several pretended ones.
    Local,
}

/// What the launcher was given to run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// In the scheduler's order: near nodes are near in the list.
    pub nodes: Vec<Node>,
    /// What settings and scheduler say of each, whatever is found there.
    pub rules: Rules,
    /// The scheduler's id of the BatchJob.
    pub scheduler_id: Option<String>,
    /// Whose list it is.
    pub source: Source,
}

/// Why the nodes can't be known.
#[derive(Debug, thiserror::Error)]
pub enum NodesError {
    /// A variable of the scheduler makes no sense.
    #[error("the scheduler's {variable} makes no sense")]
    Malformed {
        /// The variable.
        variable: &'static str,
        /// What is wrong with its value.
        #[source]
        source: HostlistError,
    },
    /// A file that the scheduler names can't be read.
    #[error("can't read {path}, which {variable} names")]
    Unreadable {
        /// The variable.
        variable: &'static str,
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A command that tells the nodes failed.
    #[error("can't ask {command} for the nodes")]
    Command {
        /// The command.
        command: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The scheduler's list is empty.
    #[error("{variable} names no node; run copal-launcher inside an allocation")]
    Empty {
        /// The variable.
        variable: &'static str,
    },
}

/// A list of nodes as a scheduler gives it.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    source: Source,
    /// What the list was read from.
    variable: &'static str,
    scheduler_id: Option<String>,
    hosts: Vec<Host>,
    /// MiB granted on each node, where the scheduler says so.
    mem_mb: Option<u64>,
}

/// One node of such a list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    name: String,
    /// Hardware threads granted, where the scheduler says so.
    cpus: Option<u32>,
}

impl Host {
    fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), cpus: None }
    }
}

/// The environment of the scheduler's script.
type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Finds out on which nodes the launcher may run Jobs. `env` reads an environment variable.
/// Nodes other than this one are taken to be like it until a worker reports what they have.
///
/// # Errors
/// [`NodesError`] when the scheduler's list can't be read.
pub fn discover(settings: &Settings, env: &dyn Fn(&str) -> Option<String>) -> Result<Allocation, NodesError> {
    let here = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut listed = list(settings, &here, env)?;
    if listed.hosts.is_empty() {
        return Err(NodesError::Empty { variable: listed.variable });
    }
    // Two are always near enough.
    if listed.source == Source::Slurm && listed.hosts.len() > 2 {
        topology::sort(&mut listed.hosts, &topology::read());
    }
    Ok(equip(listed, &here, &System::here(), &settings.launcher, env))
}

/// The list of the Site's own scheduler if there is one, else whichever is there.
fn list(settings: &Settings, here: &str, env: Env<'_>) -> Result<Listed, NodesError> {
    if let Some(listed) = local::list(env)? {
        return Ok(listed);
    }
    type Lister = fn(Env<'_>) -> Result<Option<Listed>, NodesError>;
    let mut listers: Vec<(SchedulerKind, Lister)> = vec![
        (SchedulerKind::Slurm, slurm::list),
        (SchedulerKind::Pbs, pbs::list),
        (SchedulerKind::Cobalt, cobalt::list),
        (SchedulerKind::Lsf, lsf::list),
        (SchedulerKind::Flux, flux::list),
    ];
    listers.sort_by_key(|(kind, _)| *kind != settings.scheduler.kind);
    for (_, list) in listers {
        if let Some(listed) = list(env)? {
            return Ok(listed);
        }
    }
    Ok(local::pretend(here, settings.scheduler.local_nodes))
}

/// Gives each node what it has.
fn equip(listed: Listed, here: &str, system: &System, settings: &LauncherSettings, env: Env<'_>) -> Allocation {
    let own = system.hardware(env);
    // Nodes that the local scheduler pretends share this machine's CPUs with each other, whichever
    // BatchJob they are in.
    let is_pretended = listed.source == Source::Local && (listed.scheduler_id.is_some() || listed.hosts.len() > 1);
    let rules = Rules {
        cpus: settings.cpus_per_node,
        gpus: settings.gpu_ids.as_ref().map(|ids| system.named_gpus(ids)),
        mem_mb: listed.mem_mb,
        is_pretended,
    };
    let node = |host: Host| {
        let is_local = listed.source == Source::Local || same_host(&host.name, here);
        let mut hardware = own.clone();
        if !is_local {
            // This process's mask says nothing about the other nodes.
            hardware.cores = system.all_cores();
        }
        let node = Node { granted_cpus: host.cpus, ..Node::new(host.name, NodeHardware::default(), is_local) };
        rules.equip(&node, hardware)
    };
    let nodes = listed.hosts.into_iter().map(node).collect();
    Allocation { nodes, rules, scheduler_id: listed.scheduler_id, source: listed.source }
}

/// Whether two names are those of one host, with or without its domain.
fn same_host(a: &str, b: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    short(a) == short(b)
}

/// The lines of a file that a variable names, each host once, in order.
fn read_hosts(variable: &'static str, path: &str) -> Result<Vec<String>, NodesError> {
    let text = std::fs::read(path).map_err(|source| NodesError::Unreadable { variable, path: path.into(), source })?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// Each host once, in order.
fn once(hosts: Vec<String>) -> Vec<Host> {
    let mut seen = std::collections::HashSet::new();
    hosts.into_iter().filter(|host| seen.insert(host.clone())).map(Host::new).collect()
}

/// A variable that is set to something.
fn set(env: Env<'_>, name: &str) -> Option<String> {
    env(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests;
