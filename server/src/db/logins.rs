//! Logins, refresh tokens, device codes and the secrets of launchers. Secrets are known by hash only.

use chrono::TimeDelta;
use copal_schemas::{
    BatchJobId, SiteId, Timestamp, UserId,
    user::{LoginInfo, LoginKind},
};
use sqlx::{PgConnection, prelude::FromRow};
use uuid::Uuid;

use crate::{
    auth::{LONGEST_TOKEN_LIFE, LoginId},
    error::ApiResult,
};

/// A refresh token whose successor has been used may come once more within this time: two programs
/// of one user renew at the same moment, or an answer is lost.
const REUSE_GRACE_SEC: f64 = 600.0;

/// A launcher's secret may come once more within this time, since the answer may have been lost.
const EXCHANGE_GRACE_SEC: f64 = 60.0;

/// Lapsed device codes are kept this long, so that a late caller is told that they lapsed or were denied.
const DEVICE_GRACE_SEC: f64 = 1800.0;

/// A login to be stored.
pub(crate) struct NewLogin<'a> {
    pub(crate) user_id: UserId,
    pub(crate) kind: LoginKind,
    pub(crate) site_id: Option<SiteId>,
    pub(crate) batch_job_id: Option<BatchJobId>,
    pub(crate) client: &'a str,
    pub(crate) life: TimeDelta,
}

/// Stores a login.
pub(crate) async fn create(tx: &mut PgConnection, login: &NewLogin<'_>) -> ApiResult<LoginId> {
    let id = sqlx::query_scalar(
        "insert into logins (user_id, kind, site_id, batch_job_id, client, expires_at) \
         values ($1, $2, $3, $4, $5, now() + make_interval(secs => $6)) returning id",
    )
    .bind(login.user_id)
    .bind(login.kind)
    .bind(login.site_id)
    .bind(login.batch_job_id)
    .bind(login.client)
    .bind(login.life.as_seconds_f64())
    .fetch_one(tx)
    .await?;
    Ok(id)
}

/// The user's logins that are good, the newest first.
pub(crate) async fn list(tx: &mut PgConnection, user: UserId, current: LoginId) -> ApiResult<Vec<LoginInfo>> {
    #[derive(FromRow)]
    struct Row {
        id: i64,
        kind: LoginKind,
        site_id: Option<SiteId>,
        batch_job_id: Option<BatchJobId>,
        client: String,
        created_at: Timestamp,
        last_used_at: Timestamp,
        expires_at: Timestamp,
    }
    let rows: Vec<Row> = sqlx::query_as(
        "select id, kind, site_id, batch_job_id, client, created_at, last_used_at, expires_at from logins \
         where user_id = $1 and revoked_at is null and expires_at > now() order by id desc limit 10000",
    )
    .bind(user)
    .fetch_all(tx)
    .await?;
    let info = |row: Row| LoginInfo {
        id: row.id,
        kind: row.kind,
        site_id: row.site_id,
        batch_job_id: row.batch_job_id,
        client: row.client,
        created_at: row.created_at,
        last_used_at: row.last_used_at,
        expires_at: row.expires_at,
        current: row.id == current.0,
    };
    Ok(rows.into_iter().map(info).collect())
}

/// The logins that were revoked and whose tokens have not all lapsed.
pub(crate) async fn revoked(tx: &mut PgConnection) -> ApiResult<Vec<LoginId>> {
    // No token is made for a login after its end.
    let ids = sqlx::query_scalar(
        "select id from logins where revoked_at > now() - make_interval(secs => $1) and expires_at > now()",
    )
    .bind(LONGEST_TOKEN_LIFE.as_seconds_f64())
    .fetch_all(tx)
    .await?;
    Ok(ids)
}

/// Ends a login.
pub(crate) async fn revoke(tx: &mut PgConnection, id: LoginId) -> ApiResult<()> {
    sqlx::query("update logins set revoked_at = coalesce(revoked_at, now()) where id = $1")
        .bind(id)
        .execute(tx)
        .await?;
    Ok(())
}

/// Ends one of the user's logins; whether there was such a one.
pub(crate) async fn revoke_of_user(tx: &mut PgConnection, user: UserId, id: LoginId) -> ApiResult<bool> {
    let rows = sqlx::query(
        "update logins set revoked_at = now() where id = $1 and user_id = $2 and revoked_at is null \
         and expires_at > now()",
    )
    .bind(id)
    .bind(user)
    .execute(tx)
    .await?;
    Ok(rows.rows_affected() > 0)
}

/// Ends the login that a refresh token belongs to.
pub(crate) async fn revoke_by_refresh_token(tx: &mut PgConnection, hash: &[u8]) -> ApiResult<()> {
    sqlx::query(
        "update logins set revoked_at = coalesce(revoked_at, now()) \
         where id = (select login_id from refresh_tokens where token_hash = $1)",
    )
    .bind(hash)
    .execute(tx)
    .await?;
    Ok(())
}

/// Ends the credentials of a Site that is deleted: its agent's and its launchers'.
pub(crate) async fn revoke_of_site(tx: &mut PgConnection, site: SiteId) -> ApiResult<()> {
    sqlx::query("update logins set revoked_at = now() where site_id = $1 and revoked_at is null")
        .bind(site)
        .execute(tx)
        .await?;
    Ok(())
}

/// Ends the credentials of launchers whose BatchJobs are over.
pub(crate) async fn revoke_of_batch_jobs(tx: &mut PgConnection, batch_jobs: &[BatchJobId]) -> ApiResult<()> {
    sqlx::query("update logins set revoked_at = now() where batch_job_id = any($1) and revoked_at is null")
        .bind(batch_jobs)
        .execute(&mut *tx)
        .await?;
    sqlx::query("delete from launcher_secrets where batch_job_id = any($1)").bind(batch_jobs).execute(tx).await?;
    Ok(())
}

/// Stores a refresh token of a login; `predecessor` was exchanged for it.
pub(crate) async fn add_refresh_token(
    tx: &mut PgConnection,
    login: LoginId,
    hash: &[u8],
    predecessor: Option<&[u8]>,
) -> ApiResult<()> {
    sqlx::query("insert into refresh_tokens (token_hash, login_id, predecessor) values ($1, $2, $3)")
        .bind(hash)
        .bind(login)
        .bind(predecessor)
        .execute(tx)
        .await?;
    Ok(())
}

/// What a refresh token is good for.
pub(crate) enum Renewal {
    /// Its login goes on.
    Login(StoredLogin),
    /// Its login is over, or there is no such token.
    Unknown,
    /// Its successor was used long ago.
    Reused(LoginId),
}

/// A login whose tokens are made anew.
#[derive(FromRow)]
pub(crate) struct StoredLogin {
    pub(crate) id: LoginId,
    pub(crate) user_id: UserId,
    pub(crate) kind: LoginKind,
    pub(crate) site_id: Option<SiteId>,
    pub(crate) batch_job_id: Option<BatchJobId>,
    /// Of the BatchJob, where it is bound to one.
    pub(crate) wall_time_min: Option<i32>,
}

/// Takes a refresh token: its login lives on for `life` from now, and the token that was exchanged
/// for it is spent.
pub(crate) async fn renew(tx: &mut PgConnection, hash: &[u8], life: TimeDelta) -> ApiResult<Renewal> {
    let found: Option<(LoginId, Option<Vec<u8>>, bool)> = sqlx::query_as(
        "select login_id, predecessor, coalesce(spent_at < now() - make_interval(secs => $2), false) \
         from refresh_tokens where token_hash = $1 for update",
    )
    .bind(hash)
    .bind(REUSE_GRACE_SEC)
    .fetch_optional(&mut *tx)
    .await?;
    let Some((login, predecessor, reused)) = found else { return Ok(Renewal::Unknown) };
    if reused {
        return Ok(Renewal::Reused(login));
    }
    let login: Option<StoredLogin> = sqlx::query_as(
        "update logins l set last_used_at = now(), \
             expires_at = greatest(expires_at, now() + make_interval(secs => $2)) \
         where id = $1 and revoked_at is null and expires_at > now() \
         returning id, user_id, kind, site_id, batch_job_id, \
             (select wall_time_min from batch_jobs b where b.id = l.batch_job_id) as wall_time_min",
    )
    .bind(login)
    .bind(life.as_seconds_f64())
    .fetch_optional(&mut *tx)
    .await?;
    let Some(login) = login else { return Ok(Renewal::Unknown) };
    if let Some(predecessor) = predecessor {
        sqlx::query("update refresh_tokens set spent_at = coalesce(spent_at, now()) where token_hash = $1")
            .bind(predecessor)
            .execute(tx)
            .await?;
    }
    Ok(Renewal::Login(login))
}

/// Stores a secret for the launcher of a BatchJob.
pub(crate) async fn add_launcher_secret(tx: &mut PgConnection, batch_job: BatchJobId, hash: &[u8]) -> ApiResult<()> {
    sqlx::query("insert into launcher_secrets (secret_hash, batch_job_id) values ($1, $2)")
        .bind(hash)
        .bind(batch_job)
        .execute(tx)
        .await?;
    Ok(())
}

/// The BatchJob that a launcher's secret is for.
#[derive(FromRow)]
pub(crate) struct LauncherClaim {
    pub(crate) user_id: UserId,
    pub(crate) username: String,
    pub(crate) site_id: SiteId,
    pub(crate) batch_job_id: BatchJobId,
    pub(crate) wall_time_min: i32,
    /// The credential that an exchange a moment ago gave, whose answer may have been lost.
    pub(crate) earlier: Option<LoginId>,
}

/// Takes a launcher's secret: `None` when it is unknown, was taken before, or its BatchJob is over.
pub(crate) async fn take_launcher_secret(tx: &mut PgConnection, hash: &[u8]) -> ApiResult<Option<LauncherClaim>> {
    let claim = sqlx::query_as(
        "update launcher_secrets s set exchanged_at = coalesce(s.exchanged_at, now()) \
         from batch_jobs b join users u on u.id = b.owner_id \
         where s.secret_hash = $1 and b.id = s.batch_job_id and b.state not in ('finished', 'submit_failed') \
           and (s.exchanged_at is null or s.exchanged_at > now() - make_interval(secs => $2)) \
         returning u.id as user_id, u.username, b.site_id, b.id as batch_job_id, b.wall_time_min, \
             s.login_id as earlier",
    )
    .bind(hash)
    .bind(EXCHANGE_GRACE_SEC)
    .fetch_optional(tx)
    .await?;
    Ok(claim)
}

/// Notes the credential that a secret was exchanged for.
pub(crate) async fn bind_launcher_secret(tx: &mut PgConnection, hash: &[u8], login: LoginId) -> ApiResult<()> {
    sqlx::query("update launcher_secrets set login_id = $2 where secret_hash = $1")
        .bind(hash)
        .bind(login)
        .execute(tx)
        .await?;
    Ok(())
}

/// Stores a device login that waits for approval; false when the user code is taken just now.
pub(crate) async fn add_device_login(
    tx: &mut PgConnection,
    device_hash: &[u8],
    user_code: &str,
    client_id: Uuid,
    scope: &str,
    client: &str,
    life: TimeDelta,
) -> ApiResult<bool> {
    sqlx::query("delete from device_logins where expires_at < now() - make_interval(secs => $1)")
        .bind(DEVICE_GRACE_SEC)
        .execute(&mut *tx)
        .await?;
    let added = sqlx::query(
        "insert into device_logins (device_hash, user_code, client_id, scope, client, expires_at) \
         values ($1, $2, $3, $4, $5, now() + make_interval(secs => $6)) \
         on conflict on constraint device_logins_user_code_key do nothing",
    )
    .bind(device_hash)
    .bind(user_code)
    .bind(client_id)
    .bind(scope)
    .bind(client)
    .bind(life.as_seconds_f64())
    .execute(tx)
    .await?;
    Ok(added.rows_affected() > 0)
}

/// The program behind a user code that can still be decided on.
pub(crate) async fn device_client(tx: &mut PgConnection, user_code: &str) -> ApiResult<Option<String>> {
    let client = sqlx::query_scalar(
        "select client from device_logins \
         where user_code = $1 and expires_at > now() and user_id is null and not denied",
    )
    .bind(user_code)
    .fetch_optional(tx)
    .await?;
    Ok(client)
}

/// Approves (with the user) or denies a device login; whether it could still be decided on.
pub(crate) async fn decide_device_login(
    tx: &mut PgConnection,
    user_code: &str,
    approved_by: Option<UserId>,
) -> ApiResult<bool> {
    let decided = sqlx::query(
        "update device_logins set user_id = $2, denied = $2 is null \
         where user_code = $1 and expires_at > now() and user_id is null and not denied",
    )
    .bind(user_code)
    .bind(approved_by)
    .execute(tx)
    .await?;
    Ok(decided.rows_affected() > 0)
}

/// How a device login stands.
#[derive(FromRow)]
pub(crate) struct DeviceState {
    pub(crate) expired: bool,
    pub(crate) denied: bool,
    pub(crate) user_id: Option<UserId>,
    pub(crate) scope: String,
    pub(crate) client: String,
}

/// Looks at a device login and locks it.
pub(crate) async fn device_state(
    tx: &mut PgConnection,
    device_hash: &[u8],
    client_id: Uuid,
) -> ApiResult<Option<DeviceState>> {
    let state = sqlx::query_as(
        "select expires_at <= now() as expired, denied, user_id, scope, client from device_logins \
         where device_hash = $1 and client_id = $2 for update",
    )
    .bind(device_hash)
    .bind(client_id)
    .fetch_optional(tx)
    .await?;
    Ok(state)
}

/// Removes a device login whose token was given.
pub(crate) async fn remove_device_login(tx: &mut PgConnection, device_hash: &[u8]) -> ApiResult<()> {
    sqlx::query("delete from device_logins where device_hash = $1").bind(device_hash).execute(tx).await?;
    Ok(())
}

/// Removes what has lapsed, and refresh tokens that were spent so long ago that nobody sends them.
pub(crate) async fn tidy(tx: &mut PgConnection) -> ApiResult<()> {
    for statement in [
        "delete from logins where expires_at < now() - interval '1 day'",
        "delete from refresh_tokens where spent_at < now() - interval '30 days'",
        "delete from device_logins where expires_at < now() - interval '1 day'",
    ] {
        sqlx::query(statement).execute(&mut *tx).await?;
    }
    Ok(())
}
