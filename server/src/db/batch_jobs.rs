//! BatchJobs.

use std::collections::{BTreeMap, HashMap};

use copal_schemas::{
    BatchJobId, SiteId, StringMap, Timestamp, UserId,
    batch_job::{BatchJob, BatchJobCreate, BatchJobPatchItem, BatchJobState},
    limits::Limits,
    page::Page,
    settings::QueueLimits,
    site::SiteDetails,
};
use sqlx::{PgConnection, PgPool, postgres::PgRow, prelude::FromRow, types::Json};

use super::sessions::Lease;
use crate::{
    error::{ApiError, ApiResult, OnConstraint as _},
    extract::{CurrentUser, Paging},
};

macro_rules! columns {
    () => {
        "b.id, b.site_id, b.scheduler_id, b.project, b.queue, b.num_nodes, b.wall_time_min, b.job_mode, \
         b.optional_params, b.filter_tags, b.partitions, b.state, b.status_info, b.start_time, b.end_time"
    };
}

macro_rules! matching {
    () => {
        " from batch_jobs b where b.owner_id = $1 \
         and ($2::bigint[] is null or b.id = any($2)) and ($3::bigint[] is null or b.site_id = any($3)) \
         and ($4::text[] is null or b.state::text = any($4)) and ($5::text is null or b.scheduler_id = $5) \
         and ($6::text is null or b.queue = $6) \
         and ($7::timestamptz is null or b.start_time <= $7) and ($8::timestamptz is null or b.start_time >= $8) \
         and ($9::timestamptz is null or b.end_time <= $9) and ($10::timestamptz is null or b.end_time >= $10) \
         and ($11::jsonb is null or b.filter_tags @> $11) and ($12::bigint is null or b.site_id = $12)"
    };
}

struct Row(BatchJob);

impl<'r> FromRow<'r, PgRow> for Row {
    fn from_row(row: &'r PgRow) -> sqlx::Result<Self> {
        use sqlx::Row as _;
        Ok(Self(BatchJob {
            num_nodes: row.try_get("num_nodes")?,
            wall_time_min: row.try_get("wall_time_min")?,
            job_mode: row.try_get("job_mode")?,
            optional_params: row.try_get::<Json<_>, _>("optional_params")?.0,
            filter_tags: row.try_get::<Json<_>, _>("filter_tags")?.0,
            partitions: row.try_get::<Option<Json<_>>, _>("partitions")?.map(|json| json.0),
            id: row.try_get("id")?,
            site_id: row.try_get("site_id")?,
            scheduler_id: row.try_get("scheduler_id")?,
            project: row.try_get("project")?,
            queue: row.try_get("queue")?,
            state: row.try_get("state")?,
            status_info: row.try_get::<Json<_>, _>("status_info")?.0,
            start_time: row.try_get("start_time")?,
            end_time: row.try_get("end_time")?,
        }))
    }
}

/// Which BatchJobs are wanted; what is `None` or empty does not filter.
#[derive(Debug, Default)]
pub struct BatchJobFilter {
    /// One of these.
    pub ids: Vec<BatchJobId>,
    /// At one of these Sites.
    pub site_ids: Vec<SiteId>,
    /// In one of these states, as spelled on the wire; a word that is no state matches nothing.
    pub states: Vec<String>,
    /// The scheduler's id.
    pub scheduler_id: Option<String>,
    /// The queue.
    pub queue: Option<String>,
    /// Started then or earlier.
    pub start_time_before: Option<Timestamp>,
    /// Started then or later.
    pub start_time_after: Option<Timestamp>,
    /// Ended then or earlier.
    pub end_time_before: Option<Timestamp>,
    /// Ended then or later.
    pub end_time_after: Option<Timestamp>,
    /// Filter tags that it has.
    pub filter_tags: StringMap,
    /// The order before the order of ids.
    pub ordering: Option<Ordering>,
}

/// The orders of a list besides the order of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    /// The first to start first; those that have not started last.
    StartTime,
    /// The other way round.
    StartTimeDescending,
}

/// The user's BatchJobs that match.
///
/// # Errors
/// When the database does not answer.
pub async fn list(
    tx: &mut PgConnection,
    user: &CurrentUser,
    filter: &BatchJobFilter,
    page: Paging,
) -> ApiResult<Page<BatchJob>> {
    let tags = (!filter.filter_tags.is_empty()).then_some(Json(&filter.filter_tags));
    macro_rules! bind {
        ($query:expr) => {
            $query
                .bind(user.id)
                .bind(super::unless_empty(&filter.ids))
                .bind(super::unless_empty(&filter.site_ids))
                .bind(super::unless_empty(&filter.states))
                .bind(&filter.scheduler_id)
                .bind(&filter.queue)
                .bind(filter.start_time_before)
                .bind(filter.start_time_after)
                .bind(filter.end_time_before)
                .bind(filter.end_time_after)
                .bind(tags)
                .bind(user.site())
        };
    }
    let count = bind!(sqlx::query_scalar(concat!("select count(*)", matching!()))).fetch_one(&mut *tx).await?;
    if page.limit == 0 {
        return Ok(Page { count, results: Vec::new() });
    }
    let select = match filter.ordering {
        None => concat!("select ", columns!(), matching!(), " order by b.id limit $13 offset $14"),
        Some(Ordering::StartTime) => {
            concat!("select ", columns!(), matching!(), " order by b.start_time, b.id limit $13 offset $14")
        }
        Some(Ordering::StartTimeDescending) => {
            concat!("select ", columns!(), matching!(), " order by b.start_time desc, b.id limit $13 offset $14")
        }
    };
    let rows: Vec<Row> = bind!(sqlx::query_as(select)).bind(page.limit).bind(page.offset).fetch_all(tx).await?;
    Ok(Page { count, results: rows.into_iter().map(|row| row.0).collect() })
}

/// One BatchJob of the user.
///
/// # Errors
/// 404.
pub async fn get(tx: &mut PgConnection, user: &CurrentUser, id: BatchJobId) -> ApiResult<BatchJob> {
    let row: Option<Row> = sqlx::query_as(concat!(
        "select ",
        columns!(),
        " from batch_jobs b where b.id = $1 and b.owner_id = $2 and ($3::bigint is null or b.site_id = $3)"
    ))
    .bind(id)
    .bind(user.id)
    .bind(user.site())
    .fetch_optional(tx)
    .await?;
    row.map(|row| row.0).ok_or_else(|| no_batch_job(id))
}

/// BatchJobs of any user: for the event stream, which binds them to their owners itself.
///
/// # Errors
/// When the database does not answer.
pub async fn get_any(tx: &mut PgConnection, ids: &[BatchJobId]) -> ApiResult<Vec<BatchJob>> {
    let rows: Vec<Row> = sqlx::query_as(concat!("select ", columns!(), " from batch_jobs b where b.id = any($1)"))
        .bind(ids)
        .fetch_all(tx)
        .await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// Makes a BatchJob, which its Site's agent submits. One that is beyond the Site's limits is made as refused, with the
/// reason, as the agent would refuse it: so the answer is the same whether the agent or the service is the first to know.
///
/// # Errors
/// 400 for a Site that is not the user's.
pub async fn create(tx: &mut PgConnection, user: &CurrentUser, batch_job: &BatchJobCreate) -> ApiResult<BatchJob> {
    let no_site = || {
        let id = batch_job.site_id;
        ApiError::conflict(format!("Site {id} does not exist, or is not yours; `copal site ls` shows yours"))
    };
    let refusal = refusal(tx, user, batch_job).await?;
    let state = if refusal.is_some() { BatchJobState::SubmitFailed } else { BatchJobState::PendingSubmission };
    let info: StringMap = refusal.map(|reason| ("error".to_owned(), reason)).into_iter().collect();
    let row: Option<Row> = sqlx::query_as(concat!(
        "insert into batch_jobs as b (site_id, owner_id, project, queue, num_nodes, wall_time_min, job_mode, \
         optional_params, filter_tags, partitions, state, status_info, end_time) \
         select id, owner_id, $3, $4, $5, $6, $7, $8, $9, $10, $12, $13, \
             case when $12 = 'submit_failed'::batch_job_state then clock_timestamp() end \
         from sites where id = $1 and owner_id = $2 and ($11::bigint is null or id = $11) returning ",
        columns!()
    ))
    .bind(batch_job.site_id)
    .bind(user.id)
    .bind(&batch_job.project)
    .bind(&batch_job.queue)
    .bind(batch_job.num_nodes)
    .bind(batch_job.wall_time_min)
    .bind(batch_job.job_mode)
    .bind(Json(&batch_job.optional_params))
    .bind(Json(&batch_job.filter_tags))
    .bind(batch_job.partitions.as_ref().map(Json))
    .bind(user.site())
    .bind(state)
    .bind(Json(info))
    .fetch_optional(tx)
    .await
    // The Site was deleted a moment ago.
    .on_constraint("batch_jobs_site_fkey", no_site)?;
    row.map(|row| row.0).ok_or_else(no_site)
}

/// Why the Site's limits, as the service knows them, forbid a BatchJob.
async fn refusal(tx: &mut PgConnection, user: &CurrentUser, batch_job: &BatchJobCreate) -> ApiResult<Option<String>> {
    type Known = (Json<Vec<String>>, Json<BTreeMap<String, QueueLimits>>, Json<StringMap>, i64);
    let known: Option<Known> = sqlx::query_as(
        "select s.allowed_projects, s.allowed_queues, s.optional_batch_job_params, \
             (select count(*) from batch_jobs b where b.site_id = s.id and b.queue = $3 \
              and b.state in ('pending_submission', 'queued')) \
         from sites s where s.id = $1 and s.owner_id = $2",
    )
    .bind(batch_job.site_id)
    .bind(user.id)
    .bind(&batch_job.queue)
    .fetch_optional(tx)
    .await?;
    let Some((Json(allowed_projects), Json(allowed_queues), Json(optional_batch_job_params), waiting)) = known else {
        return Ok(None);
    };
    let site = SiteDetails { allowed_projects, allowed_queues, optional_batch_job_params, ..SiteDetails::default() };
    Ok(Limits::from(&site).check(&batch_job.into(), usize::try_from(waiting).unwrap_or(0)).err())
}

/// What [`update_many`] did.
pub struct Updated {
    /// The BatchJobs as they are now, in the order of the patches.
    pub batch_jobs: Vec<BatchJob>,
    /// Those that became finished by it: their Sessions have to end.
    pub finished: Vec<BatchJobId>,
}

/// Applies patches, all or none, in two statements. A BatchJob that is to be deleted takes no
/// other state than `finished`.
///
/// # Errors
/// The error that `missing` makes of the first id that is not one of the user's; 400 for an id
/// that comes twice.
pub async fn update_many(
    tx: &mut PgConnection,
    user: &CurrentUser,
    patches: &[BatchJobPatchItem],
    missing: impl Fn(BatchJobId) -> ApiError,
) -> ApiResult<Updated> {
    let ids: Vec<BatchJobId> = patches.iter().map(|item| item.id).collect();
    let before: HashMap<BatchJobId, BatchJobState> = sqlx::query_as(
        "select id, state from batch_jobs where owner_id = $1 and id = any($2) \
         and ($3::bigint is null or site_id = $3) order by id for update",
    )
    .bind(user.id)
    .bind(&ids)
    .bind(user.site())
    .fetch_all(&mut *tx)
    .await?
    .into_iter()
    .collect();
    if let Some(id) = ids.iter().find(|id| !before.contains_key(id)) {
        return Err(missing(*id));
    }
    if before.len() < ids.len() {
        return Err(ApiError::conflict("a BatchJob is named twice in one call; name each once"));
    }
    macro_rules! column {
        ($field:ident, $map:expr) => {
            patches.iter().map(|item| item.patch.$field.as_ref().and_then($map)).collect::<Vec<_>>()
        };
        (has $field:ident) => {
            patches.iter().map(|item| item.patch.$field.is_some()).collect::<Vec<bool>>()
        };
    }
    let rows: Vec<Row> = sqlx::query_as(concat!(
        "update batch_jobs b set \
             scheduler_id = case when p.has_scheduler_id then p.scheduler_id else b.scheduler_id end, \
             state = case when b.state = 'pending_deletion' and p.state <> 'finished' then b.state \
                          else coalesce(p.state, b.state) end, \
             status_info = coalesce(p.status_info, b.status_info), \
             start_time = case when p.has_start_time then p.start_time else b.start_time end, \
             end_time = case when p.has_end_time then p.end_time else b.end_time end \
         from unnest($1::bigint[], $2::bool[], $3::text[], $4::batch_job_state[], $5::jsonb[], $6::bool[], \
                     $7::timestamptz[], $8::bool[], $9::timestamptz[]) \
              as p (id, has_scheduler_id, scheduler_id, state, status_info, has_start_time, start_time, \
                    has_end_time, end_time) \
         where b.id = p.id returning ",
        columns!()
    ))
    .bind(&ids)
    .bind(column!(has scheduler_id))
    .bind(column!(scheduler_id, |id| id.as_ref().map(|id| id.0.clone())))
    .bind(column!(state, |state| Some(*state)))
    .bind(column!(status_info, |info| Some(Json(info))))
    .bind(column!(has start_time))
    .bind(column!(start_time, |time| *time))
    .bind(column!(has end_time))
    .bind(column!(end_time, |time| *time))
    .fetch_all(&mut *tx)
    .await?;
    let mut after: HashMap<BatchJobId, BatchJob> = rows.into_iter().map(|row| (row.0.id, row.0)).collect();
    let batch_jobs: Vec<BatchJob> = ids.iter().filter_map(|id| after.remove(id)).collect();
    let finished: Vec<BatchJobId> = batch_jobs
        .iter()
        .filter(|now| now.state == BatchJobState::Finished && before.get(&now.id) != Some(&BatchJobState::Finished))
        .map(|now| now.id)
        .collect();
    let over: Vec<BatchJobId> = batch_jobs.iter().filter(|now| now.state.is_over()).map(|now| now.id).collect();
    super::logins::revoke_of_batch_jobs(tx, &over).await?;
    Ok(Updated { batch_jobs, finished })
}

/// Deletes a BatchJob and tells its Site. Its Jobs live on without it, and its Sessions for as long as if it stayed.
///
/// # Errors
/// 404.
pub async fn delete(tx: &mut PgConnection, user: &CurrentUser, id: BatchJobId, lease: Lease) -> ApiResult<SiteId> {
    let site = lock(tx, user, id).await?.site_id;
    super::sessions::outlive_batch_job(tx, id, lease).await?;
    super::logins::revoke_of_batch_jobs(tx, &[id]).await?;
    sqlx::query("delete from batch_jobs where id = $1").bind(id).execute(tx).await?;
    Ok(site)
}

/// One BatchJob of the user, which nobody changes until the transaction ends.
///
/// # Errors
/// 404.
pub async fn lock(tx: &mut PgConnection, user: &CurrentUser, id: BatchJobId) -> ApiResult<BatchJob> {
    let row: Option<Row> = sqlx::query_as(concat!(
        "select ",
        columns!(),
        " from batch_jobs b where b.id = $1 and b.owner_id = $2 and ($3::bigint is null or b.site_id = $3) for update"
    ))
    .bind(id)
    .bind(user.id)
    .bind(user.site())
    .fetch_optional(tx)
    .await?;
    row.map(|row| row.0).ok_or_else(|| no_batch_job(id))
}

/// Whether a BatchJob has ended, or can never begin. One that is not there is not known to be.
///
/// # Errors
/// The database's.
pub async fn is_over(pool: &PgPool, owner: UserId, id: BatchJobId) -> ApiResult<bool> {
    const SQL: &str = "select exists (select from batch_jobs where id = $1 and owner_id = $2 \
         and state in ('finished', 'submit_failed'))";
    Ok(sqlx::query_scalar(SQL).bind(id).bind(owner).fetch_one(pool).await?)
}

/// The 404 of a BatchJob.
#[must_use]
pub fn no_batch_job(id: BatchJobId) -> ApiError {
    ApiError::not_found(format_args!("BatchJob {id}"))
}
