//! The processes of this machine, as `/proc` shows them: who came of whom, since when, and what stood in their
//! environment. What is done to them, and why, is the agent's and the launcher's.

use std::{
    collections::{HashMap, HashSet},
    fs,
};

/// One process, as `/proc/<pid>/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its parent's number.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// When the kernel started it, in clock ticks since the boot: tells it from a later one with the same number.
    pub start_ticks: u64,
    /// Whether it has ended and only waits to be reaped.
    pub is_zombie: bool,
}

/// All processes of the machine that can be seen.
#[must_use]
pub fn snapshot() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // A process that ends meanwhile is left out.
    pids.filter_map(find).collect()
}

/// The process that has this number now.
#[must_use]
pub fn find(pid: i32) -> Option<Process> {
    // A program's name need not be UTF-8.
    parse_stat(pid, &String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
}

/// Reads `pid (name) state ppid pgrp …` (proc(5)). The name may hold anything, also `) R 1 1`.
fn parse_stat(pid: i32, text: &str) -> Option<Process> {
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split_ascii_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    // Field 22 of the line, which is the 17th after the group.
    let start_ticks = fields.nth(16)?.parse().ok()?;
    Some(Process { pid, parent, group, start_ticks, is_zombie })
}

/// When the kernel started the process that has this number now, in clock ticks since the boot; `None` when there is none,
/// or it has ended and only waits to be reaped.
#[must_use]
pub fn start_ticks(pid: u32) -> Option<u64> {
    let process = find(i32::try_from(pid).ok()?)?;
    (!process.is_zombie).then_some(process.start_ticks)
}

/// Those of `all` that are below `root`, without it. Parents come before their children.
#[must_use]
pub fn below(all: &[Process], root: i32) -> Vec<Process> {
    Descent::of(all).below(root)
}

/// Who came of whom, for many questions about one look at all processes.
#[derive(Debug, Default)]
pub struct Descent {
    children: HashMap<i32, Vec<Process>>,
}

impl Descent {
    /// That of these processes.
    #[must_use]
    pub fn of(all: &[Process]) -> Self {
        let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
        for process in all {
            children.entry(process.parent).or_default().push(*process);
        }
        Self { children }
    }

    /// Who has this parent.
    pub fn children(&self, parent: i32) -> impl Iterator<Item = &Process> {
        self.children.get(&parent).into_iter().flatten()
    }

    /// Those that are below `root`, without it. Parents come before their children.
    #[must_use]
    pub fn below(&self, root: i32) -> Vec<Process> {
        // A parent loop in an inconsistent look ends.
        let mut seen = HashSet::from([root]);
        let mut found: Vec<Process> = Vec::new();
        let mut parent = root;
        for next in 0.. {
            found.extend(self.children(parent).filter(|process| seen.insert(process.pid)));
            match found.get(next) {
                Some(process) => parent = process.pid,
                None => break,
            }
        }
        found
    }
}

/// The value of a variable in a process's environment, as it was when the process was executed; `None` when it is not set,
/// or this user may not look.
#[must_use]
pub fn variable(pid: i32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|byte| *byte == 0).find_map(|variable| {
        let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt, process::Command};

    use super::*;

    const REST: &str = "4 0 -1 4194560 97 0 0 0 0 0 0 0 20 0 1 0 8601 2600960 213";

    #[test]
    fn a_name_with_a_parenthesis_is_read() {
        let process = parse_stat(7, &format!("7 (a) R 1 1) S 3 4 {REST}")).unwrap();
        assert_eq!(process, Process { pid: 7, parent: 3, group: 4, start_ticks: 8601, is_zombie: false });
        assert!(parse_stat(7, &format!("7 (a) Z 1 1 {REST}")).unwrap().is_zombie);
        assert!(parse_stat(7, "nonsense").is_none());
        assert!(parse_stat(7, "7 (cut) S 3 4").is_none());
    }

    #[test]
    fn descendants_are_found_and_loops_end() {
        let process = |pid, parent| Process { pid, parent, group: pid, start_ticks: 1, is_zombie: false };
        let all = [process(5, 4), process(4, 2), process(2, 1), process(3, 1), process(9, 8), process(8, 9)];
        let pids = |root| below(&all, root).iter().map(|process| process.pid).collect::<Vec<_>>();
        assert_eq!(pids(2), [4, 5]);
        assert_eq!(pids(8), [9]);
        assert!(pids(77).is_empty());
    }

    #[test]
    fn a_process_whose_name_is_not_utf8_is_seen_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(OsStr::from_bytes(b"caf\xe9) R 1"));
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = Command::new(program).arg("1000").env("COPAL_TEST_SEEN", "x=7").spawn().unwrap();
        let (pid, own) = (i32::try_from(child.id()).unwrap(), i32::try_from(std::process::id()).unwrap());
        // The name and the environment are those of the program once it is executed.
        while variable(pid, "COPAL_TEST_SEEN").is_none() {
            std::thread::yield_now();
        }
        let seen = snapshot().into_iter().find(|process| process.pid == pid).unwrap();
        assert_eq!((seen.parent, seen.is_zombie), (own, false));
        assert_eq!(start_ticks(child.id()), Some(seen.start_ticks));
        assert_eq!(variable(pid, "COPAL_TEST_SEEN").unwrap(), "x=7");
        assert_eq!(variable(pid, "COPAL_TEST"), None);
        child.kill().unwrap();
        // It is a zombie for as long as nobody waits for it.
        while !find(pid).unwrap().is_zombie {
            std::thread::yield_now();
        }
        assert_eq!(start_ticks(child.id()), None);
        child.wait().unwrap();
        assert_eq!(find(pid), None);
    }
}
