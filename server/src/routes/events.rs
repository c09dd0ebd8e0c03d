//! Events (contract, section 9).

use actix_web::{HttpResponse, web};
use copal_schemas::{JobState, event::Event, page::Page, problem::Problem};

use crate::{
    app::Shared,
    db::{self, events::EventFilter},
    error::ApiResult,
    extract::{CurrentUser, QueryParams},
};

/// Lists the state changes of the user's Jobs, newest first.
#[utoipa::path(get, path = "/events/", tag = "events", params(
    ("id" = Option<Vec<i64>>, Query, description = "One of these"),
    ("job_id" = Option<Vec<i64>>, Query, description = "Of one of these Jobs"),
    ("batch_job_id" = Option<i64>, Query, description = "Of Jobs that ran in this BatchJob last"),
    ("scheduler_id" = Option<String>, Query, description = "The same by the scheduler's id"),
    ("tags" = Option<Vec<String>>, Query, description = "KEY:VALUE, all of which the Jobs have"),
    ("data" = Option<Vec<String>>, Query, description = "KEY:VALUE, all of which the events' data has"),
    ("timestamp_before" = Option<String>, Query, format = DateTime, description = "Then or earlier"),
    ("timestamp_after" = Option<String>, Query, format = DateTime, description = "Then or later"),
    ("from_state" = Option<JobState>, Query, description = "From this state"),
    ("to_state" = Option<JobState>, Query, description = "To this state"),
    ("ordering" = Option<String>, Query, pattern = "^-?timestamp$", description = "timestamp or -timestamp; newest first when left out"),
    ("limit" = Option<i64>, Query, minimum = 0, maximum = 100_000, description = "Rows at most"),
    ("offset" = Option<i64>, Query, minimum = 0, description = "Rows left out before the first"),
), responses(
    (status = 200, description = "A page of events", body = Page<Event>),
    (status = 422, description = "A parameter is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn list_events(
    shared: web::Data<Shared>,
    user: CurrentUser,
    query: QueryParams,
) -> ApiResult<HttpResponse> {
    let oldest_first = query.one_of("ordering", &["timestamp", "-timestamp"])? == Some("timestamp");
    let filter = EventFilter {
        ids: query.ids("id")?,
        job_ids: query.ids("job_id")?,
        batch_job_id: query.id("batch_job_id")?,
        scheduler_id: query.text("scheduler_id").filter(|id| *id != "0").map(Into::into),
        tags: query.pairs("tags").into_iter().collect(),
        data: query.pairs("data").into_iter().collect(),
        from_state: query.variant("from_state")?,
        to_state: query.variant("to_state")?,
        after: query.datetime("timestamp_after")?,
        before: query.datetime("timestamp_before")?,
    };
    let page = query.paging()?;
    let mut connection = shared.pool.acquire().await?;
    let events = db::events::list(&mut connection, (&user).into(), &filter, oldest_first, page).await?;
    drop(connection);
    Ok(HttpResponse::Ok().json(events))
}
