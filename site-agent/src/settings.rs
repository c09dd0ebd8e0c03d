//! `settings.yml` as it is now: read again whenever the file changed, so that a correction takes
//! effect without a restart. While the file is wrong, the last good settings hold. Which ones hold is written to
//! `log/agent-settings.json`, by which `copal site sync` sees that they are in force.

use std::{
    fs,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use copal_client::{SiteDir, agent_status::SettingsNote, site_dir::FileError};
use copal_schemas::settings::Settings;

use crate::logging;

/// A Site's settings file, watched.
pub struct SettingsFile {
    site: SiteDir,
    seen: Mutex<Seen>,
}

struct Seen {
    stamp: Option<(SystemTime, u64)>,
    settings: Arc<Settings>,
    mistake: Option<String>,
}

impl SettingsFile {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// When it can't be read or is wrong.
    pub fn open(site: &SiteDir) -> Result<Self, FileError> {
        let stamp = stamp(site);
        let settings = Arc::new(site.settings()?);
        Ok(Self { site: site.clone(), seen: Mutex::new(Seen { stamp, settings, mistake: None }) })
    }

    /// Puts the settings into force that no service asks for: the level of the log, and the word about all of them.
    /// Only the holder of the Site's lock may.
    pub fn apply(&self) {
        let settings = Arc::clone(&self.seen.lock().unwrap_or_else(PoisonError::into_inner).settings);
        apply(&self.site, &settings);
    }

    /// The last good settings, and what is wrong with the present file.
    #[must_use]
    pub fn current(&self) -> (Arc<Settings>, Option<String>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamp(&self.site);
        if stamp != seen.stamp {
            seen.stamp = stamp;
            match self.site.settings() {
                Ok(settings) if settings.site_id != seen.settings.site_id => {
                    seen.mistake = Some("site_id changed in settings.yml; restart the agent".into());
                }
                Ok(settings) => {
                    tracing::info!("settings.yml was read again");
                    apply(&self.site, &settings);
                    seen.settings = Arc::new(settings);
                    seen.mistake = None;
                }
                Err(error) => {
                    let mistake = format!("{:#}; the settings before it hold", anyhow::Error::from(error));
                    tracing::error!("{mistake}");
                    seen.mistake = Some(mistake);
                }
            }
        }
        (Arc::clone(&seen.settings), seen.mistake.clone())
    }
}

fn apply(site: &SiteDir, settings: &Settings) {
    if let Err(error) = logging::set_level(&settings.logging.level) {
        tracing::error!("{error:#}; the level before it holds");
    }
    if let Err(error) = SettingsNote::Applied.write(site, settings) {
        tracing::warn!("{:#}", anyhow::Error::from(error));
    }
}

fn stamp(site: &SiteDir) -> Option<(SystemTime, u64)> {
    let meta = fs::metadata(site.settings_path()).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_file_leaves_the_last_good_settings() {
        let folder = tempfile::tempdir().unwrap();
        let site = SiteDir::new(folder.path());
        fs::write(site.settings_path(), "site_id: 3\n").unwrap();
        let file = SettingsFile::open(&site).unwrap();
        fs::write(site.settings_path(), "site_id: 3\nscheduler: {local_nodes: 4}\n").unwrap();
        fs::create_dir_all(site.log()).unwrap();
        file.apply();
        let applied = || SettingsNote::Applied.read(&site).unwrap();
        assert_eq!(applied()["scheduler"]["local_nodes"], 1);
        assert_eq!(file.current().0.scheduler.local_nodes, 4);
        assert_eq!(applied()["scheduler"]["local_nodes"], 4);
        fs::write(site.settings_path(), "site_id: 3\nscheduler: {lokal_nodes: 5}\n").unwrap();
        let (settings, mistake) = file.current();
        assert_eq!(settings.scheduler.local_nodes, 4);
        assert!(mistake.unwrap().contains("lokal_nodes"));
    }
}
