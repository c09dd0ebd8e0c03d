//! Lists of nodes as schedulers really give them, recorded ones among them.

use std::{collections::HashMap, fs};

use copal_schemas::settings::LauncherSettings;

use super::*;
use crate::hardware::GpuVendor;

fn settings(kind: SchedulerKind) -> Settings {
    let mut settings: Settings = serde_json::from_str(r#"{"site_id": 1}"#).unwrap();
    settings.scheduler.kind = kind;
    settings
}

fn listed(kind: SchedulerKind, variables: &[(&str, &str)]) -> Result<Listed, NodesError> {
    let variables: HashMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    list(&settings(kind), "laptop", &|name| variables.get(name).cloned())
}

fn names(listed: &Listed) -> Vec<&str> {
    listed.hosts.iter().map(|host| host.name.as_str()).collect()
}

#[test]
fn slurm_recorded() {
    let all = listed(
        SchedulerKind::Slurm,
        &[("SLURM_JOB_ID", "396"), ("SLURM_JOB_NODELIST", "n[1-4]"), ("SLURM_JOB_CPUS_PER_NODE", "2(x4)")],
    )
    .unwrap();
    assert_eq!((all.source, all.scheduler_id.as_deref()), (Source::Slurm, Some("396")));
    assert_eq!(names(&all), ["n1", "n2", "n3", "n4"]);
    assert!(all.hosts.iter().all(|host| host.cpus == Some(2)));
    let two = listed(
        SchedulerKind::Local,
        &[
            ("SLURM_JOB_ID", "397"),
            ("SLURM_JOB_NODELIST", "n[1-2]"),
            ("SLURM_JOB_CPUS_PER_NODE", "4,2"),
            ("SLURM_MEM_PER_NODE", "1000"),
        ],
    )
    .unwrap();
    assert_eq!(two.hosts.iter().map(|host| host.cpus).collect::<Vec<_>>(), [Some(4), Some(2)]);
    assert_eq!(two.mem_mb, Some(1000));
}

#[test]
fn files_of_slots_give_each_host_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let pbs = file("pbs", "x3004c0s7b0n0.hsn\nx3004c0s7b0n0.hsn\nx3004c0s1b0n0.hsn\n\n");
    let pbs = listed(SchedulerKind::Pbs, &[("PBS_NODEFILE", &pbs), ("PBS_JOBID", "12.head")]).unwrap();
    assert_eq!(names(&pbs), ["x3004c0s7b0n0.hsn", "x3004c0s1b0n0.hsn"]);
    assert_eq!((pbs.source, pbs.scheduler_id.as_deref()), (Source::Pbs, Some("12.head")));

    let lsf = file("lsf", "batch2\nh41n08\nh41n08\nh41n09\nh41n09\n");
    let lsf = listed(SchedulerKind::Lsf, &[("LSB_DJOB_HOSTFILE", &lsf), ("LSB_JOBID", "7")]).unwrap();
    assert_eq!(names(&lsf), ["h41n08", "h41n09"]);

    let cobalt = file("cobalt", "thetagpu06\nthetagpu07\n");
    let cobalt = listed(SchedulerKind::Cobalt, &[("COBALT_NODEFILE", &cobalt), ("COBALT_PARTNAME", "6-7")]).unwrap();
    assert_eq!(names(&cobalt), ["thetagpu06", "thetagpu07"]);
}

#[test]
fn cobalt_numbers_are_names_of_nodes() {
    let listed =
        listed(SchedulerKind::Cobalt, &[("COBALT_PARTNAME", "1001-1003,1030"), ("COBALT_JOBID", "9")]).unwrap();
    assert_eq!(names(&listed), ["nid01001", "nid01002", "nid01003", "nid01030"]);
}

#[test]
fn pretended_nodes_come_before_a_scheduler_around_them() {
    let inside = [("COPAL_LOCAL_NODELIST", "local[0-3]"), ("COPAL_LOCAL_JOBID", "77"), ("SLURM_JOB_NODELIST", "n1")];
    let listed_inside = listed(SchedulerKind::Local, &inside).unwrap();
    assert_eq!(names(&listed_inside), ["local0", "local1", "local2", "local3"]);
    assert_eq!(listed_inside.scheduler_id.as_deref(), Some("77"));
    assert_eq!(names(&listed(SchedulerKind::Local, &[]).unwrap()), ["laptop"]);
}

#[test]
fn the_sites_own_scheduler_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nodes");
    fs::write(&path, "p1\n").unwrap();
    let both = [("SLURM_JOB_NODELIST", "n1"), ("PBS_NODEFILE", path.to_str().unwrap())];
    assert_eq!(names(&listed(SchedulerKind::Pbs, &both).unwrap()), ["p1"]);
    assert_eq!(names(&listed(SchedulerKind::Slurm, &both).unwrap()), ["n1"]);
}

#[test]
fn errors_name_the_variable() {
    let text = |result: Result<Listed, NodesError>| result.unwrap_err().to_string();
    assert!(text(listed(SchedulerKind::Slurm, &[("SLURM_JOB_NODELIST", "n[1-")])).contains("SLURM_JOB_NODELIST"));
    let missing = text(listed(SchedulerKind::Pbs, &[("PBS_NODEFILE", "/no/such/file")]));
    assert!(missing.contains("PBS_NODEFILE") && missing.contains("/no/such/file"), "{missing}");
    let none = |name: &str| (name == "SLURM_JOB_NODELIST").then(|| "(null)".to_owned());
    assert!(discover(&settings(SchedulerKind::Slurm), &none).unwrap_err().to_string().contains("names no node"));
}

/// A machine of four cores with two threads each, of which this process may use two.
fn machine() -> tempfile::TempDir {
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
    write("proc/self/status", "Cpus_allowed_list:\t0-1,4-5\n");
    write("proc/meminfo", "MemTotal: 8388608 kB\n");
    root
}

fn equipped(
    hosts: &[(&str, Option<u32>)],
    settings: &LauncherSettings,
    mem_mb: Option<u64>,
) -> Vec<(String, usize, bool, u64)> {
    let root = machine();
    let hosts = hosts.iter().map(|(name, cpus)| Host { name: (*name).into(), cpus: *cpus }).collect();
    let listed = Listed { source: Source::Slurm, variable: "x", scheduler_id: None, hosts, mem_mb };
    let allocation = equip(listed, "n1.cluster", &System::below(root.path()), settings, &|_| None);
    allocation.nodes.into_iter().map(|node| (node.name, node.cores.len(), node.is_local, node.mem_mb)).collect()
}

#[test]
fn this_node_has_its_mask_and_the_others_what_was_granted() {
    let plain = LauncherSettings::default();
    assert_eq!(
        equipped(&[("n1", Some(4)), ("n2", Some(8)), ("n3", Some(2))], &plain, Some(1000)),
        [("n1".into(), 2, true, 1000), ("n2".into(), 4, false, 1000), ("n3".into(), 1, false, 1000)]
    );
    let set = LauncherSettings { cpus_per_node: Some(6), ..LauncherSettings::default() };
    assert_eq!(
        equipped(&[("n1", None), ("n2", None)], &set, None),
        [("n1".into(), 6, true, 8192), ("n2".into(), 6, false, 8192)]
    );
}

#[test]
fn ranks_are_not_bound_to_pretended_cores() {
    let root = machine();
    let threads = |scheduler_id: Option<&str>, names: &[&str], settings: &LauncherSettings| -> Vec<usize> {
        let hosts = names.iter().map(|name| Host::new(*name)).collect();
        let scheduler_id = scheduler_id.map(str::to_owned);
        let listed = Listed { source: Source::Local, variable: "x", scheduler_id, hosts, mem_mb: None };
        let allocation = equip(listed, "here", &System::below(root.path()), settings, &|_| None);
        allocation.nodes.iter().flat_map(|node| &node.cores).map(|core| core.threads.len()).collect()
    };
    let plain = LauncherSettings::default();
    // By hand on one machine: its cores are ours. As nodes of the local scheduler: other BatchJobs have them too.
    assert_eq!(threads(None, &["here"], &plain), [2, 2]);
    assert_eq!(threads(Some("1"), &["local0"], &plain), [0, 0]);
    assert_eq!(threads(None, &["local0", "local1"], &plain), [0, 0, 0, 0]);
    let declared = LauncherSettings { cpus_per_node: Some(3), ..LauncherSettings::default() };
    assert_eq!(threads(None, &["here"], &declared), [2, 2, 0]);
}

#[test]
fn gpu_ids_of_the_settings_win() {
    let root = machine();
    let settings = LauncherSettings { gpu_ids: Some(vec!["0.0".into(), "0.1".into()]), ..Default::default() };
    let listed =
        Listed { source: Source::Pbs, variable: "x", scheduler_id: None, hosts: vec![Host::new("a")], mem_mb: None };
    let allocation = equip(listed, "b", &System::below(root.path()), &settings, &|_| None);
    let gpus = &allocation.nodes[0].gpus;
    assert_eq!((gpus.len(), gpus[0].vendor), (2, GpuVendor::Intel));
}

#[test]
fn ranks_get_the_threads_of_their_cores() {
    let core = |id: u32| Core { id, threads: vec![id, id + 4], numa: 0 };
    let hardware = NodeHardware { cores: (0..4).map(core).collect(), ..NodeHardware::default() };
    let node = Node::new("n", hardware, true);
    let cpus = |cores: &[u32], ranks: i32, threads: i32, per_core: i32| {
        let part = NodePart { node: 0, cores: cores.to_vec(), gpus: Vec::new() };
        let shape = ResourceShape {
            ranks_per_node: ranks,
            threads_per_rank: threads,
            threads_per_core: per_core,
            ..ResourceShape::default()
        };
        node.cpus_of_ranks(&part, &shape)
    };
    assert_eq!(cpus(&[1, 2], 2, 1, 1), [vec![1], vec![2]]);
    assert_eq!(cpus(&[0, 1, 2, 3], 2, 2, 1), [vec![0, 1], vec![2, 3]]);
    assert_eq!(cpus(&[0, 1], 2, 2, 2), [vec![0, 4], vec![1, 5]]);
    assert_eq!(cpus(&[3], 2, 1, 2), [vec![3], vec![7]]);
    // More threads on a core than it has: they share.
    assert_eq!(cpus(&[3], 1, 4, 4), [vec![3, 7]]);
    assert!(cpus(&[0], 2, 1, 1).is_empty());
}
