//! What a Site's agent has to stage now: the transfers whose Job has come so far that it waits for them.

use copal_schemas::{
    SiteId,
    transfer::{DueTransfer, TransferState},
};
use sqlx::{FromRow, PgConnection};

use super::{
    scope::Scope,
    transfers::{TransferRow, transfer_columns},
};
use crate::error::ApiResult;

#[derive(FromRow)]
struct DueRow {
    #[sqlx(flatten)]
    transfer: TransferRow,
    workdir: String,
}

/// The transfers of a Site in these states that a Job waits for, oldest first.
///
/// # Errors
/// The database's.
pub async fn due(
    conn: &mut PgConnection,
    scope: Scope,
    site: SiteId,
    states: &[TransferState],
    limit: i64,
) -> ApiResult<Vec<DueTransfer>> {
    // Jobs first: few of them wait for staging, while every Job that waits for parents has pending transfers.
    const SQL: &str = concat!(
        "select ",
        transfer_columns!(),
        ", d.workdir from jobs j join transfers t on t.job_id = j.id join job_details d on d.job_id = j.id \
         where j.owner_id = $1 and j.site_id = $2 and ($3::bigint is null or j.site_id = $3) \
         and j.state in ('READY', 'POSTPROCESSED') \
         and t.owner_id = $1 and t.state = any($4) \
         and t.direction = (case when j.state = 'READY' then 'in' else 'out' end)::transfer_direction \
         and t.app_id <> all(array(select app_id from deleted_apps where owner_id = $1)) \
         order by t.id limit $5"
    );
    let rows: Vec<DueRow> = sqlx::query_as(SQL)
        .bind(scope.owner)
        .bind(site)
        .bind(scope.site)
        .bind(states)
        .bind(limit)
        .fetch_all(conn)
        .await?;
    Ok(rows.into_iter().map(|row| DueTransfer { transfer: row.transfer.into(), workdir: row.workdir }).collect())
}
