//! The memory that this process may use, from `/proc` and its control groups.

use std::fs;

use super::System;

/// MiB; 0 where nothing tells.
pub(super) fn mem_mb(system: &System) -> u64 {
    let meminfo = fs::read_to_string(system.proc.join("meminfo")).unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let total_mb = total.map_or(0, |kib| kib / 1024);
    match group_limit_mb(system) {
        Some(limit_mb) if limit_mb > 0 && (total_mb == 0 || limit_mb < total_mb) => limit_mb,
        _ => total_mb,
    }
}

/// The tightest limit of this process's control group (version 2) and those above it.
fn group_limit_mb(system: &System) -> Option<u64> {
    let groups = fs::read_to_string(system.proc.join("self/cgroup")).ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = system.sys.join("fs/cgroup");
    let own = root.join(group.trim());
    let limits = own.ancestors().take_while(|folder| folder.starts_with(&root)).filter_map(|folder| {
        let limit = fs::read_to_string(folder.join("memory.max")).ok()?;
        limit.trim().parse::<u64>().ok()
    });
    limits.min().map(|bytes| bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let system = System::below(root.path());
        assert_eq!(mem_mb(&system), 0);
        write("proc/meminfo", "MemTotal:       24684084 kB\nMemFree: 1 kB\n");
        assert_eq!(mem_mb(&system), 24_105);
        write("proc/self/cgroup", "0::/job/step\n");
        write("sys/fs/cgroup/job/step/memory.max", "max\n");
        assert_eq!(mem_mb(&system), 24_105);
        write("sys/fs/cgroup/job/memory.max", "1073741824\n");
        assert_eq!(mem_mb(&system), 1_024);
    }
}
