//! LSF: `LSB_DJOB_HOSTFILE`, a host for each slot; the first line may be a batch host that runs only the script.

use super::{Env, Listed, NodesError, Source, once, read_hosts, set};

pub(super) fn list(env: Env<'_>) -> Result<Option<Listed>, NodesError> {
    let variable = "LSB_DJOB_HOSTFILE";
    let Some(path) = set(env, variable) else { return Ok(None) };
    Ok(Some(Listed {
        source: Source::Lsf,
        variable,
        scheduler_id: set(env, "LSB_JOBID"),
        hosts: once(compute_hosts(read_hosts(variable, &path)?)),
        mem_mb: None,
    }))
}

/// Without the batch host: it has one slot, where the nodes have as many as they have cores.
fn compute_hosts(mut hosts: Vec<String>) -> Vec<String> {
    let Some(first) = hosts.first() else { return hosts };
    let slots = |host: &String| hosts.iter().filter(|other| *other == host).count();
    let others_have_more = hosts.get(1).is_some_and(|second| slots(second) > 1);
    if hosts.len() > 1 && slots(first) == 1 && (others_have_more || first.starts_with("batch")) {
        hosts.remove(0);
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compute(text: &str) -> Vec<String> {
        compute_hosts(text.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn the_batch_host_runs_no_jobs() {
        assert_eq!(compute("batch3 h1 h1 h2 h2"), ["h1", "h1", "h2", "h2"]);
        assert_eq!(compute("x h1 h1 h2 h2"), ["h1", "h1", "h2", "h2"]);
        assert_eq!(compute("batch1 h1 h2"), ["h1", "h2"]);
        assert_eq!(compute("h1 h1 h2 h2"), ["h1", "h1", "h2", "h2"]);
        assert_eq!(compute("h1 h2"), ["h1", "h2"]);
        assert_eq!(compute("h1"), ["h1"]);
        assert!(compute("").is_empty());
    }
}
