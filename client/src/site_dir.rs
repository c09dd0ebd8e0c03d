//! The folder of a Site: where its files are, how it is found from inside, its settings and Apps.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use copal_schemas::{app::is_identifier, job::check_workdir, settings::Settings};

pub use crate::yaml::FileError;
use crate::{
    app_file::{App, AppError},
    yaml,
};

/// A folder with a `settings.yml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteDir {
    root: PathBuf,
}

impl SiteDir {
    /// The folder as given; nothing is read.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The Site that the present folder is in: `$COPAL_SITE_PATH`, or the nearest folder upwards
    /// with a `settings.yml` and an `apps/`.
    #[must_use]
    pub fn find() -> Option<Self> {
        if let Some(path) = env::var_os("COPAL_SITE_PATH").filter(|path| !path.is_empty()) {
            return Some(Self::new(PathBuf::from(path)));
        }
        let here = env::current_dir().ok()?;
        here.ancestors()
            .find(|folder| folder.join("settings.yml").is_file() && folder.join("apps").is_dir())
            .map(Self::new)
    }

    /// The folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// `settings.yml`
    #[must_use]
    pub fn settings_path(&self) -> PathBuf {
        self.root.join("settings.yml")
    }
    /// `apps/`
    #[must_use]
    pub fn apps(&self) -> PathBuf {
        self.root.join("apps")
    }
    /// The file of an App: `apps/<name>.yml`, or `.yaml` where that is the one there.
    #[must_use]
    pub fn app_file(&self, name: &str) -> PathBuf {
        let other = self.apps().join(format!("{name}.yaml"));
        if other.exists() { other } else { self.apps().join(format!("{name}.yml")) }
    }
    /// `data/`, above the workdirs of Jobs.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.root.join("data")
    }
    /// `log/`
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.root.join("log")
    }
    /// `qsubmit/`: rendered scripts, their output and their exit records.
    #[must_use]
    pub fn qsubmit(&self) -> PathBuf {
        self.root.join("qsubmit")
    }
    /// `spool/`: reports of launchers that the service could not take; the agent delivers them.
    #[must_use]
    pub fn spool(&self) -> PathBuf {
        self.root.join("spool")
    }
    /// `agent.pid`: the agent's lock.
    #[must_use]
    pub fn pid_file(&self) -> PathBuf {
        self.root.join("agent.pid")
    }
    /// `agent.yml`: the agent's own credentials.
    #[must_use]
    pub fn agent_login(&self) -> PathBuf {
        self.root.join("agent.yml")
    }

    /// Makes the folders that a Site has, where they are missing.
    ///
    /// # Errors
    /// When one can't be made.
    pub fn create_folders(&self) -> Result<(), FileError> {
        for folder in [self.apps(), self.data(), self.log(), self.qsubmit(), self.spool()] {
            fs::create_dir_all(&folder).map_err(|source| FileError::Write { path: folder, source })?;
        }
        Ok(())
    }

    /// Reads `settings.yml`.
    ///
    /// # Errors
    /// When it can't be read; an unknown key or a wrong value is named with its line.
    pub fn settings(&self) -> Result<Settings, FileError> {
        yaml::read(&self.settings_path())
    }

    /// Reads the App that the service calls by this name.
    ///
    /// # Errors
    /// When there is no such file or it is wrong. A name that is none of an App is refused before anything is read, so
    /// that nothing but what is in `apps/` ever runs.
    pub fn load_app(&self, name: &str) -> Result<App, AppError> {
        if is_identifier(name) {
            let file = self.app_file(name);
            if !file.exists() {
                return Err(AppError::Missing { app: name.into(), folder: self.apps() });
            }
            return App::load(&file);
        }
        let message = format!("{name:?} is no name of an App (letters, digits, _)");
        Err(AppError::Field { path: self.apps(), line: None, field: "name".into(), message })
    }

    /// Reads `apps/*.yml`: the good ones by name, and what is wrong with the others.
    ///
    /// # Errors
    /// When the folder can't be read.
    pub fn load_apps(&self) -> Result<(BTreeMap<String, App>, Vec<AppError>), FileError> {
        let folder = self.apps();
        let failed = |source| FileError::Read { path: folder.clone(), source };
        let mut paths = fs::read_dir(&folder)
            .map_err(failed)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(failed)?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "yml" || extension == "yaml"));
        paths.sort();
        let (mut apps, mut errors) = (BTreeMap::new(), Vec::new());
        for path in paths {
            match App::load(&path) {
                Ok(app) if apps.contains_key(&app.spec().name) => {
                    let message = format!("there is another file of the App {}; delete one", app.spec().name);
                    errors.push(AppError::Field { path, line: None, field: "name".into(), message });
                }
                Ok(app) => {
                    apps.insert(app.spec().name.clone(), app);
                }
                Err(error) => errors.push(error),
            }
        }
        Ok((apps, errors))
    }

    /// The folder of a Job whose workdir the service gives. It is always one below `data/`, whatever the service says.
    ///
    /// # Errors
    /// A sentence that says why it is none.
    pub fn job_folder(&self, workdir: &str) -> Result<PathBuf, String> {
        Ok(self.data().join(check_workdir(workdir)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_and_no_workdir_leads_out_of_the_site() {
        let folder = tempfile::tempdir().unwrap();
        let site = SiteDir::new(folder.path());
        site.create_folders().unwrap();
        fs::write(site.data().join("evil.yml"), "name: evil\ncommand: id\n").unwrap();
        fs::write(site.apps().join("good.yml"), "name: good\ncommand: id\n").unwrap();
        assert_eq!(site.load_app("good").unwrap().spec().command, "id");
        for name in ["../data/evil", "./good", ""] {
            assert!(matches!(site.load_app(name), Err(AppError::Field { .. })), "{name}");
        }
        let missing = site.load_app("missing").unwrap_err().to_string();
        assert!(missing.contains("allow_remote_apps: true"), "{missing}");
        assert_eq!(site.job_folder("a/./b").unwrap(), site.data().join("a/b"));
        for workdir in ["/etc", "../apps", "a/../../apps", ".", ""] {
            assert!(site.job_folder(workdir).is_err(), "{workdir}");
        }
    }
}
