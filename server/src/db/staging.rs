//! What a Site's agent has to stage now: the transfers whose Job has come so far that it waits for them. They are
//! looked at, or taken.

use copal_schemas::{
    SiteId,
    transfer::{DueTransfer, TransferClaim, TransferState},
};
use sqlx::{FromRow, PgConnection};

use super::{
    scope::Scope,
    transfers::{TransferRow, transfer_columns},
};
use crate::error::ApiResult;

/// What makes a transfer one that its Job waits for. $1 is the owner, $2 the Site, $3 the Site that the caller is bound
/// to. Jobs come first: few of them wait for staging, while every Job that waits for parents has pending transfers.
///
/// A transfer's owner is its Job's and its state is compared as a text, here and below: by the owner or the state itself the
/// planner, which knows nothing yet of what was just made, would look through all open transfers once a Job.
macro_rules! due {
    () => {
        " jobs j join transfers t on t.job_id = j.id \
         where j.owner_id = $1 and j.site_id = $2 and ($3::bigint is null or j.site_id = $3) \
         and j.state in ('READY', 'POSTPROCESSED') \
         and t.direction = (case when j.state = 'READY' then 'in' else 'out' end)::transfer_direction \
         and t.app_id <> all(array(select app_id from deleted_apps where owner_id = $1)) "
    };
}

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
    const SQL: &str = concat!(
        "select ",
        transfer_columns!(),
        ", (select workdir from job_details d where d.job_id = t.job_id) as workdir from",
        due!(),
        "and t.state::text = any($4::transfer_state[]::text[]) order by t.id limit $5"
    );
    let rows: Vec<DueRow> = sqlx::query_as(SQL)
        .bind(scope.owner)
        .bind(site)
        .bind(scope.site)
        .bind(states)
        .bind(limit)
        .fetch_all(conn)
        .await?;
    Ok(rows.into_iter().map(DueRow::into).collect())
}

impl From<DueRow> for DueTransfer {
    fn from(row: DueRow) -> Self {
        Self { transfer: row.transfer.into(), workdir: row.workdir }
    }
}

/// Takes pending transfers of a Site that a Job waits for, the oldest ones of one location and one direction: they are
/// active from now on, with the batch's name as `task_id`. Whoever asks at the same time gets others.
///
/// # Errors
/// The database's.
pub async fn claim(conn: &mut PgConnection, scope: Scope, claim: &TransferClaim) -> ApiResult<Vec<DueTransfer>> {
    // Rows that somebody else is about to take are passed over: nobody waits here, so nothing can be locked crosswise.
    const SQL: &str = concat!(
        "with due as materialized (select t.id, t.location_alias, t.direction from",
        due!(),
        "and t.state::text = 'pending'), \
         first as (select location_alias, direction from due order by id limit 1), \
         mine as (select t.id from due join first on first.location_alias = due.location_alias \
         and first.direction = due.direction join transfers t on t.id = due.id where t.state::text = 'pending' \
         order by due.id limit $4 for update of t skip locked) \
         update transfers t set state = 'active', task_id = $5 from mine where t.id = mine.id returning ",
        transfer_columns!(),
        ", (select workdir from job_details d where d.job_id = t.job_id) as workdir"
    );
    let rows: Vec<DueRow> = sqlx::query_as(SQL)
        .bind(scope.owner)
        .bind(claim.site_id)
        .bind(scope.site)
        .bind(claim.limit)
        .bind(&claim.task_id)
        .fetch_all(conn)
        .await?;
    let mut taken: Vec<DueTransfer> = rows.into_iter().map(DueRow::into).collect();
    taken.sort_unstable_by_key(|due| due.transfer.id);
    Ok(taken)
}
