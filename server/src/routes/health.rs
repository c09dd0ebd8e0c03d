//! Whether the process lives and whether it can serve.

use actix_web::{HttpResponse, web};

use crate::{app::Shared, error::ApiResult};

/// The process answers.
#[utoipa::path(get, path = "/healthz", tag = "service", security(()), responses((status = 200, description = "The process answers", body = String, content_type = "text/plain")))]
pub(crate) async fn alive() -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; charset=utf-8").body("ok\n")
}

/// The process and its database answer.
#[utoipa::path(get, path = "/readyz", tag = "service", security(()), responses(
    (status = 200, description = "Requests can be served", body = String, content_type = "text/plain"),
))]
pub(crate) async fn ready(shared: web::Data<Shared>) -> ApiResult<HttpResponse> {
    sqlx::query("select 1").execute(&shared.pool).await?;
    Ok(HttpResponse::Ok().content_type("text/plain; charset=utf-8").body("ready\n"))
}

/// Counters and histograms for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "service", security(()), responses(
    (status = 200, description = "Prometheus' text form", body = String, content_type = "text/plain"),
))]
pub(crate) async fn metrics(shared: web::Data<Shared>) -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/plain; version=0.0.4; charset=utf-8")
        .body(crate::metrics::render(&shared.pool).await)
}
