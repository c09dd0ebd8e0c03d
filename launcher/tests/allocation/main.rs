//! The real launcher in whole allocations: nodes that are not this machine but are reached as if they were, with
//! GPUs that a stand-in for the vendor's tool lists; trees of processes that do not want to end; workers
//! that are killed; disks that are full; memory that was exceeded.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, reason = "tests only")]

#[path = "../support/mod.rs"]
mod support;

mod disks;
mod gpus;
mod guard;
mod memory;
mod nodes;
mod trees;

/// Settings of a launcher whose nodes are reached by a command that runs here, and says which node it stands for.
fn far_settings(cpus: u32) -> String {
    format!(
        "launcher:\n  idle_ttl_sec: 60\n  kill_grace_sec: 1\n  cpus_per_node: {cpus}\n  mpi: template\n  \
         mpi_template: 'env COPAL_TEST_NODE={{{{hosts}}}}'\n"
    )
}

/// What Slurm says in an allocation of these nodes.
fn allocation(nodes: &str) -> Vec<(&'static str, String)> {
    vec![("SLURM_JOB_ID", "5".into()), ("SLURM_JOB_NODELIST", nodes.into()), ("SLURM_NODELIST", nodes.into())]
}
