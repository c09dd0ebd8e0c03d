//! Processes of this machine: identities that survive a reuse of the pid, waiting for the end of a
//! process that is not a child, signals, and which of them are somebody's. How `/proc` is read is
//! `copal_client::processes`; what is started and why is the caller's.

use std::{
    fs, io,
    os::fd::{FromRawFd, OwnedFd},
    time::Duration,
};

use copal_client::processes::{Process, below, snapshot, start_ticks, variable};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};
use tokio::io::{Interest, unix::AsyncFd};

/// One process, told from any other that has its pid before or after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The pid.
    pub pid: u32,
    /// When the kernel started it, in clock ticks since the boot.
    pub start_ticks: u64,
    /// Which boot.
    pub boot_id: String,
}

impl ProcessId {
    /// The process that has this pid now; `None` when there is none.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, start_ticks: start_ticks(pid)?, boot_id: boot_id() })
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks) && boot_id() == self.boot_id
    }

    /// Sends it a signal if it still runs.
    pub fn signal(&self, signal: Signal) {
        if self.is_alive() {
            send(self.pid, signal);
        }
    }

    /// Waits for its end.
    pub async fn ended(&self) {
        let watched = watch(self.pid);
        // Only now: from here on the descriptor means this process, whatever becomes of the pid.
        if !self.is_alive() {
            return;
        }
        if let Ok(fd) = watched {
            while let Ok(mut ready) = fd.readable().await {
                if !self.is_alive() {
                    return;
                }
                ready.clear_ready();
            }
        }
        // A kernel without pidfd_open (before 5.3) leaves only looking.
        while self.is_alive() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[expect(unsafe_code, reason = "neither std nor nix has pidfd_open, and tokio trusts nobody's descriptor")]
fn watch(pid: u32) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the call takes two integers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, libc::PIDFD_NONBLOCK) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the descriptor was just made for us, and nobody else has it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an OwnedFd is the same open descriptor for as long as it lives.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// Sends a signal to one process. One that has ended is none of our business any more.
pub fn send(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Sends a signal to a process group.
pub fn send_group(group: u32, signal: Signal) {
    if let Ok(group) = i32::try_from(group)
        && group > 1
    {
        let _ = kill(Pid::from_raw(-group), signal);
    }
}

/// The living children of `root`, their children, and so on.
#[must_use]
pub fn descendants(root: u32) -> Vec<u32> {
    let Ok(root) = i32::try_from(root) else { return Vec::new() };
    living(&below(&snapshot(), root)).collect()
}

/// The living processes that were started with `name=value` in their environment, as far as this
/// user may look; this process itself is left out.
#[must_use]
pub fn marked(name: &str, value: &str) -> Vec<u32> {
    let all = snapshot();
    let marked: Vec<Process> =
        all.into_iter().filter(|process| variable(process.pid, name).as_deref() == Some(value)).collect();
    living(&marked).filter(|pid| *pid != std::process::id()).collect()
}

fn living(processes: &[Process]) -> impl Iterator<Item = u32> {
    processes.iter().filter(|process| !process.is_zombie).map(|process| process.pid.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn the_end_of_a_process_is_seen_at_once() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        assert!(id.is_alive());
        assert!(descendants(std::process::id()).contains(&child.id()));
        let waiter = tokio::spawn({
            let id = id.clone();
            async move { id.ended().await }
        });
        id.signal(Signal::SIGKILL);
        tokio::time::timeout(Duration::from_secs(10), waiter).await.unwrap().unwrap();
        child.wait().unwrap();
        assert!(!id.is_alive());
        assert_eq!(ProcessId::of(child.id()), None);
    }

    #[tokio::test]
    async fn another_process_with_the_pid_is_not_meant() {
        let mut id = ProcessId::of(std::process::id()).unwrap();
        id.start_ticks += 1;
        assert!(!id.is_alive());
        id.ended().await;
    }

    #[test]
    fn processes_are_found_by_their_mark() {
        let mut child = Command::new("sleep").arg("1000").env("COPAL_TEST_MARK", "x7").spawn().unwrap();
        // The mark is there once the child has called exec.
        while marked("COPAL_TEST_MARK", "x7").is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(marked("COPAL_TEST_MARK", "x7"), [child.id()]);
        assert!(marked("COPAL_TEST_MARK", "x").is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
