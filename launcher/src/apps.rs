//! The Apps of the Site as the launcher needs them: found by the service's id, read from the Site's
//! `apps/`, read again when their file changes. What runs is only what these files say.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant, SystemTime},
};

use copal_client::{
    SiteDir,
    app_file::{App, AppError},
};
use copal_schemas::{AppId, job::Job};
use tracing::warn;

/// How long a look at a file's time stamp is trusted.
const TRUST: Duration = Duration::from_secs(1);

/// The Apps.
#[derive(Debug)]
pub struct Apps {
    site: SiteDir,
    names: HashMap<AppId, String>,
    apps: BTreeMap<String, App>,
    stamps: HashMap<String, (Option<SystemTime>, Instant)>,
}

impl Apps {
    /// None yet: each is read when a Job needs it.
    #[must_use]
    pub fn new(site: SiteDir) -> Self {
        Self { site, names: HashMap::new(), apps: BTreeMap::new(), stamps: HashMap::new() }
    }

    /// Whether the service's id of an App has a name.
    #[must_use]
    pub fn knows(&self, id: AppId) -> bool {
        self.names.contains_key(&id)
    }

    /// The names that the service gave.
    pub fn learn(&mut self, names: HashMap<AppId, String>) {
        self.names.extend(names);
    }

    /// The ids that have a name.
    #[must_use]
    pub fn known(&self) -> std::collections::HashSet<AppId> {
        self.names.keys().copied().collect()
    }

    /// The App of a Job.
    ///
    /// # Errors
    /// A sentence for the Job's owner when the Site does not have it.
    pub fn of(&mut self, job: &Job) -> Result<&App, String> {
        let Some(name) = self.names.get(&job.app_id).cloned() else {
            return Err(format!("the service has no App {} at this Site", job.app_id));
        };
        self.refresh(&name)?;
        self.apps.get(&name).ok_or_else(|| self.missing(&name))
    }

    fn missing(&self, name: &str) -> String {
        AppError::Missing { app: name.into(), folder: self.site.apps() }.to_string()
    }

    /// Reads an App when its file is new or has changed.
    fn refresh(&mut self, name: &str) -> Result<(), String> {
        let known = self.stamps.get(name).copied();
        if known.is_some_and(|(_, looked)| looked.elapsed() < TRUST) {
            return Ok(());
        }
        let stamp = std::fs::metadata(self.site.app_file(name)).and_then(|meta| meta.modified()).ok();
        let is_same = known.is_some_and(|(old, _)| old == stamp && stamp.is_some());
        if !is_same {
            self.apps.remove(name);
            self.stamps.remove(name);
            if stamp.is_none() {
                return Err(self.missing(name));
            }
            let app = self.site.load_app(name).map_err(|error| {
                warn!(app = name, error = %crate::session::chain(&error), "can't read an App");
                crate::session::chain(&error)
            })?;
            self.apps.insert(name.to_owned(), app);
        }
        self.stamps.insert(name.to_owned(), (stamp, Instant::now()));
        Ok(())
    }
}
