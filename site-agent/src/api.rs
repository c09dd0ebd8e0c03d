//! The agent's way to the service: a client whose credentials are read again when the user logs in
//! anew, waits between tries, and sentences about what went wrong.

use std::{
    fs,
    sync::{PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use chrono::Utc;
use copal_client::{Client, ClientError, Credentials, credentials::CredentialsError};
use copal_schemas::problem::ErrorCode;

/// The service, for one user.
pub struct Api {
    current: RwLock<Current>,
}

struct Current {
    client: Client,
    credentials: Credentials,
    stamp: Option<SystemTime>,
}

impl Api {
    /// Reads the user's credentials.
    ///
    /// # Errors
    /// When nobody has logged in, or the file can't be used.
    pub fn load() -> Result<Self, CredentialsError> {
        Ok(Self { current: RwLock::new(Current::load()?) })
    }

    /// The client, with the newest credentials.
    #[must_use]
    pub fn client(&self) -> Client {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        if current.stamp == stamp() {
            return current.client.clone();
        }
        drop(current);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        // A file that can't be read now leaves the credentials that worked before.
        if let Ok(newer) = Current::load() {
            *current = newer;
        }
        current.client.clone()
    }

    /// What went wrong in a call, with the remedy where the user has one.
    #[must_use]
    pub fn explain(&self, error: &ClientError) -> String {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        match error.code() {
            Some(ErrorCode::Unauthenticated) if current.credentials.token_expiry <= Utc::now() => format!(
                "the login at {} lapsed at {}; run `copal login`",
                current.credentials.api_root,
                current.credentials.token_expiry.format("%Y-%m-%d %H:%M UTC")
            ),
            Some(ErrorCode::Unauthenticated) => {
                format!("{} does not accept the login any more; run `copal login`", current.credentials.api_root)
            }
            None if error.is_transient() => {
                format!("can't reach the service at {}: {}", current.credentials.api_root, root_cause(error))
            }
            _ => one_line(error),
        }
    }

    /// The service's address.
    #[must_use]
    pub fn root(&self) -> String {
        self.current.read().unwrap_or_else(PoisonError::into_inner).credentials.api_root.to_string()
    }
}

impl Current {
    fn load() -> Result<Self, CredentialsError> {
        let stamp = stamp();
        let credentials = Credentials::load()?;
        let client = Client::from_credentials(&credentials).map_err(|error| {
            CredentialsError::File(copal_client::site_dir::FileError::Content {
                path: Credentials::path(),
                message: one_line(&error),
            })
        })?;
        Ok(Self { client, credentials, stamp })
    }
}

fn stamp() -> Option<SystemTime> {
    fs::metadata(Credentials::path()).and_then(|meta| meta.modified()).ok()
}

/// The innermost cause, which says what the network did; what is around it repeats the address.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}

/// An error with its causes in one line.
fn one_line(error: &dyn std::error::Error) -> String {
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
