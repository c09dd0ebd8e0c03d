//! The guard in front of all routes: what is not public here needs a token, and a token that is
//! bound to a Site or a BatchJob opens only what their programs need.

use actix_web::{
    Error, HttpMessage as _,
    body::{EitherBody, MessageBody},
    dev::{ServiceRequest, ServiceResponse},
    http::{Method, header},
    middleware::Next,
    web,
};

use crate::{
    app::Shared,
    error::{ApiError, ApiResult},
    extract::{Bound, CurrentUser},
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
    "/auth/device/login",
    "/auth/device/token",
    "/auth/device",
    "/auth/oauth/ALCF/login/device",
    "/auth/token",
    "/auth/revoke",
    "/auth/launcher",
    // Its token is the first message.
    "/subscribe-user",
];

/// Lets requests through to public paths and those with a good token; all others get 401 or 403.
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
    let user = match request.path().starts_with("/sessions/") {
        true => shared.keys.verify_holder(&shared.pool, token).await?,
        false => shared.keys.verify(&shared.pool, token).await?,
    };
    if opens(user.bound, request.method(), request.path()) {
        return Ok(user);
    }
    let whose = match user.bound {
        Bound::Launcher(..) => "a launcher",
        _ => "a Site's agent",
    };
    Err(ApiError::forbidden(format!("the token is that of {whose}, which may not do this; log in as a user")))
}

fn bearer(request: &ServiceRequest) -> Option<&str> {
    let value = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// Whether a token opens a route at all. Which rows it reaches there is for the queries, which are
/// bound to the token's user and Site.
fn opens(bound: Bound, method: &Method, path: &str) -> bool {
    let read = method == Method::GET;
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let (collection, item, rest) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    match bound {
        Bound::User => true,
        Bound::Site(site) => match (collection, item) {
            ("auth", _) => path == "/auth/password/me",
            // It reports for its own Site; making, deleting and new credentials are the owner's.
            ("sites", Some(id)) => rest.is_none() && id == site.to_string() && (read || method == Method::PUT),
            ("sites", None) => read,
            // What runs at a Site is decided by the Site's own files; the index follows them.
            ("apps" | "batch-jobs" | "jobs" | "sessions" | "transfers" | "events", _) => true,
            _ => false,
        },
        Bound::Launcher(site, batch_job) => match (collection, item) {
            ("auth", _) => path == "/auth/password/me",
            ("sites", Some(id)) => read && rest.is_none() && id == site.to_string(),
            ("batch-jobs", Some(id)) => read && rest.is_none() && id == batch_job.to_string(),
            ("sites" | "batch-jobs" | "apps" | "jobs" | "transfers" | "events", _) => read,
            ("sessions", _) => true,
            _ => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use copal_schemas::{BatchJobId, SiteId};

    use super::*;

    #[test]
    fn an_agent_reaches_its_own_site_and_makes_no_others() {
        let agent = Bound::Site(SiteId(7));
        let open = |method: Method, path| opens(agent, &method, path);
        assert!(open(Method::PUT, "/sites/7"));
        assert!(open(Method::GET, "/sites/7/"));
        assert!(open(Method::PATCH, "/batch-jobs/"));
        assert!(open(Method::POST, "/batch-jobs/3/launcher-secret"));
        for (method, path) in [
            (Method::PUT, "/sites/8"),
            (Method::DELETE, "/sites/7"),
            (Method::POST, "/sites/"),
            (Method::POST, "/sites/7/token"),
            (Method::GET, "/auth/logins/"),
            (Method::GET, "/something/new"),
        ] {
            assert!(!open(method.clone(), path), "{method} {path}");
        }
    }

    #[test]
    fn a_launcher_reads_and_has_sessions() {
        let launcher = Bound::Launcher(SiteId(7), BatchJobId(3));
        let open = |method: Method, path| opens(launcher, &method, path);
        assert!(open(Method::GET, "/jobs/5"));
        assert!(open(Method::GET, "/batch-jobs/3"));
        assert!(open(Method::POST, "/sessions/"));
        assert!(open(Method::POST, "/sessions/4/updates"));
        for (method, path) in [
            (Method::GET, "/batch-jobs/4"),
            (Method::POST, "/jobs/"),
            (Method::PATCH, "/jobs/"),
            (Method::PUT, "/batch-jobs/3"),
            (Method::POST, "/batch-jobs/3/launcher-secret"),
            (Method::PUT, "/sites/7"),
            (Method::DELETE, "/jobs/5"),
        ] {
            assert!(!open(method.clone(), path), "{method} {path}");
        }
    }
}
