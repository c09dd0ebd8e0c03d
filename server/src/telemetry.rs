//! Logs: their set-up, and one line a request. Never a token, a body or a query string.

use std::{io::IsTerminal as _, time::Instant};

use actix_web::{
    Error, HttpMessage as _,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
    http::header::{HeaderName, HeaderValue},
    middleware::Next,
};
use tracing_subscriber::EnvFilter;
use uuid::Uuid;

use crate::{error::ApiError, extract::CurrentUser, metrics};

/// The header that ties an answer to its line in the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Paths that machines ask all the time.
const PROBES: &[&str] = &["/healthz", "/readyz", "/metrics"];

/// Logs to stderr; the level comes from `RUST_LOG` (default `info`, SQL warnings only).
pub fn init() {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn,sqlx_postgres::options::pgpass=error,actix_server=warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// Gives each request an id and writes one line when its answer starts.
///
/// # Errors
/// Those of the request itself.
pub async fn observe<B: MessageBody>(request: ServiceRequest, next: Next<B>) -> Result<ServiceResponse<B>, Error> {
    let start = Instant::now();
    let id = Uuid::new_v4();
    let method = request.method().clone();
    let path = request.path().to_owned();
    let mut answer = next.call(request).await?;
    if let Ok(value) = HeaderValue::try_from(id.to_string()) {
        answer.headers_mut().insert(REQUEST_ID, value);
    }
    metrics::count_request(&method, start, &answer);
    let status = answer.status().as_u16();
    let user_id = answer.request().extensions().get::<CurrentUser>().map(|user| user.id.0);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let error = answer.response().error().and_then(|error| error.as_error::<ApiError>());
    match error {
        Some(error) if status >= 500 => {
            let cause = error.cause().map(|cause| format!("{cause:#}"));
            tracing::error!(request.id = %id, %method, path, status, ms, user.id = user_id, cause, "request failed");
        }
        Some(error) => {
            let reason = error.problem().detail.as_str();
            tracing::info!(request.id = %id, %method, path, status, ms, user.id = user_id, reason, "request refused");
        }
        // Probes come every few seconds and tell nothing.
        None if PROBES.contains(&path.as_str()) => {
            tracing::debug!(request.id = %id, %method, path, status, ms, "request");
        }
        None => tracing::info!(request.id = %id, %method, path, status, ms, user.id = user_id, "request"),
    }
    Ok(answer)
}
