//! Flux: the instance that the launcher runs in knows its hosts.

use std::time::Duration;

use super::{Env, Host, Listed, NodesError, Source, set};
use crate::{hardware, hostlist};

/// What the broker may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn list(env: Env<'_>) -> Result<Option<Listed>, NodesError> {
    if set(env, "FLUX_URI").is_none() {
        return Ok(None);
    }
    let command = "flux hostlist local";
    let text = hardware::output("flux", &["hostlist", "local"], TIMEOUT)
        .map_err(|source| NodesError::Command { command, source })?;
    let names = hostlist::expand(&text).map_err(|source| NodesError::Malformed { variable: command, source })?;
    Ok(Some(Listed {
        source: Source::Flux,
        variable: command,
        scheduler_id: set(env, "FLUX_JOB_ID"),
        hosts: names.into_iter().map(Host::new).collect(),
        mem_mb: None,
    }))
}
