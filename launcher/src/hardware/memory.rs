//! The memory that this process may use, from `/proc` and its control groups.

use std::fs;

use super::{System, group};

/// MiB; 0 where nothing tells.
pub(super) fn mem_mb(system: &System) -> u64 {
    let meminfo = fs::read_to_string(system.proc.join("meminfo")).unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let total_mb = total.map_or(0, |kib| kib / 1024);
    let limit_mb = group::tightest(system, "memory.max", |text| text.parse::<u64>().ok()).map(|bytes| bytes >> 20);
    match limit_mb {
        Some(limit_mb) if limit_mb > 0 && (total_mb == 0 || limit_mb < total_mb) => limit_mb,
        _ => total_mb,
    }
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
