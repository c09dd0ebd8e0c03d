//! What processes have used, by `/proc`.

use std::{collections::HashMap, fs};

/// One process of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    parent: i32,
    name: String,
    /// Seconds of CPU time that it used itself.
    pub(crate) own_sec: f64,
    /// Seconds that its children used which have ended and were waited for.
    pub(crate) children_sec: f64,
}

/// All processes of this machine.
#[derive(Debug)]
pub(crate) struct Snapshot {
    processes: HashMap<i32, Process>,
}

impl Snapshot {
    pub(crate) fn take() -> Self {
        let entries = fs::read_dir("/proc").expect("/proc is there");
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self { processes: pids.filter_map(|pid| Some((pid, read(pid)?))).collect() }
    }

    pub(crate) fn process(&self, pid: i32) -> &Process {
        self.processes.get(&pid).unwrap_or_else(|| panic!("process {pid} has ended"))
    }

    /// The children of a process.
    pub(crate) fn children(&self, pid: i32) -> Vec<&Process> {
        self.processes.values().filter(|process| process.parent == pid).collect()
    }

    /// The workers of a launcher's head, each of which is below its guard.
    pub(crate) fn workers(&self, head: i32) -> Vec<&Process> {
        self.children(head).into_iter().flat_map(|guard| self.children(guard.pid)).collect()
    }

    /// The main process of Postgres whose data are below a folder.
    pub(crate) fn postmaster(&self, folder: &std::path::Path) -> i32 {
        let is_it = |process: &&Process| {
            let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            process.name == "postgres" && String::from_utf8_lossy(&line).contains(&*folder.to_string_lossy())
        };
        self.processes.values().find(is_it).expect("the service's Postgres runs").pid
    }

    /// Seconds of CPU time of a process and all below it, those that have ended included.
    pub(crate) fn tree_sec(&self, pid: i32) -> f64 {
        let process = self.process(pid);
        let below: f64 = self.children(pid).iter().map(|child| self.tree_sec(child.pid)).sum();
        process.own_sec + process.children_sec + below
    }
}

/// `None` when it has just ended.
fn read(pid: i32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may hold anything.
    let (start, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let seconds = |from: usize| -> Option<f64> {
        let ticks: u64 = fields.get(from..from + 2)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
        // USER_HZ is 100 on every Linux that Copal runs on.
        Some(ticks as f64 / 100.0)
    };
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        name: start.split_once('(')?.1.to_owned(),
        own_sec: seconds(11)?,
        children_sec: seconds(13)?,
    })
}

/// Resident memory of a process in MiB.
pub(crate) fn memory_mib(pid: i32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1024.0
}

/// How many CPUs this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}
