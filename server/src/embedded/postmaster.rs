//! The postmaster process: our child, or one that an earlier service left running.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::Child,
    time::{Instant, sleep},
};

use super::{LOOK_AGAIN, STOP_TIMEOUT};

/// What `postmaster.pid` in the data folder says.
#[derive(Clone, Debug)]
pub(super) struct PidFile {
    path: PathBuf,
    data_dir: PathBuf,
    pub(super) pid: i32,
    pub(super) socket_dir: PathBuf,
}

impl PidFile {
    /// The file's content, where there is one. Its lines: pid, data folder, start time, port,
    /// socket folder, listen address, shared memory key, status.
    pub(super) fn read(data_dir: &Path) -> Option<Self> {
        let data_dir = fs::canonicalize(data_dir).ok()?;
        let path = data_dir.join("postmaster.pid");
        let text = fs::read_to_string(&path).ok()?;
        let mut lines = text.lines();
        let pid = lines.next()?.trim().parse().ok().filter(|pid| *pid > 1)?;
        let socket_dir = lines.nth(3).unwrap_or_default().trim();
        Some(Self { path, data_dir, pid, socket_dir: socket_dir.into() })
    }

    /// Whether that process is a postmaster of this cluster, and not one that got the pid later:
    /// a postmaster's working directory is its data folder.
    pub(super) fn is_running(&self) -> bool {
        match fs::read_link(format!("/proc/{}/cwd", self.pid)) {
            Ok(cwd) => cwd == self.data_dir && !is_zombie(self.pid),
            // Not ours to look at, so not our cluster's: we run as root or as its user.
            Err(_) => false,
        }
    }

    /// Tells it to end its connections and stop.
    pub(super) fn signal_fast_stop(&self) {
        // Where this fails it is gone already.
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGINT);
    }

    /// Removes the lock files of a postmaster that is gone. Postgres itself takes them for good
    /// while any process has the pid: one that got it later, or a zombie that nobody reaps.
    pub(super) fn remove_stale(&self) -> anyhow::Result<()> {
        for path in [&self.path, &self.socket_dir.join(".s.PGSQL.5432.lock")] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("can't remove the stale {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn is_zombie(pid: i32) -> bool {
    // The state follows the command's name, which is in parentheses and may contain any letter.
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}

/// A postmaster that runs, or did a moment ago.
pub(super) enum Postmaster {
    /// We started it.
    Child(Child),
    /// An earlier service started it.
    Adopted(PidFile),
}

impl Postmaster {
    pub(super) fn adopt(file: PidFile) -> Self {
        Self::Adopted(file)
    }

    /// Whether it has ended; does not wait.
    pub(super) fn has_ended(&mut self) -> anyhow::Result<bool> {
        match self {
            Self::Child(child) => Ok(child.try_wait().context("can't watch the embedded Postgres")?.is_some()),
            Self::Adopted(file) => Ok(!file.is_running()),
        }
    }

    /// Waits until it has ended.
    pub(super) async fn ended(&mut self) {
        match self {
            // An error means that there is no such child any more.
            Self::Child(child) => drop(child.wait().await),
            Self::Adopted(file) => {
                while file.is_running() {
                    sleep(LOOK_AGAIN * 10).await;
                }
            }
        }
    }

    /// Stops it: in order, and by force when that takes too long.
    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        for signal in [Signal::SIGINT, Signal::SIGQUIT] {
            let pid = match self {
                Self::Child(child) => child.id().map(u32::cast_signed),
                Self::Adopted(file) => file.is_running().then_some(file.pid),
            };
            let Some(pid) = pid else { return Ok(()) };
            // Where this fails it is gone already.
            let _ = kill(Pid::from_raw(pid), signal);
            let deadline = Instant::now() + STOP_TIMEOUT;
            while Instant::now() < deadline {
                if self.has_ended()? {
                    return Ok(());
                }
                sleep(LOOK_AGAIN).await;
            }
        }
        bail!("the embedded Postgres does not stop; look for what keeps it busy and end it with `kill`")
    }
}
