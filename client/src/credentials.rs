//! `$COPAL_HOME/client.yml`: where the service is and the token for it. Mode 0600; a file that
//! others can read is refused, since its token may have leaked.

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::PathBuf,
};

use copal_schemas::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::yaml::{self, FileError};

/// `$COPAL_HOME`, or `~/.copal`, or `.copal` where there is no home.
#[must_use]
pub fn copal_home() -> PathBuf {
    match env::var_os("COPAL_HOME").filter(|home| !home.is_empty()) {
        Some(home) => PathBuf::from(home),
        None => env::home_dir().unwrap_or_default().join(".copal"),
    }
}

/// Who the user is and at which service.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The service's base URL.
    pub api_root: Url,
    /// The login name.
    pub username: String,
    /// The access token.
    pub token: SecretString,
    /// When the token lapses.
    pub token_expiry: Timestamp,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientFile {
    api_root: Url,
    username: String,
    token: String,
    #[serde(with = "copal_schemas::time::aware")]
    token_expiry: Timestamp,
}

/// Credentials that can't be had.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// Nobody has logged in.
    #[error("not logged in: {0} does not exist; run `copal login`")]
    Missing(PathBuf),
    /// Others may have read the token.
    #[error(
        "{path} has mode {mode:04o} and can be read by others; run `chmod 600 {path}`, and `copal login` for a new token"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It can't be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Credentials {
    /// The file they live in.
    #[must_use]
    pub fn path() -> PathBuf {
        copal_home().join("client.yml")
    }

    /// Reads them.
    ///
    /// # Errors
    /// When nobody has logged in, when others can read the file, when it can't be read.
    pub fn load() -> Result<Self, CredentialsError> {
        let path = Self::path();
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(CredentialsError::Missing(path)),
            Err(source) => return Err(FileError::Read { path, source }.into()),
        };
        let mode = meta.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(CredentialsError::Exposed { path, mode });
        }
        let file: ClientFile = yaml::read(&path)?;
        Ok(Self {
            api_root: file.api_root,
            username: file.username,
            token: file.token.into(),
            token_expiry: file.token_expiry,
        })
    }

    /// Writes them, readable for the user alone.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn save(&self) -> Result<(), CredentialsError> {
        let path = Self::path();
        let home = copal_home();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&home)
            .map_err(|source| FileError::Write { path: home, source })?;
        let file = ClientFile {
            api_root: self.api_root.clone(),
            username: self.username.clone(),
            token: self.token.expose_secret().into(),
            token_expiry: self.token_expiry,
        };
        let text = serde_saphyr::to_string(&file)
            .map_err(|error| FileError::Content { path: path.clone(), message: error.to_string() })?;
        Ok(yaml::write_atomically(&path, &text, 0o600)?)
    }
}
