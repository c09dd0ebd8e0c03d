//! Control groups (version 2): where they may be made, a run has one of its own, which holds whatever it starts,
//! kills all of it at a blow, and knows what it used. Where they may not, runs get along without; [`super::tree`] finds
//! their processes then.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use tracing::debug;

/// How long killed processes may take to be gone.
const DEATH: Duration = Duration::from_secs(1);

/// The group of a worker, below which its runs have theirs.
#[derive(Debug)]
pub struct Groups {
    folder: PathBuf,
}

/// The group of one run. Removed with this value, once it is empty.
#[derive(Debug)]
pub struct Group {
    folder: PathBuf,
    fd: File,
}

/// What the processes of a group used, those that have ended too.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// The most memory at a time in bytes, where the system counts it.
    pub peak_memory_bytes: Option<i64>,
    /// CPU time in seconds.
    pub cpu_sec: Option<f64>,
}

impl Groups {
    /// A group of this name for this process's runs; `None` where none may be made.
    #[must_use]
    pub fn make(name: &str) -> Option<Self> {
        let folder = folder_of(name)?;
        if let Err(error) = fs::create_dir(&folder) {
            debug!(folder = %folder.display(), %error, "runs have no control groups");
            return None;
        }
        let groups = Self { folder };
        // Killing by the group is what it is for; systems before 5.14 can't.
        if !groups.folder.join("cgroup.kill").exists() {
            return None;
        }
        // Allowed only where somebody delegated the controller; peaks are those of single processes else.
        let _ = fs::write(groups.folder.join("cgroup.subtree_control"), "+memory");
        Some(groups)
    }

    /// A group for a run that is about to start.
    #[must_use]
    pub fn group(&self, run: u64) -> Option<Group> {
        let folder = self.folder.join(format!("run-{run}"));
        fs::create_dir(&folder).ok()?;
        match File::open(&folder) {
            Ok(fd) => Some(Group { folder, fd }),
            Err(_) => {
                let _ = fs::remove_dir(&folder);
                None
            }
        }
    }

    /// Removes the group and what is left of those below it, when all runs are over.
    pub fn remove(&self) {
        remove(&self.folder);
    }
}

/// Kills what a worker of this machine that is gone has left in its group of this name, and removes the group with those
/// below it. Where a process hangs in the kernel the group stays.
pub fn clear(name: &str) {
    let Some(folder) = folder_of(name).filter(|folder| folder.exists()) else { return };
    if let Err(error) = fs::write(folder.join("cgroup.kill"), "1") {
        debug!(folder = %folder.display(), %error, "can't kill by a control group");
    }
    if let Err(error) = wait_until_empty(&folder, Instant::now() + DEATH) {
        debug!(folder = %folder.display(), %error, "can't watch a control group");
    }
    remove(&folder);
}

/// Waits until a group and those below it have no living process, at most until `deadline`.
fn wait_until_empty(folder: &Path, deadline: Instant) -> io::Result<()> {
    let events = File::open(folder.join("cgroup.events"))?;
    loop {
        // Reading it from its start also has the next poll tell what changes from now on.
        let mut text = [0; 256];
        let length = events.read_at(&mut text, 0)?;
        if text[..length].split(|byte| *byte == b'\n').any(|line| line == b"populated 0") {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLPRI)], timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Group {
    /// Its folder, for a process that is made in it.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Kills all of its processes, also those that are just being started.
    pub fn kill(&self) {
        if let Err(error) = fs::write(self.folder.join("cgroup.kill"), "1") {
            debug!(%error, "can't kill by a control group");
        }
    }

    /// Its living processes.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// What its processes used so far.
    #[must_use]
    pub fn used(&self) -> Used {
        let read = |file: &str| fs::read_to_string(self.folder.join(file)).ok();
        let microseconds = |text: String| -> Option<f64> {
            text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()
        };
        Used {
            peak_memory_bytes: read("memory.peak").and_then(|text| text.trim().parse().ok()),
            cpu_sec: read("cpu.stat").and_then(microseconds).map(|time| time / 1e6),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // One that a process does not leave goes with the worker's.
        let _ = fs::remove_dir(&self.folder);
    }
}

fn remove(folder: &Path) {
    let inner = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    inner.filter(|path| path.is_dir()).for_each(|path| drop(fs::remove_dir(path)));
    if let Err(error) = fs::remove_dir(folder)
        && error.kind() != io::ErrorKind::NotFound
    {
        debug!(folder = %folder.display(), %error, "can't remove a control group");
    }
}

/// Where a group of this name is: below the group that launcher and workers are in.
fn folder_of(name: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    Some(own_folder(&mounts, &own)?.join(name))
}

/// By `41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw` and `0::/user.slice/…`.
fn own_folder(mounts: &str, own: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?.trim();
    let mount =
        mounts.lines().find(|line| line.split_once(" - ").is_some_and(|(_, end)| end.starts_with("cgroup2 ")))?;
    let mut fields = mount.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    // Only a part of the hierarchy may be mounted.
    let below = if root == "/" { path } else { path.strip_prefix(root)? };
    Some(Path::new(point).join(below.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::fd::OwnedFd};

    use copal_schemas::StringMap;
    use nix::unistd::Pid;

    use super::*;
    use crate::process::{
        end::{Exit, reap},
        spawn::{Spec, spawn},
    };

    #[test]
    fn the_own_group_is_found_in_whatever_is_mounted() {
        let unified = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        let found = |mounts: &str, own: &str| own_folder(mounts, own).map(|path| path.display().to_string());
        assert_eq!(found(unified, "0::/user.slice/a b\n"), Some("/sys/fs/cgroup/user.slice/a b".into()));
        let hybrid = "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(found(hybrid, "9:name=systemd:/\n0::/\n"), Some("/sys/fs/cgroup/unified/".into()));
        let part = "29 23 0:26 /pod /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        assert_eq!(found(part, "0::/pod/box\n"), Some("/sys/fs/cgroup/box".into()));
        assert_eq!(found(part, "0::/elsewhere\n"), None);
        assert_eq!(found("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n", "0::/\n"), None);
        assert_eq!(found(unified, "4:memory:/x\n"), None);
    }

    /// Two shells that ignore TERM in a group, one of which has left its session; the first one's number.
    fn two_shells(group: &Group) -> Pid {
        let script = "setsid sh -c 'trap \"\" TERM; echo; while :; do sleep 600; done' & while :; do sleep 600; done";
        let (mut heard, output) = io::pipe().unwrap();
        let argv = ["sh".to_owned(), "-c".into(), script.into()];
        let output = Some(File::from(OwnedFd::from(output)));
        let (workdir, env) = (Path::new("/"), StringMap::new());
        let leader =
            spawn(&Spec { argv: &argv, workdir, env: &env, unset: &[], output, group: Some(group), is_bound: false })
                .unwrap();
        heard.read_exact(&mut [0]).unwrap();
        leader
    }

    fn groups(name: &str) -> Option<Groups> {
        let groups = Groups::make(name);
        if groups.is_none() {
            eprintln!("skipped: no control group may be made here");
        }
        groups
    }

    #[test]
    fn a_group_holds_what_a_run_starts_and_kills_it_at_a_blow() {
        let Some(groups) = groups(&format!("copal-test-{}", std::process::id())) else { return };
        let group = groups.group(7).unwrap();
        let leader = two_shells(&group);
        // Whether their naps have begun is chance.
        assert!(group.pids().len() >= 2, "{:?}", group.pids());
        assert!(group.used().cpu_sec.unwrap() > 0.0);
        group.kill();
        reap(leader).unwrap();
        while !group.pids().is_empty() {
            std::thread::yield_now();
        }
        drop(group);
        groups.remove();
        assert!(!groups.folder.exists());
    }

    #[test]
    fn what_a_worker_left_in_its_group_is_killed_and_the_group_removed() {
        let name = format!("copal-test-left-{}", std::process::id());
        clear(&name);
        let Some(groups) = groups(&name) else { return };
        let (empty, full) = (groups.group(1).unwrap(), groups.group(2).unwrap());
        let leader = two_shells(&full);
        clear(&name);
        assert!(!groups.folder.exists());
        assert_eq!(reap(leader).unwrap().exit, Exit::Signal(libc::SIGKILL));
        drop((empty, full));
    }
}
