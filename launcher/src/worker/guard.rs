//! A worker's guard: the process that was started as the worker, and is its parent. It holds the connection to the head
//! open and does nothing, until the worker is gone, however that went; then it ends all that the worker's runs have
//! left, and only then the head can miss the worker. So no Job runs again before its earlier run is over, also
//! on a node where the head can reach no process.
//!
//! Worker and guard watch each other: a worker whose guard was killed ends its runs in order, as if the head was gone.
//! Where both are killed at the same time, the system kills at least the first process of each run
//! ([`crate::process::spawn`]).

use std::{
    fs,
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    process, thread,
};

use nix::{
    errno::Errno,
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, Pid, fork, setpgid},
};
use tracing::warn;

use crate::process::{group, tree};

/// The name that `ps` shows. Whoever kills launchers by their name does not mean this.
const NAME: &str = "copal-guard";

/// What the worker has of its guard.
#[derive(Debug)]
pub(super) struct Guard {
    line: UnixStream,
}

/// Parts this process, which has no other thread, in two: the guard does not return from this, the worker does.
///
/// # Errors
/// When no process can be made.
#[expect(unsafe_code, reason = "a process can't be copied safely where it has threads")]
pub(super) fn part() -> io::Result<Guard> {
    // Both ends are closed in whatever the worker starts.
    let (watched, watching) = UnixStream::pair()?;
    tree::adopt_orphans()?;
    // SAFETY: there is no other thread, which could hold a lock that the child would wait for in vain.
    match unsafe { fork() }? {
        ForkResult::Child => {
            drop(watching);
            // Whoever ends the guard by its group, as a daemon of MPI does it, leaves the worker the time to end its runs.
            setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
            // This is not inherited.
            tree::adopt_orphans()?;
            Ok(Guard { line: watched })
        }
        ForkResult::Parent { child } => {
            drop(watched);
            let _ = fs::write("/proc/self/comm", NAME);
            process::exit(guard(child, &watching))
        }
    }
}

/// Waits for the worker's end and clears up. Returns the exit code that the worker had.
fn guard(worker: Pid, mut line: &UnixStream) -> i32 {
    let mut group = String::new();
    // Whatever keeps this from being read, the worker's end is waited for.
    let _ = line.read_to_string(&mut group);
    let code = loop {
        match waitpid(worker, None) {
            Ok(WaitStatus::Exited(_, code)) => break code,
            Ok(WaitStatus::Signaled(_, signal, _)) => break 128 + signal as i32,
            Err(Errno::EINTR) | Ok(_) => {}
            Err(_) => break 1,
        }
    };
    // Its orphans are ours now, whatever they did to their groups, sessions and environments.
    let killed = tree::kill_all_below(Vec::new);
    if killed > 0 {
        warn!(killed, "the worker is gone; killed what it left");
    }
    if !group.is_empty() {
        group::clear(&group);
    }
    code
}

impl Guard {
    /// Tells the guard in which control group the runs have theirs, if they have, and has `hang_up` called by a
    /// thread of its own when the guard is gone.
    ///
    /// # Errors
    /// When no thread can be made.
    pub(super) fn watch(mut self, group: &str, hang_up: impl FnOnce() + Send + 'static) -> io::Result<()> {
        // A guard that is gone already is missed by the thread.
        let _ = self.line.write_all(group.as_bytes()).and_then(|()| self.line.shutdown(Shutdown::Write));
        let wait = move || {
            // The guard says nothing as long as it lives.
            let _ = self.line.read(&mut [0]);
            warn!("the guard of this worker is gone");
            hang_up();
        };
        thread::Builder::new().name("guard".into()).spawn(wait)?;
        Ok(())
    }
}
