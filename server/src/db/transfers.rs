//! TransferItems: listed, updated, and the Jobs that go on when their last one is done.

use std::collections::{HashMap, HashSet};

use copal_schemas::{
    JobId, JobState, JsonObject, SiteId, StringMap, TransferId,
    job_state::Actor,
    page::{MAX_BULK, Page},
    problem::ErrorCode,
    transfer::{Direction, TransferItem, TransferPatch, TransferPatchItem, TransferState},
};
use sqlx::{FromRow, PgConnection, Postgres, QueryBuilder, types::Json};

use super::{
    scope::Scope,
    tags,
    transition::{Ask, Locked, Moves, Which},
};
use crate::{
    error::{ApiError, ApiResult},
    extract::Paging,
};

#[derive(FromRow)]
pub(super) struct TransferRow {
    state: TransferState,
    task_id: String,
    transfer_info: Json<JsonObject>,
    id: TransferId,
    job_id: JobId,
    direction: Direction,
    local_path: String,
    remote_path: String,
    location_alias: String,
    recursive: bool,
}

/// The columns of a [`TransferRow`].
macro_rules! transfer_columns {
    () => {
        "t.state, t.task_id, t.transfer_info, t.id, t.job_id, t.direction, t.local_path, t.remote_path, \
         t.location_alias, t.recursive"
    };
}
pub(super) use transfer_columns;

impl From<TransferRow> for TransferItem {
    fn from(row: TransferRow) -> Self {
        Self {
            state: row.state,
            task_id: row.task_id,
            transfer_info: row.transfer_info.0,
            id: row.id,
            job_id: row.job_id,
            direction: row.direction,
            local_path: row.local_path,
            remote_path: row.remote_path,
            location_alias: row.location_alias,
            recursive: row.recursive,
        }
    }
}

/// Which transfers of a user are meant; everything empty means all.
#[derive(Clone, Debug, Default)]
pub struct TransferFilter {
    /// These.
    pub ids: Vec<TransferId>,
    /// At this Site.
    pub site_id: Option<SiteId>,
    /// Of these Jobs.
    pub job_ids: Vec<JobId>,
    /// In these states.
    pub states: Vec<TransferState>,
    /// This way.
    pub direction: Option<Direction>,
    /// Of Jobs in this state.
    pub job_state: Option<JobState>,
    /// Of Jobs with all of these tags.
    pub tags: StringMap,
}

impl TransferFilter {
    fn push_from(&self, sql: &mut QueryBuilder<Postgres>, scope: Scope) {
        sql.push(" from transfers t where ");
        scope.push(sql, "t");
        scope.push_visible(sql, "t");
        if !self.ids.is_empty() {
            sql.push(" and t.id = any(").push_bind(self.ids.clone()).push(")");
        }
        if let Some(site) = self.site_id {
            sql.push(" and t.site_id = ").push_bind(site);
        }
        if !self.job_ids.is_empty() {
            sql.push(" and t.job_id = any(").push_bind(self.job_ids.clone()).push(")");
        }
        if !self.states.is_empty() {
            if !self.states.iter().any(|state| matches!(state, TransferState::Done | TransferState::AwaitingJob)) {
                // As the partial index has it.
                sql.push(" and t.state not in ('done', 'awaiting_job')");
            }
            sql.push(" and t.state = any(").push_bind(self.states.clone()).push(")");
        }
        if let Some(direction) = self.direction {
            sql.push(" and t.direction = ").push_bind(direction);
        }
        if let Some(state) = self.job_state {
            sql.push(" and exists (select from jobs j where j.id = t.job_id and j.state = ").push_bind(state).push(")");
        }
        tags::push_have(sql, "t.job_id", scope.owner, &self.tags);
    }
}

/// A page of a user's transfers.
///
/// # Errors
/// The database's.
pub async fn list(
    conn: &mut PgConnection,
    scope: Scope,
    filter: &TransferFilter,
    paging: Paging,
) -> ApiResult<Page<TransferItem>> {
    let mut sql = QueryBuilder::new("select count(*)");
    filter.push_from(&mut sql, scope);
    let count: i64 = sql.build_query_scalar().fetch_one(&mut *conn).await?;
    if paging.limit == 0 || paging.offset >= count {
        return Ok(Page { count, results: Vec::new() });
    }
    let mut sql = QueryBuilder::new(concat!("select ", transfer_columns!()));
    filter.push_from(&mut sql, scope);
    sql.push(" order by t.id limit ").push_bind(paging.limit).push(" offset ").push_bind(paging.offset);
    let rows: Vec<TransferRow> = sql.build_query_as().fetch_all(conn).await?;
    Ok(Page { count, results: rows.into_iter().map(TransferItem::from).collect() })
}

/// Transfers of a user in the order of `ids`; those that do not exist are left out.
async fn get_in_order(conn: &mut PgConnection, scope: Scope, ids: &[TransferId]) -> ApiResult<Vec<TransferItem>> {
    const SQL: &str = concat!(
        "select ",
        transfer_columns!(),
        " from unnest($1::bigint[]) with ordinality as u(id, place) join transfers t on t.id = u.id \
          where t.owner_id = $2 and ($3::bigint is null or t.site_id = $3) \
          and t.app_id <> all(array(select app_id from deleted_apps where owner_id = $2)) order by u.place"
    );
    let rows: Vec<TransferRow> =
        sqlx::query_as(SQL).bind(ids).bind(scope.owner).bind(scope.site).fetch_all(conn).await?;
    Ok(rows.into_iter().map(TransferItem::from).collect())
}

/// One transfer of a user.
///
/// # Errors
/// 404 when the user has no such transfer.
pub async fn get(conn: &mut PgConnection, scope: Scope, id: TransferId) -> ApiResult<TransferItem> {
    let found = get_in_order(conn, scope, &[id]).await?.pop();
    found.ok_or_else(|| ApiError::not_found(format!("transfer {id}")))
}

/// Updates one transfer.
///
/// # Errors
/// 404 when the user has no such transfer.
pub async fn update_one(
    conn: &mut PgConnection,
    scope: Scope,
    id: TransferId,
    patch: TransferPatch,
) -> ApiResult<TransferItem> {
    get(&mut *conn, scope, id).await?;
    let updated = update_many(conn, scope, &[TransferPatchItem { id, patch }]).await?.pop();
    updated.ok_or_else(|| ApiError::not_found(format!("transfer {id}")))
}

/// Updates all transfers that match in the same way.
///
/// # Errors
/// 400 when more than 5000 match.
pub async fn update_matching(
    conn: &mut PgConnection,
    scope: Scope,
    filter: &TransferFilter,
    patch: &TransferPatch,
) -> ApiResult<Vec<TransferItem>> {
    let mut sql = QueryBuilder::new("select t.id");
    filter.push_from(&mut sql, scope);
    sql.push(" order by t.id limit ").push_bind(MAX_BULK as i64 + 1);
    let ids: Vec<TransferId> = sql.build_query_scalar().fetch_all(&mut *conn).await?;
    if ids.len() > MAX_BULK {
        return Err(ApiError::new(
            ErrorCode::BulkTooLarge,
            format!("more than {MAX_BULK} transfers match; narrow the filter and update them in parts"),
        ));
    }
    let items: Vec<_> = ids.into_iter().map(|id| TransferPatchItem { id, patch: patch.clone() }).collect();
    update_many(conn, scope, &items).await
}

/// Updates transfers as [`update`] does, and gives them as they are then, in the order of the items.
///
/// # Errors
/// 400 for unknown or doubled ids.
pub async fn update_many(
    conn: &mut PgConnection,
    scope: Scope,
    items: &[TransferPatchItem],
) -> ApiResult<Vec<TransferItem>> {
    update(&mut *conn, scope, items).await?;
    let ids: Vec<TransferId> = items.iter().map(|item| item.id).collect();
    get_in_order(conn, scope, &ids).await
}

/// Updates transfers, each in its own way, all or none, and lets Jobs whose last one is done go on, or fail with
/// the one that failed.
///
/// # Errors
/// 400 for unknown or doubled ids.
pub async fn update(conn: &mut PgConnection, scope: Scope, items: &[TransferPatchItem]) -> ApiResult<()> {
    if items.is_empty() {
        return Ok(());
    }
    let mut errors: HashMap<TransferId, Option<&str>> = HashMap::with_capacity(items.len());
    for item in items {
        if errors.insert(item.id, item.patch.job_error.as_deref()).is_some() {
            return Err(ApiError::conflict(format!("transfer {} is named twice in this call", item.id)));
        }
    }
    let ids: Vec<TransferId> = items.iter().map(|item| item.id).collect();
    // The Jobs are locked first, as everywhere, so that each of two transfers that end at the same
    // time sees the other one.
    let jobs = Locked::take(&mut *conn, Which::OfTransfers(scope, &ids)).await?;
    // One that is pending is due while its Job is in the step that waits for it (`transition/write.rs`): few are, so that
    // a report of those that are done looks at no Job here. In a `coalesce` the owner leads to no index through all of theirs,
    // and the gone Apps do not make the planner believe that no transfer is left, for which it would compare each one of the
    // table with each one of the report.
    const SQL: &str = "update transfers t set state = coalesce(u.state, t.state), \
         task_id = coalesce(u.task_id, t.task_id), transfer_info = coalesce(u.transfer_info, t.transfer_info), \
         due_at = case when coalesce(u.state, t.state) = 'pending' then (select coalesce(t.due_at, statement_timestamp()) \
         from jobs j where j.id = t.job_id \
         and j.state = (case t.direction when 'in' then 'READY' else 'POSTPROCESSED' end)::job_state) end \
         from unnest($1::bigint[], $2::transfer_state[], $3::text[], $4::jsonb[]) as u(id, state, task_id, transfer_info) \
         where t.id = u.id and coalesce(t.owner_id = $5, false) and ($6::bigint is null or t.site_id = $6) \
         and coalesce(t.app_id <> all(array(select app_id from deleted_apps where owner_id = $5)), true) \
         returning t.id, t.job_id, t.direction";
    let updated: Vec<(TransferId, JobId, Direction)> = sqlx::query_as(SQL)
        .bind(&ids)
        .bind(items.iter().map(|item| item.patch.state).collect::<Vec<_>>())
        .bind(items.iter().map(|item| item.patch.task_id.as_deref()).collect::<Vec<_>>())
        .bind(items.iter().map(|item| item.patch.transfer_info.as_ref().map(Json)).collect::<Vec<_>>())
        .bind(scope.owner)
        .bind(scope.site)
        .fetch_all(&mut *conn)
        .await?;
    if updated.len() < ids.len() {
        let known: HashSet<TransferId> = updated.iter().map(|(id, ..)| *id).collect();
        let unknown = ids.iter().find(|id| !known.contains(id)).map_or_else(String::new, TransferId::to_string);
        return Err(ApiError::conflict(format!(
            "transfer {unknown} does not exist, or is not yours; nothing was changed"
        )));
    }
    let mut moves = Moves::read(&mut *conn, jobs).await?;
    for (now, job) in moves.iter_mut() {
        job.follow_transfers(now);
    }
    for (id, job, direction) in updated {
        if let Some(Some(error)) = errors.get(&id)
            && let Some((now, job)) = moves.get_mut(job)
            && job.waits_for(direction)
        {
            let mut data = JsonObject::new();
            data.insert("reason".into(), (*error).into());
            // The table lets the agent make this step out of the two states that wait for transfers.
            let _ = job.ask(now, Actor::Agent, JobState::Failed, Ask { data, ..Ask::default() });
        }
    }
    moves.apply(&mut *conn).await?;
    Ok(())
}
