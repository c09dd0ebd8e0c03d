//! Jobs read: one, a page, some by id. Rows become wire Jobs here and nowhere else.
//! Creation is `job_create`, an owner's updates are `job_patch`, deletion is `purge`.

use std::collections::BTreeMap;

use copal_schemas::{
    AppId, BatchJobId, JobId, JobState, JsonObject, SessionId, StringMap, Timestamp, UserId,
    job::{Attempt, Checkpoint, Dependency, Job},
    page::Page,
    session::Usage,
};
use sqlx::{FromRow, PgConnection, types::Json};

use super::{
    job_filter::{JobFilter, OrderBy},
    scope::Scope,
};
use crate::{
    error::{ApiError, ApiResult},
    extract::Paging,
};

/// A Job as [`job_columns`] reads it.
#[derive(FromRow)]
pub(super) struct JobRow {
    id: JobId,
    workdir: String,
    tags: Json<StringMap>,
    app_id: AppId,
    session_id: Option<SessionId>,
    serialized_parameters: String,
    serialized_return_value: String,
    serialized_exception: String,
    batch_job_id: Option<BatchJobId>,
    state: JobState,
    last_update: Timestamp,
    data: Json<JsonObject>,
    return_code: Option<i32>,
    pending_file_cleanup: bool,
    parent_ids: Vec<JobId>,
    num_nodes: i32,
    ranks_per_node: i32,
    threads_per_rank: i32,
    threads_per_core: i32,
    gpus_per_rank: f64,
    node_packing_count: i32,
    wall_time_min: i32,
    launch_params: Json<StringMap>,
    parameters: Json<StringMap>,
    priority: i32,
    dependencies: Json<Vec<Dependency>>,
    mem_mb: Option<i64>,
    walltime_limit_min: Option<i32>,
    max_restarts: Option<i32>,
    checkpoint: Option<Json<Checkpoint>>,
    account: Option<String>,
    array_id: Option<i64>,
    array_index: Option<i64>,
    num_attempts: i32,
    error_restarts: i32,
    timeout_restarts: i32,
}

/// The columns of a [`JobRow`] and where they are.
macro_rules! job_columns {
    () => {
        "j.id, d.workdir, j.tags, j.app_id, j.session_id, d.serialized_parameters, d.serialized_return_value, \
         d.serialized_exception, j.batch_job_id, j.state, j.last_update, d.data, j.return_code, \
         j.pending_file_cleanup, d.parent_ids, j.num_nodes, j.ranks_per_node, d.threads_per_rank, \
         d.threads_per_core, d.gpus_per_rank, j.node_packing_count, j.wall_time_min, d.launch_params, d.parameters, \
         j.priority, d.dependencies, d.mem_mb, d.walltime_limit_min, j.max_restarts, d.checkpoint, d.account, \
         d.array_id, d.array_index, j.num_attempts, j.error_restarts, j.timeout_restarts"
    };
}
pub(super) use job_columns;

impl From<JobRow> for Job {
    fn from(row: JobRow) -> Self {
        Self {
            id: row.id,
            workdir: row.workdir,
            tags: row.tags.0,
            app_id: row.app_id,
            session_id: row.session_id,
            serialized_parameters: row.serialized_parameters,
            serialized_return_value: row.serialized_return_value,
            serialized_exception: row.serialized_exception,
            batch_job_id: row.batch_job_id,
            state: row.state,
            last_update: row.last_update,
            data: row.data.0,
            return_code: row.return_code,
            pending_file_cleanup: row.pending_file_cleanup,
            parent_ids: row.parent_ids,
            num_nodes: row.num_nodes,
            ranks_per_node: row.ranks_per_node,
            threads_per_rank: row.threads_per_rank,
            threads_per_core: row.threads_per_core,
            gpus_per_rank: row.gpus_per_rank,
            node_packing_count: row.node_packing_count,
            wall_time_min: row.wall_time_min,
            launch_params: row.launch_params.0,
            parameters: row.parameters.0,
            priority: row.priority,
            dependencies: row.dependencies.0,
            mem_mb: row.mem_mb,
            walltime_limit_min: row.walltime_limit_min,
            max_restarts: row.max_restarts,
            checkpoint: row.checkpoint.map(|Json(checkpoint)| checkpoint),
            account: row.account,
            array_id: row.array_id,
            array_index: row.array_index,
            num_attempts: row.num_attempts,
            error_restarts: row.error_restarts,
            timeout_restarts: row.timeout_restarts,
        }
    }
}

/// Jobs of a user in the order of `ids`. Those that do not exist are left out.
///
/// # Errors
/// The database's.
pub async fn get_in_order(conn: &mut PgConnection, owner: UserId, ids: &[JobId]) -> ApiResult<Vec<Job>> {
    const SQL: &str = concat!(
        "select ",
        job_columns!(),
        " from unnest($1::bigint[]) with ordinality as u(id, place) join jobs j on j.id = u.id \
          join job_details d on d.job_id = u.id where j.owner_id = $2 order by u.place"
    );
    let rows: Vec<JobRow> = sqlx::query_as(SQL).bind(ids).bind(owner).fetch_all(conn).await?;
    Ok(rows.into_iter().map(Job::from).collect())
}

/// One Job of a user.
///
/// # Errors
/// 404 when the user has no such Job.
pub async fn get(conn: &mut PgConnection, scope: Scope, id: JobId) -> ApiResult<Job> {
    const SQL: &str = concat!(
        "select ",
        job_columns!(),
        " from jobs j join job_details d on d.job_id = j.id where j.id = $1 and j.owner_id = $2 \
          and ($3::bigint is null or j.site_id = $3) and j.app_id <> all(array(select app_id from deleted_apps where owner_id = $2))"
    );
    let row: Option<JobRow> =
        sqlx::query_as(SQL).bind(id).bind(scope.owner).bind(scope.site).fetch_optional(conn).await?;
    row.map(Job::from).ok_or_else(|| ApiError::not_found(format!("Job {id}")))
}

/// A page of a user's Jobs.
///
/// # Errors
/// The database's.
pub async fn list(
    conn: &mut PgConnection,
    scope: Scope,
    filter: &JobFilter,
    order: (OrderBy, bool),
    paging: Paging,
) -> ApiResult<Page<Job>> {
    let count = filter.count(conn, scope).await?;
    if paging.limit == 0 || paging.offset >= count {
        return Ok(Page { count, results: Vec::new() });
    }
    let ids = filter.ids(&mut *conn, scope, order, paging).await?;
    Ok(Page { count, results: get_in_order(conn, scope.owner, &ids).await? })
}

/// How many of a user's Jobs match, by state.
///
/// # Errors
/// The database's.
pub async fn count_by_state(
    conn: &mut PgConnection,
    scope: Scope,
    filter: &JobFilter,
) -> ApiResult<BTreeMap<JobState, i64>> {
    filter.count_by_state(conn, scope).await
}

/// The runs of a Job that ended, oldest first.
///
/// # Errors
/// 404 when the user has no such Job.
pub async fn list_attempts(conn: &mut PgConnection, scope: Scope, id: JobId) -> ApiResult<Vec<Attempt>> {
    #[derive(FromRow)]
    struct AttemptRow {
        number: i32,
        batch_job_id: Option<BatchJobId>,
        state: JobState,
        return_code: Option<i32>,
        started_at: Option<Timestamp>,
        ended_at: Timestamp,
        signal: Option<String>,
        peak_memory_bytes: Option<i64>,
        cpu_sec: Option<f64>,
        nodes: Json<Vec<String>>,
        gpus: Json<Vec<String>>,
    }
    get(&mut *conn, scope, id).await?;
    const SQL: &str = "select number, batch_job_id, state, return_code, started_at, ended_at, signal, \
         peak_memory_bytes, cpu_sec, nodes, gpus from job_attempts where job_id = $1 order by number, ended_at";
    let rows: Vec<AttemptRow> = sqlx::query_as(SQL).bind(id).fetch_all(conn).await?;
    let attempts = rows.into_iter().map(|row| Attempt {
        number: row.number,
        batch_job_id: row.batch_job_id,
        state: row.state,
        return_code: row.return_code,
        usage: Usage {
            start: row.started_at,
            end: Some(row.ended_at),
            signal: row.signal,
            peak_memory_bytes: row.peak_memory_bytes,
            cpu_sec: row.cpu_sec,
            nodes: row.nodes.0,
            gpus: row.gpus.0,
        },
    });
    Ok(attempts.collect())
}

/// Takes a BatchJob that is being deleted out of all Jobs that ran in it. They live on.
///
/// # Errors
/// The database's.
pub async fn forget_batch_job(conn: &mut PgConnection, id: BatchJobId) -> ApiResult<()> {
    sqlx::query("update jobs set batch_job_id = null where batch_job_id = $1").bind(id).execute(conn).await?;
    Ok(())
}
