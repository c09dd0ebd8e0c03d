//! The API's description, for programs and for people.

use actix_web::HttpResponse;

use crate::openapi;

/// Reads `/openapi.json` and shows it; needs nothing from other hosts.
const PAGE: &str = include_str!("../../static/docs.html");

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "service", security(()), responses(
    (status = 200, description = "The API in OpenAPI 3.1", content_type = "application/json"),
))]
pub(crate) async fn openapi_json() -> HttpResponse {
    HttpResponse::Ok().json(openapi::document())
}

/// The API for people to read.
#[utoipa::path(get, path = "/docs", tag = "service", security(()), responses(
    (status = 200, description = "A page", content_type = "text/html"),
))]
pub(crate) async fn page() -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/html; charset=utf-8")
        .insert_header((
            "content-security-policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
        ))
        .body(PAGE)
}
