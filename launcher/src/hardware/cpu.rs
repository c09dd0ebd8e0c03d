//! Cores, hardware threads and NUMA domains from `/sys`, and those that this process may use.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::{Core, System, group, number_list};

/// All cores of the machine that are online, by id.
pub(super) fn topology(sys: &Path) -> Vec<Core> {
    let cpus = sys.join("devices/system/cpu");
    let online = fs::read_to_string(cpus.join("online")).map(|text| number_list(&text)).unwrap_or_default();
    let domains = domains(sys);
    let mut cores: BTreeMap<u32, Core> = BTreeMap::new();
    for cpu in &online {
        let siblings = ["core_cpus_list", "thread_siblings_list"]
            .iter()
            .find_map(|name| fs::read_to_string(cpus.join(format!("cpu{cpu}/topology/{name}"))).ok());
        let mut threads = siblings.map(|text| number_list(&text)).unwrap_or_default();
        threads.retain(|thread| online.contains(thread));
        let id = threads.first().copied().unwrap_or(*cpu);
        let numa = domains.get(cpu).copied().unwrap_or(0);
        let core = cores.entry(id).or_insert_with(|| Core { id, threads: Vec::new(), numa });
        core.threads.push(*cpu);
    }
    cores.into_values().collect()
}

/// The NUMA domain of each hardware thread.
fn domains(sys: &Path) -> BTreeMap<u32, u32> {
    let Ok(entries) = fs::read_dir(sys.join("devices/system/node")) else { return BTreeMap::new() };
    let mut domains = BTreeMap::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")).and_then(|number| number.parse().ok());
        let Some(number) = number else { continue };
        let cpus = fs::read_to_string(entry.path().join("cpulist")).unwrap_or_default();
        domains.extend(number_list(&cpus).into_iter().map(|cpu| (cpu, number)));
    }
    domains
}

/// How many CPUs the control groups of this process let it keep busy, rounded up; `None` for any number.
pub(super) fn quota(system: &System) -> Option<usize> {
    // `200000 100000`: so many microseconds of CPU time in a period of so many; `max 100000` for no limit.
    let cpus = |text: &str| {
        let (time, period) = text.split_once(' ')?;
        let (time, period) = (time.parse::<f64>().ok()?, period.trim().parse::<f64>().ok()?);
        (time > 0.0 && period > 0.0).then_some(time / period)
    };
    // A number of CPUs is small.
    group::tightest(system, "cpu.max", cpus).map(|cpus| cpus.ceil() as usize)
}

/// What the affinity mask leaves of the cores. A core of which some threads are left keeps those.
pub(super) fn allowed(cores: Vec<Core>, proc: &Path) -> Vec<Core> {
    // /proc has the whole mask; sched_getaffinity's usual buffer ends at 1,024.
    let status = fs::read_to_string(proc.join("self/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let mask: BTreeSet<u32> = mask.map(number_list).unwrap_or_default().into_iter().collect();
    if mask.is_empty() {
        return cores;
    }
    if cores.is_empty() {
        return mask.into_iter().map(|id| Core { id, threads: vec![id], numa: 0 }).collect();
    }
    let keep = |mut core: Core| {
        core.threads.retain(|thread| mask.contains(thread));
        core.id = *core.threads.first()?;
        Some(core)
    };
    cores.into_iter().filter_map(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of two sockets with two cores of two threads each; threads are numbered as Intel does.
    fn machine(mask: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/devices/system/cpu/online", "0-7\n");
        for cpu in 0..8 {
            let low = cpu % 4;
            write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"), &format!("{low},{}\n", low + 4));
        }
        write("sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
        write("sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
        write("proc/self/status", &format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{mask}\n"));
        root
    }

    fn cores(mask: &str) -> Vec<(u32, Vec<u32>, u32)> {
        let root = machine(mask);
        let cores = allowed(topology(&root.path().join("sys")), &root.path().join("proc"));
        cores.into_iter().map(|core| (core.id, core.threads, core.numa)).collect()
    }

    #[test]
    fn cores_have_their_threads_and_domain() {
        assert_eq!(cores("0-7"), [(0, vec![0, 4], 0), (1, vec![1, 5], 0), (2, vec![2, 6], 1), (3, vec![3, 7], 1)]);
    }

    #[test]
    fn the_mask_takes_cores_and_threads_away() {
        assert_eq!(cores("1-2,6"), [(1, vec![1], 0), (2, vec![2, 6], 1)]);
        assert_eq!(cores("4-7").len(), 4);
        assert_eq!(cores("7"), [(7, vec![7], 1)]);
    }

    #[test]
    fn a_quota_of_cpu_time_takes_cores_away() {
        let root = machine("0-7");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let count = || System::below(root.path()).hardware(&|_| None).cores.len();
        write("proc/self/cgroup", "0::/pod/container\n");
        write("sys/fs/cgroup/pod/container/cpu.max", "max 100000\n");
        assert_eq!(count(), 4);
        write("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
        assert_eq!(count(), 2);
        write("sys/fs/cgroup/pod/container/cpu.max", "50000 100000\n");
        assert_eq!(count(), 1);
    }

    #[test]
    fn without_sys_each_allowed_cpu_is_a_core() {
        let root = machine("0-1");
        assert_eq!(allowed(topology(Path::new("/nowhere")), &root.path().join("proc")).len(), 2);
    }

    #[test]
    fn this_machine_has_as_many_threads_as_std_says() {
        let here = super::super::detect(&|_| None);
        let threads: usize = here.cores.iter().map(|core| core.threads.len()).sum();
        assert!(threads >= std::thread::available_parallelism().unwrap().get());
        assert!(here.mem_mb > 0);
    }
}
