//! An owner's updates, cancels and deletes of Jobs.

use std::collections::{BTreeMap, HashSet};

use copal_schemas::{
    BatchJobId, JobId,
    app::{AppParameter, fill_parameters},
    job::{Cancelled, JobPatch, JobPatchItem},
    job_state::Actor,
    page::MAX_BULK,
    problem::FieldError,
};
use serde_json::Value;
use sqlx::{PgConnection, types::Json};

use super::{
    job_checks,
    job_filter::{JobFilter, OrderBy},
    refusals,
    scope::Scope,
    tags,
    transition::{Ask, Locked, Moves, Which},
};
use crate::{
    error::{ApiError, ApiResult},
    extract::Paging,
};

/// Jobs cancelled by one transaction.
const CANCEL_CHUNK: i64 = 5_000;

/// Updates Jobs, each in its own way, all or none. Gives their number.
///
/// # Errors
/// 400 for unknown or doubled ids, 422 with item and field for bad values.
pub async fn update_many(conn: &mut PgConnection, scope: Scope, mut items: Vec<JobPatchItem>) -> ApiResult<i64> {
    let mut errors = Vec::new();
    for (index, item) in items.iter_mut().enumerate() {
        let before = errors.len();
        job_checks::check_patch(&mut item.patch, &mut errors);
        for error in &mut errors[before..] {
            error.loc.splice(0..0, ["body".into(), index.into()]);
        }
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid(errors));
    }
    let mut seen = HashSet::with_capacity(items.len());
    if let Some(doubled) = items.iter().find(|item| !seen.insert(item.id)) {
        return Err(ApiError::conflict(format!("Job {} is named twice in this call", doubled.id)));
    }
    let patches: Vec<(JobId, &JobPatch)> = items.iter().map(|item| (item.id, &item.patch)).collect();
    let ids: Vec<JobId> = items.iter().map(|item| item.id).collect();
    let moves = Moves::lock(&mut *conn, Which::Owned(scope, &ids)).await?;
    apply(conn, scope, moves, &patches, |index, field| vec!["body".into(), index.into(), field.into()]).await
}

/// Updates one Job.
///
/// # Errors
/// 400 for an unknown id, 422 with the field for bad values.
pub async fn update_one(conn: &mut PgConnection, scope: Scope, id: JobId, mut patch: JobPatch) -> ApiResult<i64> {
    check_single(&mut patch)?;
    let moves = Moves::lock(&mut *conn, Which::Owned(scope, &[id])).await?;
    apply(conn, scope, moves, &[(id, &patch)], |_, field| vec!["body".into(), field.into()]).await
}

/// Updates all Jobs that match in the same way. Gives their number.
///
/// # Errors
/// 400 when more than 5000 match, 422 with the field for bad values.
pub async fn update_matching(
    conn: &mut PgConnection,
    scope: Scope,
    filter: &JobFilter,
    mut patch: JobPatch,
) -> ApiResult<i64> {
    check_single(&mut patch)?;
    let paging = Paging { limit: MAX_BULK as i64 + 1, offset: 0 };
    let ids = filter.ids(&mut *conn, scope, (OrderBy::Id, false), paging).await?;
    if ids.len() > MAX_BULK {
        return Err(ApiError::new(
            copal_schemas::problem::ErrorCode::BulkTooLarge,
            format!("more than {MAX_BULK} Jobs match; narrow the filter and update them in parts"),
        ));
    }
    let locked = Locked::take(&mut *conn, Which::Owned(scope, &ids)).await?;
    let ids = filter.still(&mut *conn, scope, ids).await?;
    let moves = Moves::read(&mut *conn, locked).await?;
    let patches: Vec<(JobId, &JobPatch)> = ids.iter().map(|id| (*id, &patch)).collect();
    apply(conn, scope, moves, &patches, |_, field| vec!["body".into(), field.into()]).await
}

fn check_single(patch: &mut JobPatch) -> ApiResult<()> {
    let mut errors = Vec::new();
    job_checks::check_patch(patch, &mut errors);
    if errors.is_empty() {
        return Ok(());
    }
    for error in &mut errors {
        error.loc.insert(0, "body".into());
    }
    Err(ApiError::invalid(errors))
}

/// Updates Jobs, all of which must be among those that are locked.
async fn apply(
    conn: &mut PgConnection,
    scope: Scope,
    mut moves: Moves,
    patches: &[(JobId, &JobPatch)],
    place: impl Fn(usize, &str) -> Vec<Value>,
) -> ApiResult<i64> {
    if patches.is_empty() {
        return Ok(0);
    }
    if let Some((unknown, _)) = patches.iter().find(|(id, _)| moves.get_mut(*id).is_none()) {
        return Err(ApiError::conflict(format!("Job {unknown} does not exist, or is not yours; nothing was changed")));
    }
    check_batch_jobs(&mut *conn, scope, patches).await?;
    let parameters = fill(&mut *conn, patches, &place).await?;
    update_hot(&mut *conn, patches).await?;
    update_cold(&mut *conn, patches, &parameters).await?;
    let reshaped: Vec<JobId> = patches.iter().filter(|(_, patch)| changes_shape(patch)).map(|(id, _)| *id).collect();
    refusals::forget(&mut *conn, &reshaped).await?;
    let tagged: Vec<_> = patches
        .iter()
        .filter_map(|(id, patch)| Some((*id, moves.get_mut(*id)?.1.row.site_id, patch.tags.as_ref()?)))
        .collect();
    let sets = tags::replace(&mut *conn, scope.owner, &tagged).await?;
    for ((id, ..), set) in tagged.iter().zip(sets) {
        if let Some((_, job)) = moves.get_mut(*id) {
            job.row.tag_set = set;
        }
    }
    for (id, patch) in patches {
        let Some((now, job)) = moves.get_mut(*id) else { continue };
        job.touch();
        if let Some(batch_job) = patch.batch_job_id {
            job.row.batch_job_id = batch_job;
        }
        if let Some(max_restarts) = patch.max_restarts {
            job.row.max_restarts = max_restarts;
        }
        if let Some(return_code) = patch.return_code {
            job.row.return_code = return_code;
        }
        if let Some(state) = patch.state {
            let return_code = patch.return_code.flatten();
            let ask = Ask { at: patch.state_timestamp, data: patch.state_data.clone(), return_code, usage: None };
            // An owner's step is never refused.
            let _ = job.ask(now, Actor::Owner, state, ask);
        }
    }
    let updated = moves.apply(conn).await?;
    Ok(i64::try_from(updated).unwrap_or(i64::MAX))
}

/// A Job may only be put into a BatchJob of its owner.
async fn check_batch_jobs(conn: &mut PgConnection, scope: Scope, patches: &[(JobId, &JobPatch)]) -> ApiResult<()> {
    let mut ids: Vec<BatchJobId> = patches.iter().filter_map(|(_, patch)| patch.batch_job_id.flatten()).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        return Ok(());
    }
    const SQL: &str = "select id from batch_jobs where id = any($1) and owner_id = $2 \
         and ($3::bigint is null or site_id = $3)";
    let known: Vec<BatchJobId> =
        sqlx::query_scalar(SQL).bind(&ids).bind(scope.owner).bind(scope.site).fetch_all(conn).await?;
    match ids.iter().find(|id| !known.contains(id)) {
        Some(unknown) => Err(ApiError::conflict(format!("BatchJob {unknown} does not exist, or is not yours"))),
        None => Ok(()),
    }
}

/// New parameters of Copal Apps' Jobs, checked and filled. Those of Balsam's Apps are taken as they are.
async fn fill(
    conn: &mut PgConnection,
    patches: &[(JobId, &JobPatch)],
    place: &impl Fn(usize, &str) -> Vec<Value>,
) -> ApiResult<BTreeMap<JobId, copal_schemas::StringMap>> {
    let ids: Vec<JobId> = patches.iter().filter(|(_, patch)| patch.parameters.is_some()).map(|(id, _)| *id).collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    const SQL: &str = "select j.id, a.parameters from jobs j join apps a on a.id = j.app_id \
         where j.id = any($1) and a.command is not null";
    let rows: Vec<(JobId, Json<BTreeMap<String, AppParameter>>)> =
        sqlx::query_as(SQL).bind(ids).fetch_all(conn).await?;
    let known: BTreeMap<JobId, BTreeMap<String, AppParameter>> =
        rows.into_iter().map(|(id, Json(parameters))| (id, parameters)).collect();
    let mut filled = BTreeMap::new();
    for (index, (id, patch)) in patches.iter().enumerate() {
        if let (Some(given), Some(parameters)) = (&patch.parameters, known.get(id)) {
            let values = fill_parameters(parameters, given)
                .map_err(|msg| ApiError::invalid(vec![FieldError { loc: place(index, "parameters"), msg }]))?;
            filled.insert(*id, values);
        }
    }
    Ok(filled)
}

/// Whether other nodes could hold the Job afterwards.
fn changes_shape(patch: &JobPatch) -> bool {
    patch.num_nodes.is_some()
        || patch.ranks_per_node.is_some()
        || patch.threads_per_rank.is_some()
        || patch.threads_per_core.is_some()
        || patch.gpus_per_rank.is_some()
        || patch.node_packing_count.is_some()
        || patch.mem_mb.is_some()
}

/// The fields of the hot half, but for those that `transition` writes.
async fn update_hot(conn: &mut PgConnection, patches: &[(JobId, &JobPatch)]) -> ApiResult<()> {
    let changed = |patch: &JobPatch| {
        patch.num_nodes.is_some()
            || patch.ranks_per_node.is_some()
            || patch.node_packing_count.is_some()
            || patch.wall_time_min.is_some()
            || patch.priority.is_some()
            || patch.max_restarts.is_some()
            || patch.batch_job_id.is_some()
            || patch.pending_file_cleanup.is_some()
    };
    const SQL: &str = "update jobs j set num_nodes = coalesce((u.p->>'num_nodes')::int, j.num_nodes), \
         ranks_per_node = coalesce((u.p->>'ranks_per_node')::int, j.ranks_per_node), \
         node_packing_count = coalesce((u.p->>'node_packing_count')::int, j.node_packing_count), \
         wall_time_min = coalesce((u.p->>'wall_time_min')::int, j.wall_time_min), \
         priority = coalesce((u.p->>'priority')::int, j.priority), \
         max_restarts = case when u.p ? 'max_restarts' then (u.p->>'max_restarts')::int else j.max_restarts end, \
         batch_job_id = case when u.p ? 'batch_job_id' then (u.p->>'batch_job_id')::bigint else j.batch_job_id end, \
         pending_file_cleanup = coalesce((u.p->>'pending_file_cleanup')::bool, j.pending_file_cleanup) \
         from unnest($1::bigint[], $2::jsonb[]) as u(id, p) where j.id = u.id";
    let rows: Vec<_> = patches.iter().filter(|(_, patch)| changed(patch)).collect();
    if !rows.is_empty() {
        sqlx::query(SQL)
            .bind(rows.iter().map(|(id, _)| *id).collect::<Vec<_>>())
            .bind(rows.iter().map(|(_, patch)| Json(*patch)).collect::<Vec<_>>())
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// The fields of the cold half.
async fn update_cold(
    conn: &mut PgConnection,
    patches: &[(JobId, &JobPatch)],
    parameters: &BTreeMap<JobId, copal_schemas::StringMap>,
) -> ApiResult<()> {
    let changed = |patch: &JobPatch| {
        patch.workdir.is_some()
            || patch.serialized_parameters.is_some()
            || patch.serialized_return_value.is_some()
            || patch.serialized_exception.is_some()
            || patch.data.is_some()
            || patch.threads_per_rank.is_some()
            || patch.threads_per_core.is_some()
            || patch.launch_params.is_some()
            || patch.gpus_per_rank.is_some()
            || patch.parameters.is_some()
            || patch.mem_mb.is_some()
            || patch.walltime_limit_min.is_some()
    };
    const SQL: &str = "update job_details d set workdir = coalesce(u.p->>'workdir', d.workdir), \
         serialized_parameters = coalesce(u.p->>'serialized_parameters', d.serialized_parameters), \
         serialized_return_value = coalesce(u.p->>'serialized_return_value', d.serialized_return_value), \
         serialized_exception = coalesce(u.p->>'serialized_exception', d.serialized_exception), \
         data = coalesce(u.p->'data', d.data), \
         threads_per_rank = coalesce((u.p->>'threads_per_rank')::int, d.threads_per_rank), \
         threads_per_core = coalesce((u.p->>'threads_per_core')::int, d.threads_per_core), \
         launch_params = coalesce(u.p->'launch_params', d.launch_params), \
         gpus_per_rank = coalesce((u.p->>'gpus_per_rank')::float8, d.gpus_per_rank), \
         parameters = coalesce(u.filled, u.p->'parameters', d.parameters), \
         mem_mb = case when u.p ? 'mem_mb' then (u.p->>'mem_mb')::bigint else d.mem_mb end, \
         walltime_limit_min = case when u.p ? 'walltime_limit_min' \
         then (u.p->>'walltime_limit_min')::int else d.walltime_limit_min end \
         from unnest($1::bigint[], $2::jsonb[], $3::jsonb[]) as u(id, p, filled) where d.job_id = u.id";
    let rows: Vec<_> = patches.iter().filter(|(_, patch)| changed(patch)).collect();
    if !rows.is_empty() {
        sqlx::query(SQL)
            .bind(rows.iter().map(|(id, _)| *id).collect::<Vec<_>>())
            .bind(rows.iter().map(|(_, patch)| Json(*patch)).collect::<Vec<_>>())
            .bind(rows.iter().map(|(id, _)| parameters.get(id).map(Json)).collect::<Vec<_>>())
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// Cancels some of the Jobs that match, whose ids are above `after`. Gives what was done and the
/// last id that was looked at, `None` when there are no more.
///
/// # Errors
/// The database's.
pub async fn cancel_some(
    conn: &mut PgConnection,
    scope: Scope,
    filter: &JobFilter,
    after: JobId,
) -> ApiResult<(Cancelled, Option<JobId>)> {
    let ids = filter.ids_after(&mut *conn, scope, after, CANCEL_CHUNK).await?;
    let Some(last) = ids.last().copied() else {
        return Ok((Cancelled::default(), None));
    };
    let mut done = Cancelled::default();
    let mut moves = Moves::lock(&mut *conn, Which::Owned(scope, &ids)).await?;
    let still: HashSet<JobId> = filter.still(&mut *conn, scope, ids).await?.into_iter().collect();
    for (now, job) in moves.iter_mut().filter(|(_, job)| still.contains(&job.row.id)) {
        match job.cancel(now) {
            Some(true) => done.cancelled += 1,
            Some(false) => done.stopping += 1,
            None => {}
        }
    }
    moves.apply(conn).await?;
    Ok((done, Some(last)))
}
