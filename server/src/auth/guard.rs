//! The guard in front of all routes: what is not public here needs a token.

use actix_web::{
    Error, HttpMessage as _,
    body::{EitherBody, MessageBody},
    dev::{ServiceRequest, ServiceResponse},
    http::header,
    middleware::Next,
    web,
};

use crate::{
    app::Shared,
    error::{ApiError, ApiResult},
    extract::CurrentUser,
};

/// Paths that anybody may call. A path that is missing here is closed.
const PUBLIC: &[&str] = &[
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/auth/how",
    "/auth/password/register",
    "/auth/password/login",
];

/// Lets requests through to public paths and those with a good token; all others get 401.
///
/// # Errors
/// Those of the request itself.
pub async fn guard<B: MessageBody>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, Error> {
    if !PUBLIC.contains(&request.path()) {
        match authenticate(&request).await {
            Ok(user) => drop(request.extensions_mut().insert(user)),
            // An answer and no error, so that it gets its id and its line in the log.
            Err(refusal) => return Ok(request.error_response(refusal).map_into_right_body()),
        }
    }
    Ok(next.call(request).await?.map_into_left_body())
}

async fn authenticate(request: &ServiceRequest) -> ApiResult<CurrentUser> {
    let Some(shared) = request.app_data::<web::Data<Shared>>() else {
        return Err(ApiError::internal(anyhow::anyhow!("the guard runs in an app without shared data")));
    };
    let token = bearer(request)
        .ok_or_else(|| ApiError::unauthenticated("Not authenticated: send `Authorization: Bearer TOKEN`"))?;
    shared.keys.verify(&shared.pool, token).await
}

fn bearer(request: &ServiceRequest) -> Option<&str> {
    let value = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}
