//! `/transfers/due`: what a Site's agent stages. It looks (GET) or takes (POST), by a long poll. A request that
//! waits holds no connection to the database.

use std::time::Duration;

use actix_web::{HttpResponse, web};
use copal_schemas::{
    SiteId,
    page::MAX_BULK,
    problem::Problem,
    transfer::{DueTransfer, TransferClaim, TransferState},
};
use tokio::time::{Instant, sleep_until};

use super::check;
use crate::{
    app::Shared,
    db,
    error::{ApiError, ApiResult},
    extract::{CurrentUser, QueryParams, ValidJson},
    feed::{Token, Wants},
};

/// The longest name of a batch in characters.
const MAX_TASK_ID: usize = 256;

/// Lists the transfers of a Site that Jobs wait for now: inputs of Jobs in READY, outputs of Jobs in POSTPROCESSED.
#[utoipa::path(get, path = "/transfers/due", tag = "transfers", params(
    ("site_id" = i64, Query, minimum = 1, description = "The Site"),
    ("state" = Option<Vec<TransferState>>, Query, description = "In one of these states; left out: pending"),
    ("wait_sec" = Option<f64>, Query, minimum = 0, maximum = 30, description = "Seconds to wait for the first"),
    ("limit" = Option<i64>, Query, minimum = 0, maximum = 100_000, description = "Rows at most"),
), responses(
    (status = 200, description = "The transfers: those that are begun, then those that have been due for longest", body = Vec<DueTransfer>),
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
    if let Some(msg) = check::wait(wait) {
        return Err(ApiError::invalid_at(vec!["query".into(), "wait_sec".into()], msg));
    }
    let limit = query.paging()?.limit;
    let scope = (&user).into();
    let look = async || {
        db::transact_by_index(&shared.pool, async |tx| db::staging::due(tx, scope, site, &states, limit).await).await
    };
    let due = first_of(&shared, site, wait, look).await?;
    Ok(HttpResponse::Ok().json(due))
}

/// Takes a batch of the transfers of a Site that Jobs wait for now, of one location and one direction: they are active from
/// then on, and nobody else gets them.
#[utoipa::path(post, path = "/transfers/due", tag = "transfers", request_body = TransferClaim, responses(
    (status = 200, description = "The transfers, oldest first", body = Vec<DueTransfer>),
    (status = 422, description = "A field is missing or wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn claim_due_transfers(
    shared: web::Data<Shared>,
    user: CurrentUser,
    body: ValidJson<TransferClaim>,
) -> ApiResult<HttpResponse> {
    let claim = body.0;
    check_claim(&claim)?;
    let scope = (&user).into();
    let take = async || db::transact(&shared.pool, async |tx| db::staging::claim(tx, scope, &claim).await).await;
    let taken = first_of(&shared, claim.site_id, claim.wait_sec, take).await?;
    Ok(HttpResponse::Ok().json(taken))
}

fn check_claim(claim: &TransferClaim) -> ApiResult<()> {
    let mut errors = Vec::new();
    let mut wrong = |field: &str, msg: String| errors.push(check::error(&[field], msg));
    if claim.task_id.is_empty() || claim.task_id.chars().count() > MAX_TASK_ID || claim.task_id.contains('\0') {
        wrong("task_id", format!("a name of 1 to {MAX_TASK_ID} characters is needed"));
    }
    if !(1..=MAX_BULK as i64).contains(&claim.limit) {
        wrong("limit", format!("{} is not between 1 and {MAX_BULK}", claim.limit));
    }
    if let Some(msg) = check::wait(claim.wait_sec) {
        wrong("wait_sec", msg);
    }
    check::finish((), errors)
}

/// What a look finds as soon as it finds something; nothing when there is nothing for so many seconds.
async fn first_of(
    shared: &Shared,
    site: SiteId,
    wait_sec: f64,
    look: impl AsyncFn() -> ApiResult<Vec<DueTransfer>>,
) -> ApiResult<Vec<DueTransfer>> {
    let deadline = Instant::now() + Duration::from_secs_f64(wait_sec);
    let mut token: Option<Token> = None;
    loop {
        // Registered before looking: what becomes due after the look wakes this waiter.
        let mut waiter = shared.feed.wait_at(site, Wants::Stageable);
        let due = look().await?;
        // The token goes on as it is: this may be the poll of an agent that was killed, whose connection does not
        // say so yet.
        drop(token.take());
        if !due.is_empty() || Instant::now() >= deadline || shared.stop.is_cancelled() {
            return Ok(due);
        }
        let look_again = deadline.min(Instant::now() + shared.feed.fallback());
        token = tokio::select! {
            token = waiter.woken() => token,
            () = sleep_until(look_again) => None,
            () = shared.stop.cancelled() => return Ok(due),
        };
    }
}
