//! The limit on login attempts. Attempts are counted in the database, so that all processes count
//! together; an attempt that succeeds does not count.

use std::{net::IpAddr, time::Duration};

use sqlx::PgPool;

use crate::{
    db,
    error::{ApiError, ApiResult},
};

/// Attempts are remembered this long.
pub(crate) const WINDOW: Duration = Duration::from_secs(300);

/// Failed attempts in the window for one user from one address. Guessing stops here; the user can
/// still log in from elsewhere, so that nobody can lock a user out.
const PER_USER_AND_ADDRESS: i64 = 20;
/// For one user from all addresses together.
const PER_USER: i64 = 200;
/// From one address for all users together; many users may share a login node.
const PER_ADDRESS: i64 = 500;

/// An attempt that was counted and not yet decided.
pub(crate) struct Attempt(Vec<i64>);

/// Counts an attempt before the password is looked at, so that attempts made at the same time
/// count too.
///
/// # Errors
/// 429 when there were too many.
pub(crate) async fn begin(pool: &PgPool, username: &str, address: Option<IpAddr>) -> ApiResult<Attempt> {
    let address = address.map_or_else(|| "unknown".to_owned(), |address| address.to_string());
    let subjects = [format!("both {address} {username}"), format!("user {username}"), format!("address {address}")];
    let mut connection = pool.acquire().await?;
    let (ids, counts) = db::users::count_login_attempt(&mut connection, &subjects, WINDOW).await?;
    let limits = [PER_USER_AND_ADDRESS, PER_USER, PER_ADDRESS];
    let attempt = Attempt(ids);
    if counts.iter().zip(limits).any(|(count, limit)| *count >= limit) {
        // A refused attempt tells nothing and does not count: a client that tries again and again
        // is let in once its earlier attempts are forgotten.
        db::users::forget_login_attempt(&mut connection, &attempt.0).await?;
        return Err(ApiError::rate_limited(
            format!("too many failed logins; try again in {} minutes", WINDOW.as_secs() / 60),
            WINDOW,
        ));
    }
    Ok(attempt)
}

impl Attempt {
    /// The password was right: the attempt does not count.
    ///
    /// # Errors
    /// When the database does not answer.
    pub(crate) async fn succeeded(self, pool: &PgPool) -> ApiResult<()> {
        let mut connection = pool.acquire().await?;
        db::users::forget_login_attempt(&mut connection, &self.0).await
    }
}
