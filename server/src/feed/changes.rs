//! How Sites and BatchJobs get into the event stream: called inside the transaction that changes
//! them.

use copal_schemas::{BatchJobId, SiteId, UserId};
use sqlx::PgConnection;

use super::{Wake, Wakes};
use crate::error::ApiResult;

/// Records that BatchJobs of a user were made or changed.
///
/// # Errors
/// The database's.
pub async fn batch_jobs_changed(
    conn: &mut PgConnection,
    owner: UserId,
    batch_jobs: &[(SiteId, BatchJobId)],
) -> ApiResult<()> {
    let rows: Vec<(SiteId, i64)> = batch_jobs.iter().map(|(site, id)| (*site, id.0)).collect();
    // A launcher must stop when its BatchJob is to be deleted.
    record(conn, owner, "batch_job", &rows, Wake { signals: true, ..Wake::default() }).await
}

/// Records that a BatchJob of a user was deleted.
///
/// # Errors
/// The database's.
pub async fn batch_job_deleted(conn: &mut PgConnection, owner: UserId, site: SiteId, id: BatchJobId) -> ApiResult<()> {
    record(conn, owner, "batch_job_deleted", &[(site, id.0)], Wake { signals: true, ..Wake::default() }).await
}

/// Records that a Site of a user was made or changed.
///
/// # Errors
/// The database's.
pub async fn site_changed(conn: &mut PgConnection, owner: UserId, site: SiteId) -> ApiResult<()> {
    record(conn, owner, "site", &[(site, site.0)], Wake::default()).await
}

/// Records that a Site of a user was deleted.
///
/// # Errors
/// The database's.
pub async fn site_deleted(conn: &mut PgConnection, owner: UserId, site: SiteId) -> ApiResult<()> {
    record(conn, owner, "site_deleted", &[(site, site.0)], Wake { signals: true, ..Wake::default() }).await
}

async fn record(
    conn: &mut PgConnection,
    owner: UserId,
    kind: &str,
    objects: &[(SiteId, i64)],
    wake: Wake,
) -> ApiResult<()> {
    if objects.is_empty() {
        return Ok(());
    }
    let mut wakes = Wakes::default();
    for (site, _) in objects {
        wakes.add(owner, *site, wake);
    }
    const SQL: &str = "with recorded as (insert into changes (owner_id, kind, site_id, object_id) \
         select $1, $2::text::change_kind, * from unnest($3::bigint[], $4::bigint[])) \
         select pg_notify('copal', payload) from unnest($5::text[]) as payload";
    sqlx::query(SQL)
        .bind(owner)
        .bind(kind)
        .bind(objects.iter().map(|(site, _)| *site).collect::<Vec<_>>())
        .bind(objects.iter().map(|(_, id)| *id).collect::<Vec<_>>())
        .bind(wakes.payloads())
        .execute(conn)
        .await?;
    Ok(())
}

/// Forgets changes that no stream will resume before.
///
/// # Errors
/// The database's.
pub async fn prune(conn: &mut PgConnection) -> ApiResult<u64> {
    const SQL: &str = "delete from changes where created_at < statement_timestamp() - interval '1 day'";
    Ok(sqlx::query(SQL).execute(conn).await?.rows_affected())
}
