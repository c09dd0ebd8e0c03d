//! Users, the keys that sign their tokens, and their login attempts.

use std::time::Duration;

use chrono::TimeDelta;
use copal_schemas::{UserId, user::User};
use sqlx::{PgConnection, prelude::FromRow};

use crate::error::{ApiError, ApiResult};

/// The advisory lock under which the first signing key is made.
const SIGNING_KEYS_LOCK: i64 = 0x636f_7061_6c01;

/// A user with what a login needs.
#[derive(FromRow)]
pub(crate) struct Account {
    pub(crate) id: UserId,
    pub(crate) username: String,
    pub(crate) password_hash: Option<String>,
}

/// A key that verifies tokens.
#[derive(FromRow)]
pub(crate) struct SigningKey {
    pub(crate) kid: String,
    pub(crate) secret: Vec<u8>,
    /// Seconds since it was made.
    age_sec: f64,
}

impl SigningKey {
    /// How long ago it was made.
    pub(crate) fn age(&self) -> TimeDelta {
        TimeDelta::seconds(self.age_sec as i64)
    }
}

/// Makes an account; 400 when the name is taken.
pub(crate) async fn create(tx: &mut PgConnection, username: &str, password_hash: &str) -> ApiResult<User> {
    // `do nothing` rather than an error, which Postgres would log with the name.
    let id = sqlx::query_scalar(
        "insert into users (username, password_hash) values ($1, $2) \
         on conflict on constraint users_username_key do nothing returning id",
    )
    .bind(username)
    .bind(password_hash)
    .fetch_optional(tx)
    .await?
    .ok_or_else(|| ApiError::conflict(format!("the user name {username:?} is taken; choose another")))?;
    Ok(User { id, username: username.into() })
}

/// The account of a name.
pub(crate) async fn find(tx: &mut PgConnection, username: &str) -> ApiResult<Option<Account>> {
    let account = sqlx::query_as("select id, username, password_hash from users where username = $1")
        .bind(username)
        .fetch_optional(tx)
        .await?;
    Ok(account)
}

/// The name of an account.
pub(crate) async fn name_of(tx: &mut PgConnection, id: UserId) -> ApiResult<String> {
    let name = sqlx::query_scalar("select username from users where id = $1").bind(id).fetch_optional(tx).await?;
    name.ok_or_else(|| ApiError::unauthenticated("the account does not exist any more"))
}

/// The keys that are not retired, the newest first.
pub(crate) async fn signing_keys(tx: &mut PgConnection) -> ApiResult<Vec<SigningKey>> {
    let keys = sqlx::query_as(
        "select kid, secret, extract(epoch from now() - created_at)::float8 as age_sec \
         from signing_keys where retired_at is null order by created_at desc, kid limit 100",
    )
    .fetch_all(tx)
    .await?;
    Ok(keys)
}

/// Keeps other processes from making the first key at the same time, until the transaction ends.
pub(crate) async fn lock_signing_keys(tx: &mut PgConnection) -> ApiResult<()> {
    sqlx::query("select pg_advisory_xact_lock($1)").bind(SIGNING_KEYS_LOCK).execute(tx).await?;
    Ok(())
}

/// Retires keys that were made longer than `age` ago.
pub(crate) async fn retire_signing_keys(tx: &mut PgConnection, age: TimeDelta) -> ApiResult<()> {
    sqlx::query(
        "update signing_keys set retired_at = now() \
         where retired_at is null and created_at <= now() - make_interval(secs => $1)",
    )
    .bind(age.as_seconds_f64())
    .execute(tx)
    .await?;
    Ok(())
}

/// Stores a new key, which signs from now on.
pub(crate) async fn add_signing_key(tx: &mut PgConnection, kid: &str, secret: &[u8]) -> ApiResult<()> {
    sqlx::query("insert into signing_keys (kid, secret) values ($1, $2)").bind(kid).bind(secret).execute(tx).await?;
    Ok(())
}

/// Counts a login attempt for each subject: gives the rows' ids, and how many attempts each
/// subject had within `window` before. Older ones of the subjects are removed on the way.
pub(crate) async fn count_login_attempt(
    tx: &mut PgConnection,
    subjects: &[String],
    window: Duration,
) -> ApiResult<(Vec<i64>, Vec<i64>)> {
    let rows: Vec<(i64, i64)> = sqlx::query_as(
        "with old as (
             delete from login_failures
             where subject = any($1) and failed_at < now() - make_interval(secs => $2)
         ), counted as (
             select subject, position,
                    (select count(*) from login_failures f
                     where f.subject = s.subject and failed_at >= now() - make_interval(secs => $2)) as before
             from unnest($1::text[]) with ordinality as s (subject, position)
         ), added as (
             insert into login_failures (subject) select subject from counted returning id, subject
         )
         select id, before from added join counted using (subject) order by position",
    )
    .bind(subjects)
    .bind(window.as_secs_f64())
    .fetch_all(tx)
    .await?;
    Ok(rows.into_iter().unzip())
}

/// Removes what counts no more.
pub(crate) async fn tidy_login_attempts(tx: &mut PgConnection, window: Duration) -> ApiResult<()> {
    sqlx::query("delete from login_failures where failed_at < now() - make_interval(secs => $1)")
        .bind(window.as_secs_f64())
        .execute(tx)
        .await?;
    Ok(())
}

/// Takes back what [`count_login_attempt`] counted.
pub(crate) async fn forget_login_attempt(tx: &mut PgConnection, ids: &[i64]) -> ApiResult<()> {
    sqlx::query("delete from login_failures where id = any($1)").bind(ids).execute(tx).await?;
    Ok(())
}
