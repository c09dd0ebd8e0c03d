//! One agent for a Site: a lock on `agent.pid`, held by the kernel for as long as the process lives.
//! The file's content only tells people (and `copal site stop`) who holds it.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
};

use anyhow::{Context, bail};
use chrono::Utc;
use copal_client::{
    SiteDir,
    agent_status::{AgentPid, AgentPresence, start_ticks, this_host},
};

/// The Site's lock. Released when dropped, or when the process ends in any way.
pub struct SiteLock {
    file: File,
}

impl SiteLock {
    /// Takes the lock.
    ///
    /// # Errors
    /// When another agent has it; the error says where that runs.
    pub fn take(site: &SiteDir) -> anyhow::Result<Self> {
        let path = site.pid_file();
        let cant = || format!("can't lock {}", path.display());
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).with_context(cant)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.read_to_string(&mut text).with_context(cant)?;
                let who = match serde_json::from_str::<AgentPid>(&text) {
                    Ok(holder) => format!(
                        "pid {} on {} since {}",
                        holder.pid,
                        holder.host,
                        holder.started.format("%Y-%m-%d %H:%M:%S UTC")
                    ),
                    // The moment between its lock and its first line.
                    Err(_) => "just started".into(),
                };
                bail!("an agent runs for this Site already ({who}); stop it with `copal site stop` there");
            }
            Err(TryLockError::Error(error)) => {
                // A file system without locks leaves only the word of the file itself.
                if let AgentPresence::Here(holder) | AgentPresence::Elsewhere(holder) = AgentPid::presence(site) {
                    bail!(
                        "an agent (pid {} on {}) may run for this Site and {} can't be locked: {error}; \
                         make sure that it has ended, then delete the file",
                        holder.pid,
                        holder.host,
                        path.display()
                    );
                }
                tracing::warn!("{} can't be locked: {error}; nothing keeps a second agent away", path.display());
            }
        }
        let pid = std::process::id();
        let holder = AgentPid {
            pid,
            host: this_host(),
            started: Utc::now(),
            start_ticks: start_ticks(pid).context("/proc is not mounted")?,
        };
        let mut lock = Self { file };
        lock.write(&serde_json::to_string(&holder)?).with_context(cant)?;
        Ok(lock)
    }

    fn write(&mut self, text: &str) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())
    }
}

impl Drop for SiteLock {
    fn drop(&mut self) {
        // The file stays: another process may have it open to wait for the lock. A content that can't be taken
        // out is harmless, since it names a process that is about to be gone.
        let _ = self.write("");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_told_where_the_first_runs() {
        let folder = tempfile::tempdir().unwrap();
        let site = SiteDir::new(folder.path());
        let lock = SiteLock::take(&site).unwrap();
        let error = SiteLock::take(&site).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("pid {} on {}", std::process::id(), this_host())), "{error}");
        assert!(matches!(AgentPid::presence(&site), AgentPresence::Here(_)));
        drop(lock);
        assert_eq!(AgentPid::presence(&site), AgentPresence::Stopped);
        SiteLock::take(&site).unwrap();
    }
}
