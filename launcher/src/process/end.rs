//! Waiting for processes: how one ended and what it used. The system calls that have no safe wrapper.

use std::{
    io,
    os::fd::{AsFd, FromRawFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout},
    sys::wait::{Id, WaitPidFlag},
    unistd::Pid,
};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// How a process ended and what it and the descendants it waited for used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reaped {
    /// How.
    pub exit: Exit,
    /// The largest resident set of one process in bytes.
    pub peak_memory_bytes: i64,
    /// CPU time, user and system, in seconds.
    pub cpu_sec: f64,
}

/// Waits until a child has ended and leaves it as a zombie, so that its number, and that of its
/// process group, still can't belong to anybody else.
///
/// # Errors
/// When it is no child of this process.
pub fn wait_without_reaping(pid: Pid) -> io::Result<()> {
    loop {
        match nix::sys::wait::waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reaps a child, waiting for its end where it has not ended yet.
///
/// # Errors
/// When it is no child of this process.
#[expect(unsafe_code, reason = "nix has no wait4")]
pub fn reap(pid: Pid) -> io::Result<Reaped> {
    let mut status = 0;
    // SAFETY: rusage is plain numbers, for which zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are to live, writable values of the right types.
        let result = unsafe { libc::wait4(pid.as_raw(), &raw mut status, 0, &raw mut usage) };
        if result >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let exit = if libc::WIFSIGNALED(status) {
        Exit::Signal(libc::WTERMSIG(status))
    } else {
        Exit::Code(libc::WEXITSTATUS(status))
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(Reaped {
        exit,
        // Linux counts ru_maxrss in KiB.
        peak_memory_bytes: usage.ru_maxrss * 1024,
        cpu_sec: seconds(usage.ru_utime) + seconds(usage.ru_stime),
    })
}

/// A handle on a process that becomes readable when it ends; `None` when it is gone already.
#[expect(unsafe_code, reason = "pidfd_open has no wrapper in libc or nix")]
fn pidfd(pid: i32) -> Option<OwnedFd> {
    // SAFETY: the call takes two numbers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Waits until one of these processes ends, at most until `deadline`. They need not be children.
/// Returns at once when one is gone already or the system can't watch processes.
pub fn wait_for_any(pids: &[i32], deadline: Instant) {
    // Poll is slow and descriptors are few: watching some of a crowd is enough to come back and look again.
    let watched: Vec<OwnedFd> = pids.iter().take(64).map_while(|pid| pidfd(*pid)).collect();
    if watched.len() < pids.len().min(64) {
        // Not a busy loop where pidfds are missing: the caller looks again after this.
        std::thread::sleep(Duration::from_millis(5).min(deadline.saturating_duration_since(Instant::now())));
        return;
    }
    let mut polls: Vec<PollFd<'_>> = watched.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
    // An interruption or an error only means that the caller looks again.
    let _ = nix::poll::poll(&mut polls, timeout);
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[expect(clippy::zombie_processes, reason = "it is reaped by what is tested")]
    fn run(script: &str) -> Reaped {
        let child = Command::new("/bin/sh").args(["-c", script]).spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        wait_without_reaping(pid).unwrap();
        reap(pid).unwrap()
    }

    #[test]
    fn codes_and_signals_are_told_apart() {
        assert_eq!(run("exit 3").exit, Exit::Code(3));
        assert_eq!(run("kill -TERM $$").exit, Exit::Signal(libc::SIGTERM));
        let busy = run("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done");
        assert!(busy.cpu_sec > 0.0 && busy.peak_memory_bytes > 100_000, "{busy:?}");
    }

    #[test]
    fn a_foreign_process_can_t_be_waited_for() {
        assert!(wait_without_reaping(Pid::from_raw(1)).is_err());
    }

    #[test]
    fn waiting_ends_with_the_process_or_the_deadline() {
        let mut child = Command::new("/bin/sleep").arg("30").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let start = Instant::now();
        wait_for_any(&[pid], start + Duration::from_millis(30));
        assert!(start.elapsed() >= Duration::from_millis(30));
        child.kill().unwrap();
        wait_for_any(&[pid], start + Duration::from_secs(20));
        assert!(start.elapsed() < Duration::from_secs(10));
        child.wait().unwrap();
    }
}
