//! Sessions: leases, acquire with long poll, reports, signals (contract, section 8, and Copal's
//! additions). A request that waits holds no connection to the database.

use std::time::Duration;

use actix_web::{HttpResponse, web};
use copal_schemas::{
    SessionId,
    job::Job,
    page::{MAX_BULK, Page},
    problem::Problem,
    session::{Acquire, MAX_ACQUIRE, MAX_WAIT_SEC, Session, SessionCreate, Signals, Updates, UpdatesAnswer},
};
use tokio::time::{Instant, sleep_until};

use super::check;
use crate::{
    app::Shared,
    db::{self, acquire::Acquired, job_checks},
    error::{ApiError, ApiResult},
    extract::{CurrentUser, PathId, QueryParams, ValidJson},
    feed::{Token, Wants},
};

/// A look passes over Jobs that another transaction has locked at that moment, and nobody tells when that leaves them
/// free. So a waiter looks again so soon after each look that was in vain, before it trusts the notifications.
const SECOND_LOOKS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(2)];

/// Lists the user's Sessions.
#[utoipa::path(get, path = "/sessions/", tag = "sessions", params(
    ("id" = Option<Vec<i64>>, Query, description = "One of these"),
), responses(
    (status = 200, description = "All of them", body = Page<Session>),
    (status = 422, description = "A parameter is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn list_sessions(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
) -> ApiResult<HttpResponse> {
    let ids = query.ids("id")?;
    let mut connection = shared.pool.acquire().await?;
    let results = db::sessions::list(&mut connection, (&user).into(), &ids).await?;
    Ok(HttpResponse::Ok().json(Page { count: i64::try_from(results.len()).unwrap_or(i64::MAX), results }))
}

/// Opens a Session.
#[utoipa::path(post, path = "/sessions/", tag = "sessions", request_body = SessionCreate, responses(
    (status = 201, description = "The Session", body = Session),
    (status = 400, description = "No such Site or BatchJob", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "A field is missing or wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn create_session(
    shared: web::Data<Shared>,
    user: CurrentUser,
    body: ValidJson<SessionCreate>,
) -> ApiResult<HttpResponse> {
    let session =
        db::transact(&shared.pool, async |tx| db::sessions::create(tx, (&user).into(), &body.0).await).await?;
    Ok(HttpResponse::Created().json(session))
}

/// Keeps a Session alive.
#[utoipa::path(put, path = "/sessions/{id}", tag = "sessions", params(("id" = i64, Path)), responses(
    (status = 200, description = "It lives"),
    (status = 404, description = "It ended", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "The id is no integer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn tick_session(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<SessionId>,
) -> ApiResult<HttpResponse> {
    let mut connection = shared.pool.acquire().await?;
    db::sessions::beat(&mut connection, (&user).into(), id.0).await?;
    Ok(HttpResponse::Ok().json(()))
}

/// Ends a Session and frees its Jobs; those that are RUNNING become RUN_TIMEOUT.
#[utoipa::path(delete, path = "/sessions/{id}", tag = "sessions", params(("id" = i64, Path)), responses(
    (status = 204, description = "It is over"),
    (status = 404, description = "It ended before", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "The id is no integer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn delete_session(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<SessionId>,
) -> ApiResult<HttpResponse> {
    db::transact(&shared.pool, async |tx| db::sessions::delete(tx, (&user).into(), id.0).await).await?;
    Ok(HttpResponse::NoContent().finish())
}

/// Acquires Jobs for a Session; waits up to `wait_sec` for the first one.
#[utoipa::path(post, path = "/sessions/{id}", tag = "sessions", params(("id" = i64, Path)), request_body = Acquire, responses(
    (status = 200, description = "The Jobs, which the Session holds now", body = Vec<Job>),
    (status = 404, description = "It ended", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "A field is missing or wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn acquire_jobs(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<SessionId>,
    body: ValidJson<Acquire>,
) -> ApiResult<HttpResponse> {
    let wanted = body.0;
    check_acquire(&wanted)?;
    let scope = (&user).into();
    let take =
        async || db::retry(&shared.pool, async |conn| db::acquire::acquire(conn, scope, id.0, &wanted).await).await;
    let wait = waiting_time(&shared, wanted.wait_sec);
    let site = match take().await? {
        Acquired::Jobs(jobs) => return Ok(HttpResponse::Ok().json(jobs)),
        Acquired::Nothing(_) if wait.is_zero() => return Ok(HttpResponse::Ok().json(Vec::<Job>::new())),
        Acquired::Nothing(site) => site,
    };
    let deadline = Instant::now() + wait;
    let mut token: Option<Token> = None;
    let mut second_looks = SECOND_LOOKS.into_iter();
    loop {
        // Registered before looking: a Job that becomes free after the look wakes this waiter.
        let mut waiter = shared.feed.wait_at(site, Wants::of(&wanted.states));
        let jobs = match take().await? {
            Acquired::Jobs(jobs) => jobs,
            Acquired::Nothing(_) => Vec::new(),
        };
        if let Some(token) = &mut token {
            token.took(jobs.len());
        }
        // What is left of it goes on to the next waiter.
        drop(token.take());
        if !jobs.is_empty() || Instant::now() >= deadline || shared.stop.is_cancelled() {
            return Ok(HttpResponse::Ok().json(jobs));
        }
        let fallback = shared.feed.fallback();
        let look_again = deadline.min(Instant::now() + second_looks.next().unwrap_or(fallback).min(fallback));
        token = tokio::select! {
            token = waiter.woken() => {
                second_looks = SECOND_LOOKS.into_iter();
                token
            }
            () = sleep_until(look_again) => None,
            () = shared.stop.cancelled() => return Ok(HttpResponse::Ok().json(jobs)),
        };
    }
}

fn check_acquire(wanted: &Acquire) -> ApiResult<()> {
    let mut errors = Vec::new();
    let mut wrong = |field: &str, msg: String| errors.push(check::error(&[field], msg));
    if !(1..=MAX_ACQUIRE).contains(&wanted.max_num_jobs) {
        wrong("max_num_jobs", format!("{} is not between 1 and {MAX_ACQUIRE}", wanted.max_num_jobs));
    }
    if let Some(nodes) = wanted.max_aggregate_nodes.filter(|nodes| !nodes.is_finite()) {
        wrong("max_aggregate_nodes", format!("{nodes} is no number of nodes"));
    }
    if let Some(msg) = check::wait(wanted.wait_sec) {
        wrong("wait_sec", msg);
    }
    check::finish((), errors)
}

/// A request may wait as long as it asks, but for no longer than half a lease: asking is a
/// heartbeat only at its start and end.
fn waiting_time(shared: &Shared, wait_sec: f64) -> Duration {
    let asked = Duration::try_from_secs_f64(wait_sec.clamp(0.0, MAX_WAIT_SEC)).unwrap_or_default();
    asked.min(shared.config.lease / 2)
}

/// Reports state changes of Jobs that the Session holds. Each is judged by itself; the answer
/// lists those that were refused. The same `batch_key` again gives the same answer and changes nothing.
#[utoipa::path(post, path = "/sessions/{id}/updates", tag = "sessions", params(("id" = i64, Path)), request_body = Updates, responses(
    (status = 200, description = "What was made and what was refused", body = UpdatesAnswer),
    (status = 400, description = "More than 5000 updates", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "It ended", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "A field is missing or wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn report_updates(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<SessionId>,
    body: ValidJson<Updates>,
) -> ApiResult<HttpResponse> {
    let updates = &body.0.updates;
    let count = updates.len().max(body.0.release.len());
    if count > MAX_BULK {
        return Err(ApiError::bulk_too_large(count));
    }
    let mut errors = Vec::new();
    for (index, update) in updates.iter().enumerate() {
        let before = errors.len();
        if let Some(data) = &update.data {
            job_checks::check_data(data, &mut errors);
        }
        job_checks::check_state_data(&update.state_data, &mut errors);
        for error in &mut errors[before..] {
            error.loc.splice(0..0, ["body".into(), "updates".into(), index.into()]);
        }
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid(errors));
    }
    let answer = db::transact_rows(&shared.pool, count, async |tx| {
        db::updates::report(tx, (&user).into(), id.0, body.0.clone()).await
    })
    .await?;
    Ok(HttpResponse::Ok().json(answer))
}

/// What the Session's holder must do; waits up to `wait_sec` when there is nothing now.
#[utoipa::path(get, path = "/sessions/{id}/signals", tag = "sessions", params(
    ("id" = i64, Path),
    ("wait_sec" = Option<f64>, Query, minimum = 0, maximum = 30, description = "Seconds to wait"),
), responses(
    (status = 200, description = "What to do", body = Signals),
    (status = 404, description = "It ended", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "A parameter is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn get_signals(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<SessionId>,
    query: QueryParams,
) -> ApiResult<HttpResponse> {
    let wait_sec: f64 = query.parsed("wait_sec")?.unwrap_or(0.0);
    if let Some(msg) = check::wait(wait_sec) {
        return Err(ApiError::invalid_at(vec!["query".into(), "wait_sec".into()], msg));
    }
    // Heard from before the look on, so that nothing falls between.
    let mut heard = shared.feed.signals();
    let deadline = Instant::now() + waiting_time(&shared, wait_sec);
    loop {
        let (holder, signals) = db::transact(&shared.pool, async |tx| {
            let holder = db::sessions::beat(tx, (&user).into(), id.0).await?;
            Ok((holder, db::sessions::signals(tx, holder, shared.config.leases()).await?))
        })
        .await?;
        let done = signals.stop || !signals.cancel.is_empty();
        if done || Instant::now() >= deadline || shared.stop.is_cancelled() {
            return Ok(HttpResponse::Ok().json(signals));
        }
        let look_again = deadline.min(Instant::now() + shared.feed.fallback());
        loop {
            tokio::select! {
                site = heard.recv() => match site {
                    Ok(site) if site != holder.site_id => {}
                    // A receiver that lagged may have missed this Site.
                    _ => break,
                },
                () = sleep_until(look_again) => break,
                () = shared.stop.cancelled() => break,
            }
        }
    }
}
