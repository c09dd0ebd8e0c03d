//! What a Site's agent tells about itself: the lock file `agent.pid`, the status file `log/agent-status.json`, and
//! the settings that it works by. The agent writes them; `copal site …` reads them.

use std::{collections::BTreeMap, fs, path::PathBuf};

use chrono::TimeDelta;
use copal_schemas::{SiteId, Timestamp, settings::Settings};
use serde::{Deserialize, Serialize};

use crate::{
    SiteDir,
    processes::start_ticks,
    yaml::{self, FileError},
};

/// How long an agent that lives may leave its status file as it is. Longer than its own period, for the sake of
/// file systems that show a file's change late.
const SILENCE: TimeDelta = TimeDelta::minutes(3);

/// Content of `agent.pid`: who holds the Site's lock. Empty when no agent runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentPid {
    /// The agent's process.
    pub pid: u32,
    /// The machine it runs on.
    pub host: String,
    /// When it took the lock.
    #[serde(with = "copal_schemas::time::aware")]
    pub started: Timestamp,
    /// When the kernel started the process, in clock ticks since the boot: tells the process
    /// from a later one with the same pid.
    pub start_ticks: u64,
}

/// Whether a Site has an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentPresence {
    /// Nobody holds the lock.
    Stopped,
    /// It runs on this machine.
    Here(AgentPid),
    /// It was started on another machine, from where alone can be said whether it still runs.
    Elsewhere(AgentPid),
}

impl AgentPid {
    /// Who holds the lock of this Site, as far as this machine can tell.
    #[must_use]
    pub fn presence(site: &SiteDir) -> AgentPresence {
        let Some(holder) =
            fs::read_to_string(site.pid_file()).ok().and_then(|text| serde_json::from_str::<Self>(&text).ok())
        else {
            return AgentPresence::Stopped;
        };
        if holder.host != this_host() {
            AgentPresence::Elsewhere(holder)
        } else if start_ticks(holder.pid) == Some(holder.start_ticks) {
            AgentPresence::Here(holder)
        } else {
            AgentPresence::Stopped
        }
    }
}

impl AgentPid {
    /// Whether both name one process. The time when it took the lock is less precise in the file than in memory.
    #[must_use]
    pub fn is_process(&self, other: &Self) -> bool {
        (self.pid, &self.host, self.start_ticks) == (other.pid, &other.host, other.start_ticks)
    }
}

/// The name of this machine.
#[must_use]
pub fn this_host() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "localhost".into())
}

/// How one of the agent's services fares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// When it last did its work without an error.
    #[serde(with = "copal_schemas::time::naive_option")]
    pub last_success: Option<Timestamp>,
    /// When it last failed.
    #[serde(with = "copal_schemas::time::naive_option")]
    pub last_error_time: Option<Timestamp>,
    /// Why it last failed, with the remedy where there is one.
    pub last_error: Option<String>,
    /// Failures since the last success.
    pub failures: u32,
    /// What it last did, for people.
    pub detail: String,
}

impl ServiceStatus {
    /// Whether its last try succeeded.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.failures == 0
    }
}

/// Content of `log/agent-status.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The agent's process.
    pub pid: u32,
    /// The machine it runs on.
    pub host: String,
    /// Its version.
    pub version: String,
    /// The Site.
    pub site_id: SiteId,
    /// The service it works for.
    pub api_root: String,
    /// When it started.
    #[serde(with = "copal_schemas::time::aware")]
    pub started: Timestamp,
    /// When this was written. An agent that lives writes at least every minute.
    #[serde(with = "copal_schemas::time::aware")]
    pub updated: Timestamp,
    /// When it stopped in good order; absent while it runs.
    #[serde(default, with = "copal_schemas::time::naive_option")]
    pub stopped: Option<Timestamp>,
    /// Its services by name: `events`, `hooks`, `scheduler`, `site`, `spool`.
    pub services: BTreeMap<String, ServiceStatus>,
}

impl AgentStatus {
    /// Where it is.
    #[must_use]
    pub fn path(site: &SiteDir) -> PathBuf {
        site.log().join("agent-status.json")
    }

    /// What the Site's agent last wrote; `None` when none ever ran.
    #[must_use]
    pub fn read(site: &SiteDir) -> Option<Self> {
        serde_json::from_str(&fs::read_to_string(Self::path(site)).ok()?).ok()
    }

    /// Whether the holder of the lock wrote it lately: the one sign of life that reaches another machine.
    #[must_use]
    pub fn is_fresh(&self, holder: &AgentPid, now: Timestamp) -> bool {
        self.stopped.is_none() && (self.pid, &self.host) == (holder.pid, &holder.host) && now - self.updated < SILENCE
    }

    /// Writes it in one step.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, site: &SiteDir) -> Result<(), FileError> {
        let path = Self::path(site);
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| FileError::Content { path: path.clone(), message: error.to_string() })?;
        yaml::write_atomically(&path, &text, 0o644)
    }
}

/// A note about the settings at some moment, all of them, defaults included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsNote {
    /// Those that the agent works by: `log/agent-settings.json`.
    Applied,
    /// Those of the last `copal site sync` or `init`: `log/synced-settings.json`.
    Synced,
}

impl SettingsNote {
    fn path(self, site: &SiteDir) -> PathBuf {
        site.log().join(match self {
            Self::Applied => "agent-settings.json",
            Self::Synced => "synced-settings.json",
        })
    }

    /// The settings noted; `None` when none were.
    #[must_use]
    pub fn read(self, site: &SiteDir) -> Option<serde_json::Value> {
        serde_json::from_str(&fs::read_to_string(self.path(site)).ok()?).ok()
    }

    /// Forgets what was noted.
    ///
    /// # Errors
    /// When the file can't be deleted.
    pub fn remove(self, site: &SiteDir) -> std::io::Result<()> {
        fs::remove_file(self.path(site))
    }

    /// Notes these settings.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(self, site: &SiteDir, settings: &Settings) -> Result<(), FileError> {
        let path = self.path(site);
        let text = serde_json::to_string_pretty(settings)
            .map_err(|error| FileError::Content { path: path.clone(), message: error.to_string() })?;
        // As private as a settings.yml may be that it repeats.
        yaml::write_atomically(&path, &text, 0o600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid_file(holder: &AgentPid) -> (tempfile::TempDir, SiteDir) {
        let folder = tempfile::tempdir().unwrap();
        let site = SiteDir::new(folder.path());
        fs::write(site.pid_file(), serde_json::to_string(holder).unwrap()).unwrap();
        (folder, site)
    }

    #[test]
    fn a_holder_is_told_from_a_later_process_with_its_pid() {
        let pid = std::process::id();
        let holder = AgentPid {
            pid,
            host: this_host(),
            started: chrono::DateTime::UNIX_EPOCH,
            start_ticks: start_ticks(pid).unwrap(),
        };
        let (_folder, site) = pid_file(&holder);
        assert_eq!(AgentPid::presence(&site), AgentPresence::Here(holder.clone()));
        let (_folder, site) = pid_file(&AgentPid { start_ticks: 1, ..holder.clone() });
        assert_eq!(AgentPid::presence(&site), AgentPresence::Stopped);
        let elsewhere = AgentPid { host: "elsewhere".into(), ..holder };
        let (_folder, site) = pid_file(&elsewhere);
        assert_eq!(AgentPid::presence(&site), AgentPresence::Elsewhere(elsewhere));
    }

    #[test]
    fn only_the_holder_gives_signs_of_life_and_only_for_a_while() {
        let now = chrono::Utc::now();
        let holder = AgentPid { pid: 7, host: "login1".into(), started: now, start_ticks: 1 };
        let status = AgentStatus {
            pid: 7,
            host: "login1".into(),
            version: String::new(),
            site_id: SiteId(1),
            api_root: String::new(),
            started: now,
            updated: now,
            stopped: None,
            services: BTreeMap::new(),
        };
        assert!(status.is_fresh(&holder, now + TimeDelta::minutes(2)));
        assert!(!status.is_fresh(&holder, now + TimeDelta::minutes(3)));
        assert!(!status.is_fresh(&AgentPid { host: "login2".into(), ..holder.clone() }, now));
        assert!(!AgentStatus { stopped: Some(now), ..status }.is_fresh(&holder, now));
    }
}
