//! BatchJobs (contract, section 7).

use actix_web::{HttpResponse, web};
use copal_schemas::{
    BatchJobId,
    batch_job::{BatchJob, BatchJobCreate, BatchJobPatch, BatchJobPatchItem, SchedulerId},
    page::{MAX_BULK, Page},
    problem::{FieldError, Problem},
};
use serde_json::Value;
use sqlx::PgConnection;

use super::check;
use crate::{
    app::Shared,
    db::{
        self,
        batch_jobs::{BatchJobFilter, Ordering, Updated, no_batch_job},
    },
    error::{ApiError, ApiResult},
    extract::{CurrentUser, Paging, PatchItems, PathId, QueryParams, ValidJson},
    feed,
};

/// Lists the user's BatchJobs.
#[utoipa::path(get, path = "/batch-jobs/", tag = "batch-jobs", params(
    ("id" = Option<Vec<i64>>, Query, description = "One of these"),
    ("site_id" = Option<Vec<i64>>, Query, description = "At one of these Sites"),
    ("state" = Option<Vec<String>>, Query, description = "In one of these states"),
    ("scheduler_id" = Option<String>, Query, description = "The scheduler's id"),
    ("queue" = Option<String>, Query, description = "The queue"),
    ("start_time_before" = Option<String>, Query, format = DateTime, description = "Started then or earlier"),
    ("start_time_after" = Option<String>, Query, format = DateTime, description = "Started then or later"),
    ("end_time_before" = Option<String>, Query, format = DateTime, description = "Ended then or earlier"),
    ("end_time_after" = Option<String>, Query, format = DateTime, description = "Ended then or later"),
    ("filter_tags" = Option<Vec<String>>, Query, description = "KEY:VALUE, all of which it has"),
    ("ordering" = Option<String>, Query, pattern = "^-?start_time$", description = "start_time or -start_time; ids decide else"),
    ("limit" = Option<i64>, Query, minimum = 0, maximum = 100_000, description = "Rows at most"),
    ("offset" = Option<i64>, Query, minimum = 0, description = "Rows left out before the first"),
), responses(
    (status = 200, description = "A page of BatchJobs", body = Page<BatchJob>),
))]
pub(crate) async fn list_batch_jobs(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
) -> ApiResult<HttpResponse> {
    let filter = filter(&query)?;
    let page = query.paging()?;
    let mut connection = shared.pool.acquire().await?;
    Ok(HttpResponse::Ok().json(db::batch_jobs::list(&mut connection, &user, &filter, page).await?))
}

/// Asks for a BatchJob; the Site's agent submits it. One that the Site's limits forbid is made in the state
/// `submit_failed`, with the reason in `status_info`.
#[utoipa::path(post, path = "/batch-jobs/", tag = "batch-jobs", request_body = BatchJobCreate, responses(
    (status = 201, description = "The BatchJob", body = BatchJob),
    (status = 400, description = "No such Site", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn create_batch_job(
    shared: web::Data<Shared>,
    user: CurrentUser,
    body: ValidJson<BatchJobCreate>,
) -> ApiResult<HttpResponse> {
    let batch_job = checked_create(body.0)?;
    let batch_job = db::transact(&shared.pool, async |tx| {
        let batch_job = db::batch_jobs::create(tx, &user, &batch_job).await?;
        feed::batch_jobs_changed(tx, user.id, &[(batch_job.site_id, batch_job.id)]).await?;
        Ok(batch_job)
    })
    .await?;
    Ok(HttpResponse::Created().json(batch_job))
}

/// Changes many BatchJobs, all or none.
#[utoipa::path(patch, path = "/batch-jobs/", tag = "batch-jobs", request_body = Vec<BatchJobPatchItem>, responses(
    (status = 200, description = "The BatchJobs as they are now, in the order of the body", body = Vec<BatchJob>),
    (status = 400, description = "An id is unknown or comes twice, or there are too many", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn update_batch_jobs(
    shared: web::Data<Shared>,
    user: CurrentUser,
    body: PatchItems<BatchJobId, BatchJobPatch>,
) -> ApiResult<HttpResponse> {
    if body.0.len() > MAX_BULK {
        return Err(ApiError::bulk_too_large(body.0.len()));
    }
    let items = body.0.into_iter().map(|(id, patch)| BatchJobPatchItem { id, patch }).collect();
    let unknown = |id: BatchJobId| ApiError::conflict(format!("BatchJob {id} does not exist, or is not yours"));
    Ok(HttpResponse::Ok().json(update(&shared, &user, items, unknown).await?))
}

/// Changes all BatchJobs that the filters of the list match in the same way, at most 5000.
#[utoipa::path(put, path = "/batch-jobs/", tag = "batch-jobs", request_body = BatchJobPatch, responses(
    (status = 200, description = "The BatchJobs as they are now", body = Vec<BatchJob>),
    (status = 400, description = "More than 5000 match", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn update_matching_batch_jobs(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
    body: ValidJson<BatchJobPatch>,
) -> ApiResult<HttpResponse> {
    let filter = filter(&query)?;
    check_scheduler_id(&body.0, &["scheduler_id".into()])?;
    let one_too_many = Paging { limit: MAX_BULK as i64 + 1, offset: 0 };
    let updated = db::transact(&shared.pool, async |tx| {
        let found = db::batch_jobs::list(tx, &user, &filter, one_too_many).await?;
        if found.results.len() > MAX_BULK {
            return Err(ApiError::bulk_too_large(found.results.len()));
        }
        let items: Vec<_> =
            found.results.iter().map(|found| BatchJobPatchItem { id: found.id, patch: body.0.clone() }).collect();
        apply(tx, &user, &items, no_batch_job).await
    })
    .await?;
    Ok(HttpResponse::Ok().json(updated))
}

/// Shows a BatchJob.
#[utoipa::path(get, path = "/batch-jobs/{id}", tag = "batch-jobs", params(("id" = i64, Path)), responses(
    (status = 200, description = "The BatchJob", body = BatchJob),
    (status = 404, description = "No such BatchJob", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn get_batch_job(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<BatchJobId>,
) -> ApiResult<HttpResponse> {
    let mut connection = shared.pool.acquire().await?;
    Ok(HttpResponse::Ok().json(db::batch_jobs::get(&mut connection, &user, id.0).await?))
}

/// Changes the fields that the body has.
#[utoipa::path(put, path = "/batch-jobs/{id}", tag = "batch-jobs", params(("id" = i64, Path)), request_body = BatchJobPatch, responses(
    (status = 200, description = "The BatchJob as it is now", body = BatchJob),
    (status = 404, description = "No such BatchJob", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn update_batch_job(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<BatchJobId>,
    body: ValidJson<BatchJobPatch>,
) -> ApiResult<HttpResponse> {
    let items = vec![BatchJobPatchItem { id: id.0, patch: body.0 }];
    let updated = update(&shared, &user, items, no_batch_job).await?;
    let batch_job = updated.into_iter().next().ok_or_else(|| no_batch_job(id.0))?;
    Ok(HttpResponse::Ok().json(batch_job))
}

/// Deletes a BatchJob's record; Jobs that ran in it stay.
#[utoipa::path(delete, path = "/batch-jobs/{id}", tag = "batch-jobs", params(("id" = i64, Path)), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "No such BatchJob", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn delete_batch_job(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<BatchJobId>,
) -> ApiResult<HttpResponse> {
    db::transact(&shared.pool, async |tx| {
        let site = db::batch_jobs::delete(tx, &user, id.0, shared.config.leases()).await?;
        db::jobs::forget_batch_job(tx, id.0).await?;
        feed::batch_job_deleted(tx, user.id, site, id.0).await
    })
    .await?;
    Ok(HttpResponse::NoContent().finish())
}

/// The filters that list and query update share.
fn filter(query: &QueryParams) -> ApiResult<BatchJobFilter> {
    let ordering = match query.one_of("ordering", &["start_time", "-start_time"])? {
        None => None,
        Some("start_time") => Some(Ordering::StartTime),
        Some(_) => Some(Ordering::StartTimeDescending),
    };
    Ok(BatchJobFilter {
        ids: query.ids("id")?,
        site_ids: query.ids("site_id")?,
        states: query.texts("state"),
        scheduler_id: query.text("scheduler_id").map(Into::into),
        queue: query.text("queue").map(Into::into),
        start_time_before: query.datetime("start_time_before")?,
        start_time_after: query.datetime("start_time_after")?,
        end_time_before: query.datetime("end_time_before")?,
        end_time_after: query.datetime("end_time_after")?,
        filter_tags: query.pairs("filter_tags").into_iter().collect(),
        ordering,
    })
}

async fn update(
    shared: &Shared,
    user: &CurrentUser,
    items: Vec<BatchJobPatchItem>,
    missing: impl Fn(BatchJobId) -> ApiError,
) -> ApiResult<Vec<BatchJob>> {
    for (index, item) in items.iter().enumerate() {
        check_scheduler_id(&item.patch, &[index.into(), "scheduler_id".into()])?;
    }
    db::transact(&shared.pool, async |tx| apply(tx, user, &items, &missing).await).await
}

/// Makes the changes with all that follows from them.
async fn apply(
    tx: &mut PgConnection,
    user: &CurrentUser,
    items: &[BatchJobPatchItem],
    missing: impl Fn(BatchJobId) -> ApiError,
) -> ApiResult<Vec<BatchJob>> {
    let Updated { batch_jobs, finished } = db::batch_jobs::update_many(tx, user, items, missing).await?;
    db::sessions::end_for_batch_jobs(tx, &finished).await?;
    let changed: Vec<_> = batch_jobs.iter().map(|batch_job| (batch_job.site_id, batch_job.id)).collect();
    feed::batch_jobs_changed(tx, user.id, &changed).await?;
    Ok(batch_jobs)
}

fn check_scheduler_id(patch: &BatchJobPatch, place: &[Value]) -> ApiResult<()> {
    match &patch.scheduler_id {
        Some(Some(id)) if id.is_too_long() => {
            let loc = std::iter::once("body".into()).chain(place.iter().cloned()).collect();
            Err(ApiError::invalid_at(loc, check::too_long(SchedulerId::MAX_LETTERS)))
        }
        _ => Ok(()),
    }
}

fn checked_create(batch_job: BatchJobCreate) -> ApiResult<BatchJobCreate> {
    let mut errors = Vec::new();
    let positive = [("num_nodes", batch_job.num_nodes), ("wall_time_min", batch_job.wall_time_min)];
    for (field, value) in positive {
        if value < 1 {
            errors.push(check::error(&[field], format!("1 or more is wanted, not {value}")));
        }
    }
    let mut nodes = 0i64;
    for (index, partition) in batch_job.partitions.iter().flatten().enumerate() {
        nodes += i64::from(partition.num_nodes);
        if partition.num_nodes < 1 {
            let loc: Vec<Value> = vec!["body".into(), "partitions".into(), index.into(), "num_nodes".into()];
            errors.push(FieldError { loc, msg: format!("1 or more is wanted, not {}", partition.num_nodes) });
        }
    }
    if nodes > i64::from(batch_job.num_nodes) {
        let msg = format!("the partitions have {nodes} nodes together, the BatchJob {}", batch_job.num_nodes);
        errors.push(check::error(&["partitions"], msg));
    }
    check::finish(batch_job, errors)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_and_minutes_are_positive_and_partitions_fit() {
        let batch_job = |nodes: i32, minutes: i32, partitions: Value| {
            checked_create(
                serde_json::from_value(json!({
                    "site_id": 1, "project": "p", "queue": "q", "job_mode": "mpi",
                    "num_nodes": nodes, "wall_time_min": minutes, "partitions": partitions,
                }))
                .unwrap(),
            )
        };
        assert!(batch_job(4, 10, json!([{"job_mode": "mpi", "num_nodes": 3}])).is_ok());
        assert!(batch_job(0, 10, Value::Null).is_err());
        assert!(batch_job(1, 0, Value::Null).is_err());
        assert!(batch_job(4, 10, json!([{"job_mode": "mpi", "num_nodes": 5}])).is_err());
        assert!(batch_job(4, 10, json!([{"job_mode": "mpi", "num_nodes": 0}])).is_err());
    }
}
