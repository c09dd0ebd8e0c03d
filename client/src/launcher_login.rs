//! How a launcher comes to its credentials. Right before a BatchJob is submitted the agent leaves a secret in the
//! Site's `qsubmit/`; the launcher exchanges it for tokens when it starts, be that a week later, and keeps
//! these beside it: for the other partitions, and for the next launcher where the scheduler starts the
//! BatchJob once more. Both files are for the Site's owner alone and go away with the BatchJob.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use copal_schemas::{BatchJobId, problem::ErrorCode, user::LauncherSecret};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::{
    Client, ClientError, Credentials,
    credentials::{CredentialsError, read_private, write_private},
    file_lock,
    site_dir::FileError,
};

/// The files of one BatchJob.
#[derive(Clone, Debug)]
pub struct LauncherLogin {
    secret: PathBuf,
    tokens: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredSecret {
    api_root: Url,
    username: String,
    secret: String,
}

/// A login that can't be had.
#[derive(Debug, thiserror::Error)]
pub enum LauncherLoginError {
    /// A file can't be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The service did not exchange the secret.
    #[error("can't log in for this BatchJob")]
    Client(#[from] ClientError),
}

impl LauncherLoginError {
    /// Whether the same may succeed later without anybody's doing.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Client(error) if error.is_transient())
    }
}

impl LauncherLogin {
    /// The files of a BatchJob in a Site's `qsubmit/`.
    #[must_use]
    pub fn new(qsubmit: &Path, id: BatchJobId) -> Self {
        Self {
            secret: qsubmit.join(format!("{id}.launcher-secret.yml")),
            tokens: qsubmit.join(format!("{id}.launcher-login.yml")),
        }
    }

    /// Leaves a secret for the launcher. `agent` says where the service is and who the user.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn leave(&self, agent: &Credentials, secret: LauncherSecret) -> Result<(), FileError> {
        let stored =
            StoredSecret { api_root: agent.api_root.clone(), username: agent.username.clone(), secret: secret.secret };
        write_private(&self.secret, &stored)
    }

    /// A client for the launcher: by the secret where one was left, by the tokens that another launcher of the
    /// BatchJob got for it. `None` where there is neither, as in a launcher that was started by hand.
    ///
    /// Where the service takes the secret no more, since the answer to its exchange was lost, the user's own login
    /// does instead if it is at the same service: better than an allocation that runs nothing.
    ///
    /// # Errors
    /// When others can read a file, or it can't be read; when the service can't be reached or takes the
    /// secret no more.
    pub async fn client(&self) -> Result<Option<Client>, LauncherLoginError> {
        let _lock = file_lock::take(&self.tokens).await;
        let credentials = match read_private::<StoredSecret>(&self.secret) {
            Ok(stored) => match self.exchange(&stored).await {
                Err(LauncherLoginError::Client(error)) if error.code() == Some(ErrorCode::Unauthenticated) => {
                    let credentials = self.stand_in(&stored).ok_or(error)?;
                    tracing::warn!("the service does not take this BatchJob's secret; going on with another login");
                    credentials
                }
                exchanged => exchanged?,
            },
            Err(CredentialsError::Missing(_)) => match Credentials::read(&self.tokens) {
                Ok(credentials) => credentials,
                Err(CredentialsError::Missing(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        };
        Ok(Some(Client::from_credentials(&credentials)?))
    }

    async fn exchange(&self, stored: &StoredSecret) -> Result<Credentials, LauncherLoginError> {
        let anonymous = Client::new(&stored.api_root, None)?;
        let tokens = anonymous.exchange_launcher_secret(&SecretString::from(stored.secret.as_str())).await?;
        let (root, username) = (stored.api_root.clone(), stored.username.clone());
        let credentials = Credentials::new(self.tokens.clone(), root, username, tokens);
        // A full disk stops no launcher; only another one of this BatchJob would miss the file.
        match credentials.save() {
            Ok(()) => remove(&self.secret),
            Err(error) => tracing::warn!("can't keep the login: {error}"),
        }
        Ok(credentials)
    }

    /// Credentials that do in place of a spent secret.
    fn stand_in(&self, stored: &StoredSecret) -> Option<Credentials> {
        let found = Credentials::read(&self.tokens).or_else(|_| Credentials::load()).ok()?;
        (found.api_root == stored.api_root).then_some(found)
    }

    /// Deletes the files. What can't be deleted is worth nothing: the credentials end with the BatchJob.
    pub fn remove(&self) {
        for path in [&self.secret, &self.tokens, &file_lock::path(&self.tokens)] {
            remove(path);
        }
    }
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("can't delete {}: {error}", path.display());
        }
        _ => {}
    }
}
