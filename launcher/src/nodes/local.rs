//! This machine: as the nodes that Copal's `local` scheduler pretends, or as one node.

use super::{Env, Host, Listed, NodesError, Source, set};
use crate::hostlist;

/// The pretended nodes of a BatchJob of the `local` scheduler.
pub(super) fn list(env: Env<'_>) -> Result<Option<Listed>, NodesError> {
    let variable = "COPAL_LOCAL_NODELIST";
    let Some(text) = set(env, variable) else { return Ok(None) };
    let names = hostlist::expand(&text).map_err(|source| NodesError::Malformed { variable, source })?;
    let hosts = names.into_iter().map(Host::new).collect();
    Ok(Some(Listed {
        source: Source::Local,
        variable,
        scheduler_id: set(env, "COPAL_LOCAL_JOBID"),
        hosts,
        mem_mb: None,
    }))
}

/// A launcher started by hand, outside of any allocation.
pub(super) fn pretend(here: &str, local_nodes: u32) -> Listed {
    let hosts = match local_nodes {
        0 | 1 => vec![Host::new(if here.is_empty() { "localhost" } else { here })],
        count => (0..count).map(|number| Host::new(format!("local{number}"))).collect(),
    };
    Listed { source: Source::Local, variable: "local_nodes", scheduler_id: None, hosts, mem_mb: None }
}
