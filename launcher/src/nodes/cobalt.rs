//! Cobalt: `COBALT_NODEFILE`, or on Cray machines `COBALT_PARTNAME`, numbers such as `1001-1005,1030`.

use super::{Env, Host, Listed, NodesError, Source, once, read_hosts, set};
use crate::hostlist;

pub(super) fn list(env: Env<'_>) -> Result<Option<Listed>, NodesError> {
    let (variable, hosts) = if let Some(path) = set(env, "COBALT_NODEFILE") {
        ("COBALT_NODEFILE", once(read_hosts("COBALT_NODEFILE", &path)?))
    } else if let Some(text) = set(env, "COBALT_PARTNAME") {
        let variable = "COBALT_PARTNAME";
        let numbers = hostlist::numbers(&text).map_err(|source| NodesError::Malformed { variable, source })?;
        (variable, numbers.into_iter().map(|number| Host::new(format!("nid{number:0>5}"))).collect())
    } else {
        return Ok(None);
    };
    Ok(Some(Listed { source: Source::Cobalt, variable, scheduler_id: set(env, "COBALT_JOBID"), hosts, mem_mb: None }))
}
