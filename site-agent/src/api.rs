//! The agent's way to the service: a credential that is bound to its Site, waits between tries, and
//! sentences about what went wrong.
//!
//! The credential is in `agent.yml` in the Site's folder and renews itself, so that the agent works on when its user
//! logs out. The first one is made with the user's login, and so is a new one when the service ended it.

use std::{
    sync::{PoisonError, RwLock},
    time::Duration,
};

use copal_client::{Client, ClientError, Credentials, SiteDir, credentials::CredentialsError, site_dir::FileError};
use copal_schemas::{SiteId, problem::ErrorCode};

/// The service, for one Site.
pub struct Api {
    dir: SiteDir,
    site_id: SiteId,
    current: RwLock<Current>,
    /// Held while a credential is made.
    login: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Current {
    client: Client,
    credentials: Credentials,
}

/// A credential for the Site that can't be had.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The user's login can't be used, or the Site's can't be kept.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The service gave none.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The user is logged in elsewhere.
    #[error(
        "the service at {site} ended this Site's login, and the user is logged in at {user}; run `copal login --url {site}`"
    )]
    Elsewhere {
        /// The Site's service.
        site: String,
        /// Where the user is logged in.
        user: String,
    },
}

impl Api {
    /// Reads the Site's credential, or the user's where the Site has none yet.
    ///
    /// # Errors
    /// When the Site has none and nobody has logged in; when a file can't be used.
    pub fn open(dir: &SiteDir, site_id: SiteId) -> Result<Self, CredentialsError> {
        let credentials = match Credentials::read(&dir.agent_login()) {
            Ok(credentials) if credentials.site_id == Some(site_id) => credentials,
            // Of another Site, whose folder this was.
            Ok(_) | Err(CredentialsError::Missing(_)) => Credentials::load()?,
            Err(error) => return Err(error),
        };
        if let Ok(user) = Credentials::load()
            && user.api_root != credentials.api_root
        {
            tracing::warn!(
                "this Site is at {}, and the user is logged in at {}; where that is the Site's new address, delete {}",
                credentials.api_root,
                user.api_root,
                dir.agent_login().display()
            );
        }
        let current = Current::new(credentials)?;
        Ok(Self { dir: dir.clone(), site_id, current: RwLock::new(current), login: tokio::sync::Mutex::new(()) })
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> Client {
        self.current().client
    }

    /// Makes a credential that is bound to the Site where the present one is not.
    ///
    /// # Errors
    /// [`LoginError`]
    pub async fn log_in(&self) -> Result<(), LoginError> {
        let _turn = self.login.lock().await;
        if self.current().credentials.site_id.is_none() {
            // Whoever logged in anew since the agent started is asked.
            self.make_credential(&Credentials::load()?).await?;
        }
        Ok(())
    }

    /// Makes a new credential where the service does not accept the present one any more.
    ///
    /// # Errors
    /// [`LoginError`]
    pub async fn log_in_again(&self) -> Result<(), LoginError> {
        let refused = self.current();
        let _turn = self.login.lock().await;
        match self.current().client.get_site(self.site_id).await {
            Err(error) if error.code() == Some(ErrorCode::Unauthenticated) => {}
            // Another service of the agent was quicker.
            answer => return answer.map(drop).map_err(Into::into),
        }
        let user = Credentials::load()?;
        if user.api_root != refused.credentials.api_root {
            let (site, user) = (refused.credentials.api_root.to_string(), user.api_root.to_string());
            return Err(LoginError::Elsewhere { site, user });
        }
        self.make_credential(&user).await
    }

    async fn make_credential(&self, user: &Credentials) -> Result<(), LoginError> {
        let tokens = Client::from_credentials(user)?.create_site_token(self.site_id).await?;
        let mut credentials =
            Credentials::new(self.dir.agent_login(), user.api_root.clone(), user.username.clone(), tokens);
        credentials.site_id = Some(self.site_id);
        credentials.save()?;
        let current = Current::new(credentials)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        tracing::info!("the Site has a login of its own now, kept in {}", self.dir.agent_login().display());
        Ok(())
    }

    /// What went wrong in a call, with the remedy where the user has one.
    #[must_use]
    pub fn explain(&self, error: &ClientError) -> String {
        let root = self.root();
        match error.code() {
            Some(ErrorCode::Unauthenticated) => {
                format!("{root} does not accept the Site's login any more; run `copal login`, and it gets a new one")
            }
            None if error.is_transient() => format!("can't reach the service at {root}: {}", root_cause(error)),
            _ => one_line(error),
        }
    }

    /// The service's address.
    #[must_use]
    pub fn root(&self) -> String {
        self.current().credentials.api_root.to_string()
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Current {
    fn new(credentials: Credentials) -> Result<Self, CredentialsError> {
        let client = Client::from_credentials(&credentials)
            .map_err(|error| FileError::Content { path: credentials.file().into(), message: one_line(&error) })?;
        Ok(Self { client, credentials })
    }
}

/// The innermost cause, which says what the network did; what is around it repeats the address.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}

/// An error with its causes in one line.
pub(crate) fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Waits between tries: doubling from a second up to a limit, with jitter, without an end.
#[derive(Clone, Debug)]
pub struct Backoff {
    tries: u32,
    limit: Duration,
}

impl Backoff {
    /// Waits of up to `limit`.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { tries: 0, limit }
    }

    /// The next wait.
    pub fn next_wait(&mut self) -> Duration {
        let base = Duration::from_secs(1).saturating_mul(1 << self.tries.min(10)).min(self.limit);
        self.tries += 1;
        base.mul_f64(rand::random_range(0.5..1.0))
    }

    /// After a success the next wait is short again.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pitfall_078_waits_grow_to_their_limit_and_never_end() {
        let mut backoff = Backoff::new(Duration::from_secs(30));
        let first = backoff.next_wait();
        assert!(first >= Duration::from_millis(500) && first <= Duration::from_secs(1));
        for _ in 0..10_000 {
            assert!(backoff.next_wait() <= Duration::from_secs(30));
        }
        assert!(backoff.next_wait() >= Duration::from_secs(15));
        backoff.reset();
        assert!(backoff.next_wait() <= Duration::from_secs(1));
    }
}
