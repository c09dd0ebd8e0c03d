//! Jobs (contract, section 5, and Copal's additions).

use actix_web::{HttpRequest, HttpResponse, http::header::CONTENT_TYPE, web};
use copal_schemas::{
    JobId, JobState, JsonObject,
    job::{Attempt, Cancelled, Job, JobCreate, JobPatch, JobPatchItem},
    job_array::{JobArray, JobArrayCreate},
    page::{MAX_BULK, Page},
    problem::Problem,
    why::Why,
};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;

use crate::{
    app::Shared,
    db::{
        self,
        job_filter::{JobFilter, OrderBy},
    },
    error::{ApiError, ApiResult},
    extract::{CurrentUser, PatchItems, PathId, QueryParams, ValidJson, idempotency_key},
};

const ORDERINGS: &[&str] = &["id", "-id", "last_update", "-last_update", "state", "-state", "workdir", "-workdir"];

fn filter(query: &QueryParams) -> ApiResult<JobFilter> {
    Ok(JobFilter {
        ids: query.ids("id")?,
        id_from: query.id("id__gte")?,
        id_to: query.id("id__lte")?,
        parent_ids: query.ids("parent_id")?,
        app_id: query.id("app_id")?,
        site_ids: query.ids("site_id")?,
        batch_job_id: query.id("batch_job_id")?,
        session_id: query.id("session_id")?,
        array_id: query.id("array_id")?,
        last_update_before: query.datetime("last_update_before")?,
        last_update_after: query.datetime("last_update_after")?,
        workdir_contains: query.text("workdir__contains").map(Into::into),
        state_ne: query.variant("state__ne")?,
        states: query.variants("state")?,
        tags: query.pairs("tags").into_iter().collect(),
        pending_file_cleanup: query.boolean("pending_file_cleanup")?.unwrap_or(false),
        not_given_back_in: query.text("not_given_back_in").map(Into::into),
        not_given_back_since: query.datetime("not_given_back_since")?,
        // A page of a list has one; it would be wrong to change or delete by it.
        after_id: None,
    })
}

fn ordering(query: &QueryParams) -> ApiResult<(OrderBy, bool)> {
    let Some(word) = query.one_of("ordering", ORDERINGS)? else { return Ok((OrderBy::Id, false)) };
    let by = match word.trim_start_matches('-') {
        "last_update" => OrderBy::LastUpdate,
        "state" => OrderBy::State,
        "workdir" => OrderBy::Workdir,
        _ => OrderBy::Id,
    };
    Ok((by, word.starts_with('-')))
}

/// Lists the user's Jobs.
#[utoipa::path(get, path = "/jobs/", tag = "jobs", params(
    ("id" = Option<Vec<i64>>, Query, description = "One of these"),
    ("id__gte" = Option<i64>, Query, description = "With this id or a greater one"),
    ("id__lte" = Option<i64>, Query, description = "With this id or a smaller one"),
    ("parent_id" = Option<Vec<i64>>, Query, description = "Children of one of these"),
    ("app_id" = Option<i64>, Query, description = "Of this App"),
    ("site_id" = Option<Vec<i64>>, Query, description = "At one of these Sites"),
    ("batch_job_id" = Option<i64>, Query, description = "That ran in this BatchJob last"),
    ("session_id" = Option<i64>, Query, description = "That this Session holds"),
    ("array_id" = Option<i64>, Query, description = "Of this array"),
    ("last_update_before" = Option<String>, Query, format = DateTime, description = "Changed then or earlier"),
    ("last_update_after" = Option<String>, Query, format = DateTime, description = "Changed then or later"),
    ("workdir__contains" = Option<String>, Query, description = "With this text in their workdir"),
    ("state__ne" = Option<JobState>, Query, description = "In any other state"),
    ("state" = Option<Vec<JobState>>, Query, description = "In one of these states"),
    ("tags" = Option<Vec<String>>, Query, description = "KEY:VALUE, all of which they have"),
    ("pending_file_cleanup" = Option<bool>, Query, description = "true: where the file cleaner has not been"),
    ("not_given_back_in" = Option<String>, Query, description = "But those that wait and that two allocations in this queue gave back, since their nodes can't hold them"),
    ("not_given_back_since" = Option<String>, Query, format = DateTime, description = "Since when that counts"),
    ("after_id" = Option<i64>, Query, description = "Beyond this id; like limit and offset it does not change the count"),
    ("ordering" = Option<String>, Query, pattern = "^-?(id|last_update|state|workdir)$", description = "id, last_update, state or workdir, with - before it for descending"),
    ("limit" = Option<i64>, Query, minimum = 0, maximum = 100_000, description = "Rows at most"),
    ("offset" = Option<i64>, Query, minimum = 0, description = "Rows left out before the first"),
), responses(
    (status = 200, description = "A page of Jobs", body = Page<Job>),
    (status = 422, description = "A parameter is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn list_jobs(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
) -> ApiResult<HttpResponse> {
    let (filter, order, page) = (filter(&query)?, ordering(&query)?, query.paging()?);
    let filter = JobFilter { after_id: query.id("after_id")?, ..filter };
    let mut connection = shared.pool.acquire().await?;
    let jobs = db::jobs::list(&mut connection, (&user).into(), &filter, order, page).await?;
    drop(connection);
    Ok(HttpResponse::Ok().json(jobs))
}

/// Counts the user's Jobs by state, with the filters of the list. States without any are left out.
#[utoipa::path(get, path = "/jobs/by-state", tag = "jobs", responses(
    (status = 200, description = "State to count", body = std::collections::BTreeMap<String, i64>),
    (status = 422, description = "A parameter is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn count_jobs_by_state(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
) -> ApiResult<HttpResponse> {
    let filter = filter(&query)?;
    let mut connection = shared.pool.acquire().await?;
    Ok(HttpResponse::Ok().json(db::jobs::count_by_state(&mut connection, (&user).into(), &filter).await?))
}

/// Creates up to 5000 Jobs, all or none. The answer has them in the order of the body.
#[utoipa::path(post, path = "/jobs/", tag = "jobs", request_body = Vec<JobCreate>, params(
    ("Idempotency-Key" = Option<String>, Header, pattern = r"^[\x21-\x7e]{1,255}$", description = "Makes a repeated request create nothing again"),
), responses(
    (status = 201, description = "The Jobs", body = Vec<Job>),
    (status = 400, description = "Too many, a workdir named twice, an unknown slot or location", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "An App or parent is unknown", body = Problem, content_type = "application/problem+json"),
    (status = 409, description = "The Idempotency-Key belongs to another request", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "A field is missing or wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn create_jobs(
    shared: web::Data<Shared>,
    user: CurrentUser,
    request: HttpRequest,
    body: ValidJson<Vec<JobCreate>>,
) -> ApiResult<HttpResponse> {
    let key = idempotency_key(&request)?;
    let mut jobs = body.0;
    if jobs.len() > MAX_BULK {
        return Err(ApiError::bulk_too_large(jobs.len()));
    }
    if jobs.is_empty() {
        return Ok(HttpResponse::Created().json(jobs));
    }
    if key.is_some() {
        jobs.iter_mut().for_each(|job| sort(&mut job.data));
    }
    let scope = (&user).into();
    create_once(&shared, &user, key, ("/jobs/", jobs.len()), &jobs, async |tx| {
        db::job_create::create(tx, scope, jobs.clone()).await
    })
    .await
}

/// Creates an array of up to 1,000,000 Jobs from a template, all or none.
#[utoipa::path(post, path = "/job-arrays/", tag = "jobs", request_body = JobArrayCreate, params(
    ("Idempotency-Key" = Option<String>, Header, pattern = r"^[\x21-\x7e]{1,255}$", description = "Makes a repeated request create nothing again"),
), responses(
    (status = 201, description = "How to find them", body = JobArray),
    (status = 400, description = "An unknown slot or location", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "The App or a parent is unknown", body = Problem, content_type = "application/problem+json"),
    (status = 409, description = "The Idempotency-Key belongs to another request", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "A field is missing or wrong, or there are too many", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn create_job_array(
    shared: web::Data<Shared>,
    user: CurrentUser,
    request: HttpRequest,
    body: ValidJson<JobArrayCreate>,
) -> ApiResult<HttpResponse> {
    let key = idempotency_key(&request)?;
    let (mut array, scope) = (body.0, (&user).into());
    if key.is_some() {
        sort(&mut array.job.data);
    }
    create_once(&shared, &user, key, ("/job-arrays/", usize::MAX), &array, async |tx| {
        db::job_array::create(tx, scope, array.clone()).await
    })
    .await
}

/// Puts into order what else has the order of the request: the order of fields does not tell one request from another.
fn sort(data: &mut JsonObject) {
    data.values_mut().for_each(Value::sort_all_objects);
    data.sort_keys();
}

/// Creates so many Jobs in one transaction; with an Idempotency-Key, a repeated request gets the first one's answer.
async fn create_once<T: Serialize>(
    shared: &Shared,
    user: &CurrentUser,
    key: Option<&str>,
    (path, jobs): (&str, usize),
    body: &impl Serialize,
    create: impl AsyncFn(&mut PgConnection) -> ApiResult<T>,
) -> ApiResult<HttpResponse> {
    let Some(key) = key else {
        let created = db::transact_rows(&shared.pool, jobs, create).await?;
        return Ok(HttpResponse::Created().json(created));
    };
    let request = serde_json::to_vec(body).map_err(ApiError::internal)?;
    let hash = db::idempotency::request_hash("POST", path, &request);
    let (status, body) = db::transact_rows(&shared.pool, jobs, async |tx| {
        if let Some(known) = db::idempotency::begin(tx, user.id, key, &hash).await? {
            return Ok((known.status, known.body));
        }
        let created = create(tx).await?;
        let body = serde_json::to_vec(&created).map_err(ApiError::internal)?;
        db::idempotency::finish(tx, user.id, key, 201, &body).await?;
        Ok((201, body))
    })
    .await?;
    let status = actix_web::http::StatusCode::from_u16(status).map_err(ApiError::internal)?;
    Ok(HttpResponse::build(status).insert_header((CONTENT_TYPE, "application/json")).body(body))
}

/// Changes many Jobs, each in its own way, all or none.
#[utoipa::path(patch, path = "/jobs/", tag = "jobs", request_body = Vec<JobPatchItem>, responses(
    (status = 200, description = "How many", body = i64, content_type = "application/json"),
    (status = 400, description = "An id is unknown or comes twice, or there are too many", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "A field is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn update_jobs(
    shared: web::Data<Shared>,
    user: CurrentUser,
    body: PatchItems<JobId, JobPatch>,
) -> ApiResult<HttpResponse> {
    if body.0.len() > MAX_BULK {
        return Err(ApiError::bulk_too_large(body.0.len()));
    }
    let items: Vec<JobPatchItem> = body.0.into_iter().map(|(id, patch)| JobPatchItem { id, patch }).collect();
    let updated =
        db::transact(&shared.pool, async |tx| db::job_patch::update_many(tx, (&user).into(), items.clone()).await)
            .await?;
    Ok(HttpResponse::Ok().json(updated))
}

/// Changes all Jobs that the filters of the list match in the same way, at most 5000.
#[utoipa::path(put, path = "/jobs/", tag = "jobs", request_body = JobPatch, responses(
    (status = 200, description = "How many", body = i64, content_type = "application/json"),
    (status = 400, description = "More than 5000 match", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "A parameter or field is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn update_matching_jobs(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
    body: ValidJson<JobPatch>,
) -> ApiResult<HttpResponse> {
    let filter = filter(&query)?;
    let updated = db::transact(&shared.pool, async |tx| {
        db::job_patch::update_matching(tx, (&user).into(), &filter, body.0.clone()).await
    })
    .await?;
    Ok(HttpResponse::Ok().json(updated))
}

/// Deletes all Jobs that the filters of the list match; those that a Session holds are left alone.
#[utoipa::path(delete, path = "/jobs/", tag = "jobs", responses(
    (status = 204, description = "They are gone"),
    (status = 422, description = "A parameter is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn delete_matching_jobs(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
) -> ApiResult<HttpResponse> {
    let filter = filter(&query)?;
    let mut after = JobId(0);
    while let Some(last) =
        db::transact(&shared.pool, async |tx| db::purge::delete_some(tx, (&user).into(), &filter, after).await).await?
    {
        after = last;
    }
    Ok(HttpResponse::NoContent().finish())
}

/// Cancels all Jobs that the filters of the list match and that are not at an end: those that wait
/// become FAILED, those that run are killed by their launcher.
#[utoipa::path(post, path = "/jobs/cancel", tag = "jobs", responses(
    (status = 200, description = "How many of each", body = Cancelled),
    (status = 422, description = "A parameter is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn cancel_jobs(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
) -> ApiResult<HttpResponse> {
    let filter = filter(&query)?;
    let mut sum = Cancelled::default();
    let mut after = JobId(0);
    loop {
        let (done, last) =
            db::transact(&shared.pool, async |tx| db::job_patch::cancel_some(tx, (&user).into(), &filter, after).await)
                .await?;
        sum.cancelled += done.cancelled;
        sum.stopping += done.stopping;
        match last {
            Some(last) => after = last,
            None => return Ok(HttpResponse::Ok().json(sum)),
        }
    }
}

/// Shows a Job.
#[utoipa::path(get, path = "/jobs/{id}", tag = "jobs", params(("id" = i64, Path)), responses(
    (status = 200, description = "The Job", body = Job),
    (status = 404, description = "No such Job", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "The id is no integer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn get_job(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<JobId>,
) -> ApiResult<HttpResponse> {
    let mut connection = shared.pool.acquire().await?;
    Ok(HttpResponse::Ok().json(db::jobs::get(&mut connection, (&user).into(), id.0).await?))
}

/// Shows the runs of a Job that ended, oldest first.
#[utoipa::path(get, path = "/jobs/{id}/attempts", tag = "jobs", params(("id" = i64, Path)), responses(
    (status = 200, description = "The runs", body = Vec<Attempt>),
    (status = 404, description = "No such Job", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "The id is no integer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn list_attempts(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<JobId>,
) -> ApiResult<HttpResponse> {
    let mut connection = shared.pool.acquire().await?;
    Ok(HttpResponse::Ok().json(db::jobs::list_attempts(&mut connection, (&user).into(), id.0).await?))
}

/// Says why a Job is not running.
#[utoipa::path(get, path = "/jobs/{id}/why", tag = "jobs", params(("id" = i64, Path)), responses(
    (status = 200, description = "What keeps it from running, what weighs most first", body = Why),
    (status = 404, description = "No such Job", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "The id is no integer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn explain_job(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<JobId>,
) -> ApiResult<HttpResponse> {
    let mut connection = shared.pool.acquire().await?;
    Ok(HttpResponse::Ok().json(db::why::explain(&mut connection, (&user).into(), id.0).await?))
}

/// Changes the fields of a Job that the body has.
#[utoipa::path(put, path = "/jobs/{id}", tag = "jobs", params(("id" = i64, Path)), request_body = JobPatch, responses(
    (status = 200, description = "1", body = i64, content_type = "application/json"),
    (status = 400, description = "No such Job", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "A field is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn update_job(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<JobId>,
    body: ValidJson<JobPatch>,
) -> ApiResult<HttpResponse> {
    let updated = db::transact(&shared.pool, async |tx| {
        db::job_patch::update_one(tx, (&user).into(), id.0, body.0.clone()).await
    })
    .await?;
    Ok(HttpResponse::Ok().json(updated))
}

/// Deletes a Job; one that a Session holds is left alone.
#[utoipa::path(delete, path = "/jobs/{id}", tag = "jobs", params(("id" = i64, Path)), responses(
    (status = 204, description = "It is gone, or held"),
    (status = 404, description = "No such Job", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "The id is no integer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn delete_job(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<JobId>,
) -> ApiResult<HttpResponse> {
    db::transact(&shared.pool, async |tx| db::purge::delete_one(tx, (&user).into(), id.0).await).await?;
    Ok(HttpResponse::NoContent().finish())
}
