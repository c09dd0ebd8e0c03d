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

/// The Site, $2, if it is that of the owner, $1, and of the caller, who may be bound to one, $3; and that its App is there.
///
/// The planner, which may not know yet of what was just made, must not be misled to other indexes than those that begin
/// with the Site. So the owner is not named, who is the Site's; and how many transfers are of gone Apps is hidden in a
/// `coalesce`: where all are of one App, the planner would take it for the one that is gone.
macro_rules! at_site {
    () => {
        "t.site_id = (select id from sites where id = $2 and owner_id = $1 and ($3::bigint is null or id = $3)) \
         and coalesce(t.app_id <> all(array(select app_id from deleted_apps where owner_id = $1)), true) "
    };
}

/// The first due transfer of each direction and location. From one to the next the index of due transfers is entered
/// anew, so that this reads a row for each, however many are due.
macro_rules! groups {
    () => {
        concat!(
            "with recursive groups as ((select t.direction, t.location_alias, t.due_at, t.id from transfers t \
             where t.due_at is not null and ",
            at_site!(),
            "order by t.direction, t.location_alias, t.due_at, t.id limit 1) \
             union all select n.* from groups g cross join lateral \
             (select t.direction, t.location_alias, t.due_at, t.id from transfers t where t.due_at is not null and ",
            at_site!(),
            "and (t.direction, t.location_alias) > (g.direction, g.location_alias) \
             order by t.direction, t.location_alias, t.due_at, t.id limit 1) n) "
        )
    };
}

#[derive(FromRow)]
struct DueRow {
    #[sqlx(flatten)]
    transfer: TransferRow,
    workdir: String,
}

/// The transfers of a Site in these states that a Job waits for: those that are begun, then those that have been due for
/// longest. None that is done, or not released yet, is waited for. For [`super::transact_by_index`].
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
    // Pending ones are found by the index of due transfers. Of the others few are begun at a time, whose Jobs are looked at.
    // They are looked up a state at a time, behind `offset 0`: by a list of states the planner, where it knows of none in
    // them, would look through all that are open, as it would by the state of most transfers that it knows
    // (`transact_by_index`).
    const SQL: &str = concat!(
        groups!(),
        ", begun as materialized (select t.* from unnest(array_remove($4, 'pending')) as wanted(state) \
         cross join lateral (select t.id, t.job_id, t.direction from transfers t \
         where t.state not in ('done', 'awaiting_job') and t.state = wanted.state and ",
        at_site!(),
        "offset 0) t), found as (select n.id, n.due_at from groups g cross join lateral (select t.id, t.due_at from transfers t \
         where t.due_at is not null and ",
        at_site!(),
        "and t.direction = g.direction and t.location_alias = g.location_alias \
         order by t.due_at, t.id limit $5) n where 'pending' = any($4) \
         union all select b.id, null from begun b where (select j.state from jobs j where j.id = b.job_id) \
         = (case b.direction when 'in' then 'READY' else 'POSTPROCESSED' end)::job_state) \
         select ",
        transfer_columns!(),
        ", (select workdir from job_details d where d.job_id = t.job_id) as workdir from transfers t \
         where t.id = any(array(select id from found order by due_at nulls first, id limit $5)) \
         order by t.due_at nulls first, t.id"
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

/// Takes pending transfers of a Site that a Job waits for, of the location and direction of the one that has been due for
/// longest: they are active from now on, with the batch's name as `task_id`. Whoever asks at the same time gets others.
///
/// # Errors
/// The database's.
pub async fn claim(conn: &mut PgConnection, scope: Scope, claim: &TransferClaim) -> ApiResult<Vec<DueTransfer>> {
    // Rows that somebody else is about to take are passed over: nobody waits here, so nothing can be locked crosswise.
    const SQL: &str = concat!(
        groups!(),
        ", first as materialized (select direction, location_alias from groups order by due_at, id limit 1) \
         update transfers t set state = 'active', task_id = $5, due_at = null where t.id = any(array(\
         select t.id from transfers t where t.due_at is not null and ",
        at_site!(),
        "and t.direction = (select direction from first) and t.location_alias = (select location_alias from first) \
         order by t.due_at, t.id limit $4 for update skip locked)) returning ",
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
