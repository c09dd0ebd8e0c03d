//! One agent for a Site: a lock on `agent.pid`, held by the kernel for as long as the process lives.
//!
//! The file's content tells people (and `copal site stop`) who holds it. Not every shared file system carries locks
//! from one machine to another: there the content decides, together with the sign of life that an agent gives by its
//! status file, and a holder that finds another's name in the file gives way.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
};

use anyhow::{Context, bail};
use chrono::Utc;
use copal_client::{
    SiteDir,
    agent_status::{AgentPid, AgentPresence, AgentStatus, this_host},
    processes::start_ticks,
};

/// The Site's lock. Released when dropped, or when the process ends in any way.
#[derive(Debug)]
pub struct SiteLock {
    file: File,
    holder: AgentPid,
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
            Ok(()) => {
                // Of this machine's agents none has it. What another machine's agent holds, the kernel may not know.
                if let AgentPresence::Elsewhere(holder) = AgentPid::presence(site)
                    && AgentStatus::read(site).is_some_and(|status| status.is_fresh(&holder, Utc::now()))
                {
                    bail!(
                        "an agent runs for this Site already ({}); stop it with `copal site stop` there, or, if that \
                         machine is gone, try again in a few minutes",
                        describe(&holder)
                    );
                }
            }
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.read_to_string(&mut text).with_context(cant)?;
                let who = match serde_json::from_str::<AgentPid>(&text) {
                    Ok(holder) => describe(&holder),
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
        let text = serde_json::to_string(&holder)?;
        let mut lock = Self { file, holder };
        lock.write(&text).with_context(cant)?;
        Ok(lock)
    }

    /// Who has the Site by the file's word, when that is somebody else: two machines whose locks do not meet took it
    /// at the same moment, and the last to write it wins. A file that is away or not readable says nothing.
    #[must_use]
    pub fn usurper(&self, site: &SiteDir) -> Option<AgentPid> {
        let text = std::fs::read_to_string(site.pid_file()).ok()?;
        serde_json::from_str::<AgentPid>(&text).ok().filter(|named| !named.is_process(&self.holder))
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
        // out is harmless, since it names a process that is about to be gone. Another's name is not this one's to erase.
        let mut text = String::new();
        let is_own = self.file.rewind().and_then(|()| self.file.read_to_string(&mut text)).is_ok()
            && serde_json::from_str::<AgentPid>(&text).is_ok_and(|named| named.is_process(&self.holder));
        if is_own {
            let _ = self.write("");
        }
    }
}

/// Where an agent runs, for people.
pub fn describe(holder: &AgentPid) -> String {
    format!("pid {} on {} since {}", holder.pid, holder.host, holder.started.format("%Y-%m-%d %H:%M:%S UTC"))
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

    /// A status file of an agent on another machine, last written some minutes ago.
    fn told_by(site: &SiteDir, holder: &AgentPid, minutes_ago: i64) {
        std::fs::create_dir_all(site.log()).unwrap();
        let status = AgentStatus {
            pid: holder.pid,
            host: holder.host.clone(),
            version: String::new(),
            site_id: copal_schemas::SiteId(1),
            api_root: String::new(),
            started: holder.started,
            updated: Utc::now() - chrono::TimeDelta::minutes(minutes_ago),
            stopped: None,
            services: std::collections::BTreeMap::new(),
        };
        status.write(site).unwrap();
    }

    #[test]
    fn pitfall_074_an_agent_on_another_machine_is_respected_where_locks_do_not_reach() {
        let folder = tempfile::tempdir().unwrap();
        let site = SiteDir::new(folder.path());
        let started = chrono::DateTime::UNIX_EPOCH;
        let other = AgentPid { pid: 7, host: "login2".into(), started, start_ticks: 1 };
        std::fs::write(site.pid_file(), serde_json::to_string(&other).unwrap()).unwrap();
        told_by(&site, &other, 1);
        let error = SiteLock::take(&site).unwrap_err().to_string();
        assert!(error.contains("pid 7 on login2"), "{error}");
        // Silent for long: that machine is gone.
        told_by(&site, &other, 10);
        let lock = SiteLock::take(&site).unwrap();
        assert_eq!(lock.usurper(&site), None);
        // Both took it at the same moment, and the other wrote last.
        std::fs::write(site.pid_file(), serde_json::to_string(&other).unwrap()).unwrap();
        assert_eq!(lock.usurper(&site), Some(other.clone()));
        drop(lock);
        assert_eq!(AgentPid::presence(&site), AgentPresence::Elsewhere(other));
    }
}
