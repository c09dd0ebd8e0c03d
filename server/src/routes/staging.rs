//! `GET /transfers/due`: the long poll by which a Site's agent learns what to stage. A request that
//! waits holds no connection to the database.

use std::time::Duration;

use actix_web::{HttpResponse, web};
use copal_schemas::{
    problem::Problem,
    session::MAX_WAIT_SEC,
    transfer::{DueTransfer, TransferState},
};
use tokio::time::{Instant, sleep_until};

use crate::{
    app::Shared,
    db,
    error::{ApiError, ApiResult},
    extract::{CurrentUser, QueryParams},
    feed::{Token, Wants},
};

/// Lists the transfers of a Site that Jobs wait for now: inputs of Jobs in READY, outputs of Jobs in POSTPROCESSED.
#[utoipa::path(get, path = "/transfers/due", tag = "transfers", params(
    ("site_id" = i64, Query, minimum = 1, description = "The Site"),
    ("state" = Option<Vec<TransferState>>, Query, description = "In one of these states; left out: pending"),
    ("wait_sec" = Option<f64>, Query, minimum = 0, maximum = 30, description = "Seconds to wait for the first"),
    ("limit" = Option<i64>, Query, minimum = 0, maximum = 100_000, description = "Rows at most"),
), responses(
    (status = 200, description = "The transfers, oldest first", body = Vec<DueTransfer>),
    (status = 422, description = "A parameter is missing or wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn list_due_transfers(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
) -> ApiResult<HttpResponse> {
    let missing = || ApiError::invalid_at(vec!["query".into(), "site_id".into()], "a Site's id is needed");
    let site = query.id("site_id")?.ok_or_else(missing)?;
    let mut states: Vec<TransferState> = query.variants("state")?;
    if states.is_empty() {
        states.push(TransferState::Pending);
    }
    let wait: f64 = query.parsed("wait_sec")?.unwrap_or(0.0);
    if !(0.0..=MAX_WAIT_SEC).contains(&wait) {
        let msg = format!("{wait} is not between 0 and {MAX_WAIT_SEC}");
        return Err(ApiError::invalid_at(vec!["query".into(), "wait_sec".into()], msg));
    }
    let limit = query.paging()?.limit;
    let look = async || -> ApiResult<Vec<DueTransfer>> {
        let mut connection = shared.pool.acquire().await?;
        db::staging::due(&mut connection, (&user).into(), site, &states, limit).await
    };
    let deadline = Instant::now() + Duration::from_secs_f64(wait);
    let mut token: Option<Token> = None;
    loop {
        // Registered before looking: what becomes due after the look wakes this waiter.
        let mut waiter = shared.feed.wait_at(site, Wants::Stageable);
        let due = look().await?;
        // Looking takes nothing, so the token goes on as it is: this may be the poll of an agent that was killed, whose
        // connection does not say so yet.
        drop(token.take());
        if !due.is_empty() || Instant::now() >= deadline || shared.stop.is_cancelled() {
            return Ok(HttpResponse::Ok().json(due));
        }
        let look_again = deadline.min(Instant::now() + shared.feed.fallback());
        token = tokio::select! {
            token = waiter.woken() => token,
            () = sleep_until(look_again) => None,
            () = shared.stop.cancelled() => return Ok(HttpResponse::Ok().json(due)),
        };
    }
}
