//! TransferItems (contract, section 6).

use actix_web::{HttpRequest, HttpResponse, web};
use copal_schemas::{
    JobState, TransferId,
    page::{MAX_BULK, Page},
    problem::Problem,
    transfer::{Direction, TransferItem, TransferPatch, TransferPatchItem, TransferState},
};

use crate::{
    app::Shared,
    db::{self, transfers::TransferFilter},
    error::{ApiError, ApiResult},
    extract::{CurrentUser, PatchItems, PathId, QueryParams, ValidJson},
};

/// What a client says that does not need to see what it has changed.
const MINIMAL: &str = "return=minimal";

/// The filters that list and query update share.
fn filter(query: &QueryParams) -> ApiResult<TransferFilter> {
    Ok(TransferFilter {
        ids: query.ids("id")?,
        site_id: query.id("site_id")?,
        job_ids: query.ids("job_id")?,
        states: query.variants("state")?,
        direction: query.variant("direction")?,
        job_state: query.variant("job_state")?,
        tags: query.pairs("tags").into_iter().collect(),
    })
}

/// Lists the transfers of the user's Jobs.
#[utoipa::path(get, path = "/transfers/", tag = "transfers", params(
    ("id" = Option<Vec<i64>>, Query, description = "One of these"),
    ("site_id" = Option<i64>, Query, description = "At this Site"),
    ("job_id" = Option<Vec<i64>>, Query, description = "Of one of these Jobs"),
    ("state" = Option<Vec<TransferState>>, Query, description = "In one of these states"),
    ("direction" = Option<Direction>, Query, description = "This way"),
    ("job_state" = Option<JobState>, Query, description = "Of Jobs in this state"),
    ("tags" = Option<Vec<String>>, Query, description = "KEY:VALUE, all of which the Jobs have"),
    ("limit" = Option<i64>, Query, minimum = 0, maximum = 100_000, description = "Rows at most"),
    ("offset" = Option<i64>, Query, minimum = 0, description = "Rows left out before the first"),
), responses(
    (status = 200, description = "A page of transfers", body = Page<TransferItem>),
    (status = 422, description = "A parameter is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn list_transfers(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
) -> ApiResult<HttpResponse> {
    let (filter, page) = (filter(&query)?, query.paging()?);
    let mut connection = shared.pool.acquire().await?;
    Ok(HttpResponse::Ok().json(db::transfers::list(&mut connection, (&user).into(), &filter, page).await?))
}

/// Shows a transfer.
#[utoipa::path(get, path = "/transfers/{id}", tag = "transfers", params(("id" = i64, Path)), responses(
    (status = 200, description = "The transfer", body = TransferItem),
    (status = 404, description = "No such transfer", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "The id is no integer", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn get_transfer(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<TransferId>,
) -> ApiResult<HttpResponse> {
    let mut connection = shared.pool.acquire().await?;
    Ok(HttpResponse::Ok().json(db::transfers::get(&mut connection, (&user).into(), id.0).await?))
}

/// Changes the fields of a transfer that the body has. A Job whose last transfer is done goes on.
#[utoipa::path(put, path = "/transfers/{id}", tag = "transfers", params(("id" = i64, Path)), request_body = TransferPatch, responses(
    (status = 200, description = "The transfer as it is now", body = TransferItem),
    (status = 404, description = "No such transfer", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "A field is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn update_transfer(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<TransferId>,
    body: ValidJson<TransferPatch>,
) -> ApiResult<HttpResponse> {
    let transfer = db::transact(&shared.pool, async |tx| {
        db::transfers::update_one(tx, (&user).into(), id.0, body.0.clone()).await
    })
    .await?;
    Ok(HttpResponse::Ok().json(transfer))
}

/// Changes many transfers, all or none.
#[utoipa::path(patch, path = "/transfers/", tag = "transfers", request_body = Vec<TransferPatchItem>, params(
    ("Prefer" = Option<String>, Header, description = "`return=minimal` for an answer without a body (RFC 7240)"),
), responses(
    (status = 200, description = "The transfers as they are now, in the order of the body", body = Vec<TransferItem>),
    (status = 204, description = "They are changed, and the call preferred not to see them"),
    (status = 400, description = "An id is unknown or comes twice, or there are too many", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "A field is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn update_transfers(
    shared: web::Data<Shared>,
    user: CurrentUser,
    body: PatchItems<TransferId, TransferPatch>,
    request: HttpRequest,
) -> ApiResult<HttpResponse> {
    if body.0.len() > MAX_BULK {
        return Err(ApiError::bulk_too_large(body.0.len()));
    }
    let items: Vec<TransferPatchItem> = body.0.into_iter().map(|(id, patch)| TransferPatchItem { id, patch }).collect();
    let preferences = request.headers().get("Prefer").and_then(|value| value.to_str().ok()).unwrap_or_default();
    if preferences.split([',', ';']).any(|preference| preference.trim() == MINIMAL) {
        db::transact(&shared.pool, async |tx| db::transfers::update(tx, (&user).into(), &items).await).await?;
        return Ok(HttpResponse::NoContent().insert_header(("Preference-Applied", MINIMAL)).finish());
    }
    let transfers =
        db::transact(&shared.pool, async |tx| db::transfers::update_many(tx, (&user).into(), &items).await).await?;
    Ok(HttpResponse::Ok().json(transfers))
}

/// Changes all transfers that the filters of the list match in the same way, at most 5000.
#[utoipa::path(put, path = "/transfers/", tag = "transfers", request_body = TransferPatch, responses(
    (status = 200, description = "The transfers as they are now", body = Vec<TransferItem>),
    (status = 400, description = "More than 5000 match", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "A parameter or field is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn update_matching_transfers(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
    body: ValidJson<TransferPatch>,
) -> ApiResult<HttpResponse> {
    let filter = filter(&query)?;
    let transfers = db::transact(&shared.pool, async |tx| {
        db::transfers::update_matching(tx, (&user).into(), &filter, &body.0).await
    })
    .await?;
    Ok(HttpResponse::Ok().json(transfers))
}
