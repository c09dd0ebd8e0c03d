//! Passwords: argon2id hashes, computed away from the workers that serve requests.

use std::{sync::LazyLock, thread};

use argon2::{
    Argon2,
    password_hash::{PasswordHasher as _, PasswordVerifier as _, phc::PasswordHash},
};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::Semaphore;

use crate::error::{ApiError, ApiResult};

/// Each hash takes tens of milliseconds of a core and 19 MiB: as many at a time as there are cores.
static AT_A_TIME: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(thread::available_parallelism().map_or(2, usize::from)));

/// What an unknown user's password is checked against, so that an answer takes as long as a known
/// one's and user names can't be guessed by time.
static NOBODY: LazyLock<String> = LazyLock::new(|| hash_now(b"nobody has this password").unwrap_or_default());

/// The hash of a password, in PHC format.
///
/// # Errors
/// When the hash can't be computed, which is a fault of the service.
pub(crate) async fn hash(password: SecretString) -> ApiResult<String> {
    aside(&AT_A_TIME, move || hash_now(password.expose_secret().as_bytes())).await?
}

/// Whether the password has the stored hash; false where there is none, after as much time.
///
/// # Errors
/// When the hash can't be computed, which is a fault of the service.
pub(crate) async fn verify(password: SecretString, stored: Option<String>) -> ApiResult<bool> {
    aside(&AT_A_TIME, move || {
        let text = stored.as_ref().unwrap_or_else(|| &NOBODY);
        let hash = PasswordHash::new(text).map_err(|error| ApiError::internal(anyhow::anyhow!("{error}")))?;
        let fits = Argon2::default().verify_password(password.expose_secret().as_bytes(), &hash).is_ok();
        Ok(fits && stored.is_some())
    })
    .await?
}

fn hash_now(password: &[u8]) -> ApiResult<String> {
    let hash = Argon2::default().hash_password(password);
    hash.map(|hash| hash.to_string()).map_err(|error| ApiError::internal(anyhow::anyhow!("{error}")))
}

async fn aside<T: Send + 'static>(
    turns: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    let turn = turns.acquire().await.map_err(ApiError::internal)?;
    // The turn ends with the work, also when nobody waits for its outcome any more.
    let work = move || {
        let done = work();
        drop(turn);
        done
    };
    tokio::task::spawn_blocking(work).await.map_err(ApiError::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_password_itself_fits() {
        let stored = hash("correct horse".into()).await.unwrap();
        assert!(stored.starts_with("$argon2id$"));
        assert!(verify("correct horse".into(), Some(stored.clone())).await.unwrap());
        assert!(!verify("Correct horse".into(), Some(stored)).await.unwrap());
        assert!(!verify("nobody has this password".into(), None).await.unwrap());
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_does_not_let_more_work_in() {
        static ONE: Semaphore = Semaphore::const_new(1);
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let work = tokio::spawn(aside(&ONE, move || {
            let _ = begun.send(());
            let _ = ended.recv();
        }));
        has_begun.await.unwrap();
        work.abort();
        assert!(work.await.unwrap_err().is_cancelled());
        assert_eq!(ONE.available_permits(), 0, "the turn ended before the work");
        drop(end);
        drop(ONE.acquire().await.unwrap());
    }
}
