//! OpenPBS and PBS Pro: `PBS_NODEFILE`, a host for each slot.

use super::{Env, Listed, NodesError, Source, once, read_hosts, set};

pub(super) fn list(env: Env<'_>) -> Result<Option<Listed>, NodesError> {
    let variable = "PBS_NODEFILE";
    let Some(path) = set(env, variable) else { return Ok(None) };
    Ok(Some(Listed {
        source: Source::Pbs,
        variable,
        scheduler_id: set(env, "PBS_JOBID"),
        hosts: once(read_hosts(variable, &path)?),
        mem_mb: None,
    }))
}
