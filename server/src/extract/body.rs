//! The bytes of a body, bounded in size and in time. What they mean is for the other extractors.

use actix_web::{
    HttpRequest,
    dev::Payload,
    http::header::CONTENT_LENGTH,
    web::{BytesMut, Data},
};
use futures_util::StreamExt as _;
use tokio::time::timeout;

use crate::{
    app::Shared,
    error::{ApiError, ApiResult},
};

/// Allocated for a body of unknown length, and at most for what a client only announces.
const FIRST_BYTES: usize = 64 << 10;

/// Reads a body.
///
/// # Errors
/// 413 when it is larger than `limit_bytes`; 422 when the connection breaks or nothing more of it comes.
pub(super) async fn read(request: &HttpRequest, payload: &mut Payload, limit_bytes: usize) -> ApiResult<BytesMut> {
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|bytes: usize| bytes > limit_bytes) {
        return Err(ApiError::body_too_large(limit_bytes));
    }
    let broken = |msg: String| ApiError::invalid_at(vec!["body".into()], msg);
    let Some(shared) = request.app_data::<Data<Shared>>() else {
        return Err(ApiError::internal(anyhow::anyhow!("a body is read where there is no shared data")));
    };
    let patience = shared.config.client_timeout;
    let mut body = BytesMut::with_capacity(announced.unwrap_or(FIRST_BYTES).min(FIRST_BYTES));
    loop {
        let next = timeout(patience, payload.next())
            .await
            .map_err(|_| broken(format!("the rest of the body did not come within {} s", patience.as_secs_f64())))?;
        let Some(chunk) = next else { return Ok(body) };
        let chunk = chunk.map_err(|error| broken(error.to_string()))?;
        if body.len() + chunk.len() > limit_bytes {
            return Err(ApiError::body_too_large(limit_bytes));
        }
        body.extend_from_slice(&chunk);
    }
}
