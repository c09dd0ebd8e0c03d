//! Which worker serves which node, and how those of other nodes are started.

use std::path::Path;

use anyhow::Result;
use copal_client::SiteDir;
use copal_schemas::{JobId, StringMap, batch_job::JobMode, resources::ResourceShape};

use crate::{
    fleet::Fleet,
    mpi::{MpiLaunch, RankedRun, RunHost},
    nodes::Node,
};

/// Which worker serves which node.
pub(super) struct Posts {
    /// For each worker the node that it must be started on; `None` for the one of this machine.
    pub(super) workers: Vec<Option<usize>>,
    /// For each node its worker.
    pub(super) of_node: Vec<usize>,
}

impl Posts {
    /// In mpi mode one worker runs all commands here. In serial mode each other node has its own; the
    /// local one, and pretended ones, share one.
    pub(super) fn new(mode: JobMode, nodes: &[Node]) -> Self {
        if mode == JobMode::Mpi {
            return Self { workers: vec![None], of_node: vec![0; nodes.len()] };
        }
        let (mut workers, mut of_node) = (Vec::new(), Vec::new());
        let mut local = None;
        for (index, node) in nodes.iter().enumerate() {
            let worker = match (node.is_local, local) {
                (true, Some(worker)) => worker,
                _ => {
                    workers.push((!node.is_local).then_some(index));
                    workers.len() - 1
                }
            };
            if node.is_local {
                local = Some(worker);
            }
            of_node.push(worker);
        }
        Self { workers, of_node }
    }
}

/// Starts the workers of other nodes by the platform's MPI command, one command a node, so that the end
/// of one does not take the others with it.
pub(super) async fn start_remote_workers(
    fleet: &mut Fleet,
    posts: &Posts,
    nodes: &[Node],
    mpi: &(dyn MpiLaunch + Send + Sync),
    program: &Path,
    site: &SiteDir,
) -> Result<()> {
    let mut names: Vec<String> = nodes.iter().filter(|node| node.is_local).map(|node| node.name.clone()).collect();
    names.extend(nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()));
    names.dedup();
    let arguments = fleet.listen(&site.qsubmit(), &names).await?;
    for (worker, node) in posts.workers.iter().enumerate() {
        let Some(node) = *node else { continue };
        let mut words = vec![program.display().to_string()];
        words.extend(arguments.clone());
        words.extend(["--node".to_owned(), worker.to_string()]);
        let launch = mpi.command(&one_process(&nodes[node], words))?;
        fleet.start_elsewhere(worker, &launch)?;
    }
    Ok(())
}

/// One process on a node that may use all of it.
pub(super) fn one_process(node: &Node, program: Vec<String>) -> RankedRun {
    let host = RunHost { name: node.name.clone(), cpus: Vec::new(), gpus: Vec::new() };
    RankedRun {
        job: JobId(0),
        lane: format!("worker-{}", node.name),
        shape: ResourceShape::default(),
        hosts: vec![host],
        program,
        env: StringMap::new(),
        launch_params: StringMap::new(),
    }
}
