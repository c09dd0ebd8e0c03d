//! Secrets of locations: tokens, keys, passwords, in the file `transfers.credentials_file`, mode 0600:
//! a location's alias with its names and values. Which names an adapter knows is the adapter's.

use std::{collections::BTreeMap, path::PathBuf};

use copal_client::{SiteDir, credentials};
use copal_schemas::settings::TransferSettings;
use secrecy::SecretString;

use super::{Cause, StagingError};

/// Where the secrets of a Site's locations are.
#[derive(Clone, Debug)]
pub struct Secrets {
    file: Option<PathBuf>,
}

impl Secrets {
    /// Those that the settings name. Read when they are asked for, so that a new token needs no restart.
    #[must_use]
    pub fn new(site: &SiteDir, settings: &TransferSettings) -> Self {
        Self { file: settings.credentials_file.as_ref().map(|file| site.root().join(file)) }
    }

    /// The secrets of a location; empty when there are none.
    ///
    /// # Errors
    /// When the file can't be used, such as one that others can read.
    pub fn of(&self, alias: &str) -> Result<BTreeMap<String, SecretString>, StagingError> {
        let Some(file) = &self.file else { return Ok(BTreeMap::new()) };
        let all: BTreeMap<String, BTreeMap<String, String>> = credentials::read_private(file).map_err(|error| {
            let message = match error {
                credentials::CredentialsError::Missing(path) => {
                    format!("transfers.credentials_file names {}, which does not exist", path.display())
                }
                credentials::CredentialsError::Exposed { path, mode } => format!(
                    "{} has mode {mode:04o} and can be read by others; run `chmod 600` on it and change what is in it",
                    path.display()
                ),
                credentials::CredentialsError::Foreign { path, owner } => format!(
                    "{} belongs to another user ({owner}), who decides what is in it; write one of your own",
                    path.display()
                ),
                error => format!("{:#}", anyhow::Error::from(error)),
            };
            StagingError::new(Cause::Settings, message)
        })?;
        let own = all.into_iter().find(|(name, _)| name == alias).map(|(_, own)| own).unwrap_or_default();
        Ok(own.into_iter().map(|(name, value)| (name, value.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secrets.yml");
        fs::write(&file, "lab: {token: t0ken}\n").unwrap();
        let settings = TransferSettings { credentials_file: Some("secrets.yml".into()), ..TransferSettings::default() };
        let secrets = Secrets::new(&SiteDir::new(folder.path()), &settings);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let error = secrets.of("lab").unwrap_err();
        assert!(error.message.contains("chmod 600") && !error.message.contains("t0ken"), "{error}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(secrets.of("lab").unwrap()["token"].expose_secret(), "t0ken");
        assert!(secrets.of("other").unwrap().is_empty());
        let none = Secrets::new(&SiteDir::new(folder.path()), &TransferSettings::default());
        assert!(none.of("lab").unwrap().is_empty());
    }
}
