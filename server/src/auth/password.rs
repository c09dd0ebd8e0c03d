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
    aside(move || hash_now(password.expose_secret().as_bytes())).await?
}

/// Whether the password has the stored hash; false where there is none, after as much time.
///
/// # Errors
/// When the hash can't be computed, which is a fault of the service.
pub(crate) async fn verify(password: SecretString, stored: Option<String>) -> ApiResult<bool> {
    aside(move || {
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

async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> ApiResult<T> {
    let _turn = AT_A_TIME.acquire().await.map_err(ApiError::internal)?;
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
}
