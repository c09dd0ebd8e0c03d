//! Keeps a client's access token good: renewed shortly before it lapses and when the service refuses it.
//!
//! Tokens live in a file that several processes share. A refresh token is good until its successor is used,
//! so whoever renews takes the file's lock, reads again, and saves before it uses: a crash or a lost
//! answer at any point leaves a file with which the next one goes on. Without the lock nothing breaks
//! either, since the service allows for two at the same moment.

use std::{
    sync::{Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use chrono::Utc;
use secrecy::{ExposeSecret, SecretString};

use super::Client;
use crate::{Credentials, credentials::CredentialsError, file_lock};

/// The least time between two tries because the token lapses soon, also for a clock that is so far ahead that
/// every token seems to.
const DUE_GAP: Duration = Duration::from_secs(60);
/// The least time between two tries because the service refused the token.
const REFUSED_GAP: Duration = Duration::from_secs(2);

/// The credentials of a client and of its clones.
#[derive(Debug)]
pub(super) struct Keeper {
    kept: RwLock<Credentials>,
    /// Held while one request renews; the others wait for what it gets.
    turn: tokio::sync::Mutex<()>,
    last_try: Mutex<Option<Instant>>,
}

impl Keeper {
    pub(super) fn new(credentials: Credentials) -> Self {
        Self { kept: RwLock::new(credentials), turn: tokio::sync::Mutex::new(()), last_try: Mutex::new(None) }
    }

    /// What is known now.
    pub(super) fn credentials(&self) -> Credentials {
        self.kept.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The token for a request, renewed where it lapses soon. One that can't be renewed is given as it is: the
    /// service decides.
    pub(super) async fn token(&self, client: &Client) -> SecretString {
        let known = self.credentials();
        if !known.are_due(Utc::now()) {
            return known.token;
        }
        self.renew(client, &known.token, DUE_GAP).await;
        self.credentials().token
    }

    /// Another token than the one that the service refused; `None` when there is none.
    pub(super) async fn replace(&self, client: &Client, refused: &SecretString) -> Option<SecretString> {
        self.renew(client, refused, REFUSED_GAP).await;
        Some(self.credentials().token).filter(|token| !is_same(token, refused))
    }

    fn may_try(&self, gap: Duration) -> bool {
        let last = self.last_try.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_none_or(|last| last.elapsed() >= gap)
    }

    /// Gets another token than `old`: from the file, where another process has left one, or from the service.
    async fn renew(&self, client: &Client, old: &SecretString, gap: Duration) {
        let _turn = self.turn.lock().await;
        let known = self.credentials();
        if !is_same(&known.token, old) || !self.may_try(gap) {
            return;
        }
        let _lock = file_lock::take(known.file()).await;
        let stored = match Credentials::read(known.file()) {
            Ok(stored) if stored.are_of(&known) => stored,
            // Another account is logged in here now: its file is not this client's to change.
            Ok(_) => return,
            // Logged out.
            Err(CredentialsError::Missing(_)) => return,
            Err(error) => {
                tracing::warn!("can't renew the login of {}: {error}", known.username);
                return;
            }
        };
        if !is_same(&stored.token, old) && !stored.are_due(Utc::now()) {
            return self.keep(stored);
        }
        let Some(refresh_token) = stored.refresh_token.clone() else { return self.keep(stored) };
        *self.last_try.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        match client.renew(&refresh_token).await {
            Ok(tokens) => {
                let mut renewed = stored.renewed(tokens);
                tracing::debug!("renewed the login of {}; good until {}", renewed.username, renewed.token_expiry);
                if let Err(error) = renewed.save() {
                    tracing::warn!("can't keep the renewed login: {error}");
                    // The file's one stays good as long as its successor is never used.
                    renewed.refresh_token = stored.refresh_token;
                }
                self.keep(renewed);
            }
            Err(error) => {
                tracing::warn!("can't renew the login of {} at {}: {error}", stored.username, stored.api_root);
                self.keep(stored);
            }
        }
    }

    fn keep(&self, credentials: Credentials) {
        *self.kept.write().unwrap_or_else(PoisonError::into_inner) = credentials;
    }
}

fn is_same(one: &SecretString, other: &SecretString) -> bool {
    one.expose_secret() == other.expose_secret()
}
