//! Credentials in files: where the service is and the tokens for it. The user's are in
//! `$COPAL_HOME/client.yml`, an agent's in its Site's folder, a launcher's in the Site's `qsubmit/`. Mode 0600;
//! a file that others can read is refused, since its tokens may have leaked.
//!
//! How tokens are renewed is in `api/keeper.rs`.

use std::{
    env, fs,
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use chrono::TimeDelta;
use copal_schemas::{SiteId, Timestamp, user::AccessToken};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use url::Url;

use crate::yaml::{self, FileError};

/// An access token is renewed when it has no more time left than this.
const RENEW_BEFORE: TimeDelta = TimeDelta::minutes(5);

/// `$COPAL_HOME`, or `~/.copal`, or `.copal` where there is no home.
#[must_use]
pub fn copal_home() -> PathBuf {
    match env::var_os("COPAL_HOME").filter(|home| !home.is_empty()) {
        Some(home) => PathBuf::from(home),
        None => env::home_dir().unwrap_or_default().join(".copal"),
    }
}

/// Who somebody is and at which service, and the file that keeps it.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The service's base URL.
    pub api_root: Url,
    /// The login name.
    pub username: String,
    /// The access token.
    pub token: SecretString,
    /// When the access token lapses.
    pub token_expiry: Timestamp,
    /// What the login is renewed by, where it can be.
    pub refresh_token: Option<SecretString>,
    /// The only Site that they are good for, where they are an agent's.
    pub site_id: Option<SiteId>,
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredLogin {
    api_root: Url,
    username: String,
    token: String,
    #[serde(with = "copal_schemas::time::aware")]
    token_expiry: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refresh_token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    site_id: Option<SiteId>,
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
    /// Somebody else may have written it.
    #[error(
        "{path} belongs to another user ({owner}), who decides what is in it; run `rm {path}`, and `copal login` for one of your own"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its owner's number.
        owner: u32,
    },
    /// It can't be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Credentials {
    /// The file of the user's own.
    #[must_use]
    pub fn path() -> PathBuf {
        copal_home().join("client.yml")
    }

    /// Those that a login gave, to be kept in a file. Nothing is written yet.
    #[must_use]
    pub fn new(path: PathBuf, api_root: Url, username: String, tokens: AccessToken) -> Self {
        Self {
            api_root,
            username,
            token: tokens.access_token.into(),
            token_expiry: tokens.expiration,
            refresh_token: tokens.refresh_token.map(Into::into),
            site_id: None,
            path,
        }
    }

    /// Reads the user's own.
    ///
    /// # Errors
    /// When nobody has logged in, when others can read the file, when it can't be read.
    pub fn load() -> Result<Self, CredentialsError> {
        Self::read(&Self::path())
    }

    /// Reads those of a file.
    ///
    /// # Errors
    /// As [`Credentials::load`].
    pub fn read(path: &Path) -> Result<Self, CredentialsError> {
        let stored: StoredLogin = read_private(path)?;
        Ok(Self {
            api_root: stored.api_root,
            username: stored.username,
            token: stored.token.into(),
            token_expiry: stored.token_expiry,
            refresh_token: stored.refresh_token.map(Into::into),
            site_id: stored.site_id,
            path: path.into(),
        })
    }

    /// The file that keeps them.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.path
    }

    /// Whether the access token has lapsed and nothing renews it.
    #[must_use]
    pub fn have_lapsed(&self, now: Timestamp) -> bool {
        self.refresh_token.is_none() && self.token_expiry <= now
    }

    /// Whether it is time to renew the access token, where that can be done.
    pub(crate) fn are_due(&self, now: Timestamp) -> bool {
        self.refresh_token.is_some() && self.token_expiry - now <= RENEW_BEFORE
    }

    /// Whether two are of one login: the same account at the same service for the same purpose.
    pub(crate) fn are_of(&self, other: &Self) -> bool {
        self.api_root == other.api_root && self.username == other.username && self.site_id == other.site_id
    }

    /// The same login with new tokens.
    pub(crate) fn renewed(&self, tokens: AccessToken) -> Self {
        let earlier = self.clone();
        let refresh_token = tokens.refresh_token.map(Into::into).or(earlier.refresh_token);
        Self { token: tokens.access_token.into(), token_expiry: tokens.expiration, refresh_token, ..earlier }
    }

    /// Writes them in one step, readable for the user alone.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn save(&self) -> Result<(), CredentialsError> {
        let stored = StoredLogin {
            api_root: self.api_root.clone(),
            username: self.username.clone(),
            token: self.token.expose_secret().into(),
            token_expiry: self.token_expiry,
            refresh_token: self.refresh_token.as_ref().map(|token| token.expose_secret().into()),
            site_id: self.site_id,
        };
        Ok(write_private(&self.path, &stored)?)
    }
}

/// Reads a file with secrets, unless others can read it too or wrote it.
///
/// # Errors
/// When it is missing, when others can read it, when it belongs to another user, when it is not what it should be.
pub fn read_private<T: DeserializeOwned>(path: &Path) -> Result<T, CredentialsError> {
    let failed = |source| FileError::Read { path: path.into(), source };
    let mut file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(CredentialsError::Missing(path.into())),
        Err(source) => return Err(failed(source).into()),
    };
    // Of the open file, so that what is read is what was looked at.
    let meta = file.metadata().map_err(failed)?;
    let mode = meta.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(CredentialsError::Exposed { path: path.into(), mode });
    }
    check_owner(path, meta.uid(), nix::unistd::geteuid().as_raw())?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(yaml::parse(path, &text)?)
}

/// Whoever else owns a file decides what is in it, such as where the user's password goes.
fn check_owner(path: &Path, owner: u32, user: u32) -> Result<(), CredentialsError> {
    if owner == user || owner == 0 { Ok(()) } else { Err(CredentialsError::Foreign { path: path.into(), owner }) }
}

/// Writes a file with secrets in one step, readable for the user alone; its folder is made where it is missing.
pub(crate) fn write_private(path: &Path, content: &impl Serialize) -> Result<(), FileError> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| FileError::Write { path: folder.into(), source })?;
    }
    let text = serde_saphyr::to_string(content)
        .map_err(|error| FileError::Content { path: path.into(), message: error.to_string() })?;
    yaml::write_atomically(path, &text, 0o600)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn tokens(refresh_token: Option<&str>) -> AccessToken {
        AccessToken {
            access_token: "a".into(),
            token_type: "bearer".into(),
            expiration: copal_schemas::time::parse("2026-12-02T10:00:00").unwrap(),
            refresh_token: refresh_token.map(Into::into),
        }
    }

    fn login(path: &Path, refresh_token: Option<&str>) -> Credentials {
        let root = "http://127.0.0.1:8642/".parse().unwrap();
        Credentials::new(path.into(), root, "ann".into(), tokens(refresh_token))
    }

    #[test]
    fn a_file_keeps_them_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("home/client.yml");
        for refresh_token in [None, Some("r")] {
            login(&path, refresh_token).save().unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            let read = Credentials::read(&path).unwrap();
            assert_eq!(read.token.expose_secret(), "a");
            assert_eq!(read.refresh_token.as_ref().map(|token| token.expose_secret()), refresh_token);
            assert!(!format!("{read:?}").contains("\"a\""), "{read:?}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Credentials::read(&path), Err(CredentialsError::Exposed { mode: 0o640, .. })));
        let missing = Credentials::read(&folder.path().join("none.yml"));
        assert!(matches!(missing, Err(CredentialsError::Missing(_))));
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let path = Path::new("/home/ann/.copal/client.yml");
        assert!(check_owner(path, 1000, 1000).is_ok() && check_owner(path, 0, 1000).is_ok());
        for user in [0, 1001] {
            let error = check_owner(path, 1000, user).unwrap_err().to_string();
            assert!(error.contains("another user (1000)") && error.contains("copal login"), "{error}");
        }
        // Who may give files away does, and is then told.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("client.yml");
        login(&path, None).save().unwrap();
        let is_given = std::os::unix::fs::chown(&path, Some(12_345), None).is_ok();
        let read = Credentials::read(&path);
        assert!(
            if is_given { matches!(read, Err(CredentialsError::Foreign { .. })) } else { read.is_ok() },
            "{read:?}"
        );
    }

    #[test]
    fn only_what_can_be_renewed_is_due() {
        let at = |text| copal_schemas::time::parse(text).unwrap();
        let path = Path::new("/none");
        let (fixed, renewable) = (login(path, None), login(path, Some("r")));
        assert!(!renewable.are_due(at("2026-12-02T09:00:00")) && renewable.are_due(at("2026-12-02T09:56:00")));
        assert!(!fixed.are_due(at("2026-12-03T09:00:00")));
        assert!(fixed.have_lapsed(at("2026-12-02T10:00:00")) && !fixed.have_lapsed(at("2026-12-02T09:59:00")));
        assert!(!renewable.have_lapsed(at("2026-12-03T09:00:00")));
    }
}
