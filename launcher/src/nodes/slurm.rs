//! Slurm: `SLURM_JOB_NODELIST` and what was granted on each node.

use super::{Env, Host, Listed, NodesError, Source, set};
use crate::hostlist;

pub(super) fn list(env: Env<'_>) -> Result<Option<Listed>, NodesError> {
    let variable = "SLURM_JOB_NODELIST";
    let Some(text) = set(env, variable).or_else(|| set(env, "SLURM_NODELIST")) else { return Ok(None) };
    let names = hostlist::expand(&text).map_err(|source| NodesError::Malformed { variable, source })?;
    let cpus = set(env, "SLURM_JOB_CPUS_PER_NODE").map(|text| counts(&text)).unwrap_or_default();
    let number = |name: &str| set(env, name).and_then(|text| text.parse::<u64>().ok()).filter(|number| *number > 0);
    let per_cpu = number("SLURM_MEM_PER_CPU").zip(cpus.first()).map(|(mem, cpus)| mem * u64::from(*cpus));
    let host = |(place, name): (usize, String)| Host { name, cpus: cpus.get(place).copied() };
    Ok(Some(Listed {
        source: Source::Slurm,
        variable,
        scheduler_id: set(env, "SLURM_JOB_ID").or_else(|| set(env, "SLURM_JOBID")),
        hosts: names.into_iter().enumerate().map(host).collect(),
        mem_mb: number("SLURM_MEM_PER_NODE").or(per_cpu),
    }))
}

/// `4,2(x3)` as 4, 2, 2, 2. What makes no sense ends the list.
fn counts(text: &str) -> Vec<u32> {
    let mut counts = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.trim().split_once("(x") {
            Some((count, times)) => (count, times.trim_end_matches(')')),
            None => (part.trim(), "1"),
        };
        let (Ok(count), Ok(times)) = (count.parse::<u32>(), times.parse::<usize>()) else { break };
        counts.extend(std::iter::repeat_n(count, times.min(hostlist::MAX_HOSTS)));
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_repeat() {
        assert_eq!(counts("2(x4)"), [2, 2, 2, 2]);
        assert_eq!(counts("4,2"), [4, 2]);
        assert_eq!(counts("72(x2),36,?"), [72, 72, 36]);
        assert!(counts("").is_empty());
    }
}
