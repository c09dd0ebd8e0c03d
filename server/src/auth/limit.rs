//! The limits on login attempts and on what else an address begins without a login. All are counted in the database, so
//! that all processes count together; a login attempt that succeeds does not count.

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

/// What anybody may begin, and which costs the service a hash or a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begun {
    /// An account.
    Account,
    /// A login with a code.
    DeviceLogin,
}

impl Begun {
    /// How it is counted, how often one address may begin it in the window, and its name for people. A course may share
    /// an address.
    const fn limit(self) -> (&'static str, i64, &'static str) {
        match self {
            Self::Account => ("account", 100, "new accounts"),
            Self::DeviceLogin => ("device", 300, "logins with a code"),
        }
    }
}

/// Counts something that an address begins, whatever comes of it.
///
/// # Errors
/// 429 when there was too much.
pub(crate) async fn count(pool: &PgPool, begun: Begun, address: Option<IpAddr>) -> ApiResult<()> {
    let (subject, limit, name) = begun.limit();
    let subject = format!("{subject} {}", text(address));
    admit(pool, [(subject, limit)], &format!("{name} from this address")).await.map(drop)
}

/// Counts an attempt for each of these subjects, each of which has a limit.
async fn admit<const N: usize>(pool: &PgPool, limits: [(String, i64); N], what: &str) -> ApiResult<Attempt> {
    let (subjects, limits): (Vec<String>, Vec<i64>) = limits.into_iter().unzip();
    let mut connection = pool.acquire().await?;
    let (ids, counts) = db::users::count_login_attempt(&mut connection, &subjects, WINDOW).await?;
    if counts.iter().zip(limits).all(|(count, limit)| *count < limit) {
        return Ok(Attempt(ids));
    }
    // A refused attempt tells nothing and does not count: a client that tries again and again
    // is let in once its earlier attempts are forgotten.
    db::users::forget_login_attempt(&mut connection, &ids).await?;
    let minutes = WINDOW.as_secs() / 60;
    Err(ApiError::rate_limited(format!("too many {what}; try again in {minutes} minutes"), WINDOW))
}

fn text(address: Option<IpAddr>) -> String {
    address.map_or_else(|| "unknown".to_owned(), |address| address.to_string())
}

/// An attempt that was counted and not yet decided.
pub(crate) struct Attempt(Vec<i64>);

/// Counts an attempt before the password is looked at, so that attempts made at the same time
/// count too.
///
/// # Errors
/// 429 when there were too many.
pub(crate) async fn begin(pool: &PgPool, username: &str, address: Option<IpAddr>) -> ApiResult<Attempt> {
    let address = text(address);
    let limits = [
        (format!("both {address} {username}"), PER_USER_AND_ADDRESS),
        (format!("user {username}"), PER_USER),
        (format!("address {address}"), PER_ADDRESS),
    ];
    admit(pool, limits, "failed logins").await
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
