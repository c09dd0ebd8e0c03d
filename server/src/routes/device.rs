//! The device login (RFC 8628; contract, section 2): a program asks for a code, the user approves
//! it on this service's page in any browser, the program gets its token.

use actix_web::{HttpRequest, HttpResponse, http::StatusCode, web};
use copal_schemas::{
    problem::{ErrorCode, Problem},
    user::{AccessToken, DeviceDecision, DeviceLogin, DeviceLoginStart, DeviceToken, LoginKind},
};
use uuid::Uuid;

use super::{auth::check_password, client};
use crate::{
    app::Shared,
    auth::{
        device::{self, DEVICE_PREFIX},
        limit::{self, Begun},
        login::{self, Start},
        secret,
    },
    db,
    error::{ApiError, ApiResult},
    extract::{Bound, Form, QueryParams},
};

const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:device_code";

/// The path of the page, as Balsam's clients know it.
const PAGE_PATH: &str = "/auth/oauth/ALCF/login/device";

/// The page; `{{...}}` are filled in.
const PAGE: &str = include_str!("../../static/device.html");

/// How often a user code that is taken is drawn again: with 10^10 codes, never.
const DRAWS: usize = 10;

/// Starts a device login.
#[utoipa::path(post, path = "/auth/device/login", tag = "auth", security(()),
    request_body(content = DeviceLoginStart, content_type = "application/x-www-form-urlencoded"), responses(
    (status = 200, description = "The codes", body = DeviceLogin),
    (status = 429, description = "Too many from one address", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn device_login(
    shared: web::Data<Shared>,
    request: HttpRequest,
    form: Form,
) -> ApiResult<HttpResponse> {
    let client_id = client_id(&form)?;
    let scope = form.get("scope").unwrap_or_default();
    limit::count(&shared.pool, Begun::DeviceLogin, client::address(&shared, &request)).await?;
    let (device_code, device_hash) = secret::new(DEVICE_PREFIX);
    let description = client::description(&shared, &request);
    let mut connection = shared.pool.acquire().await?;
    for _ in 0..DRAWS {
        let user_code = device::user_code();
        let life = device::LIFE;
        let added = db::logins::add_device_login(
            &mut connection,
            &device_hash,
            &user_code,
            client_id,
            scope,
            &description,
            life,
        );
        if added.await? {
            let verification_uri = format!("{}{PAGE_PATH}", client::own_url(&shared, &request));
            return Ok(HttpResponse::Ok().json(DeviceLogin {
                device_code,
                verification_uri_complete: format!("{verification_uri}?user_code={user_code}"),
                verification_uri,
                user_code,
                expires_in: life.as_seconds_f64(),
                interval: device::INTERVAL_SEC,
            }));
        }
    }
    Err(ApiError::internal(anyhow::anyhow!("no free user code in {DRAWS} draws")))
}

/// Gives the token once the user has approved. `detail` is the error code of RFC 8628.
#[utoipa::path(post, path = "/auth/device/token", tag = "auth", security(()),
    request_body(content = DeviceToken, content_type = "application/x-www-form-urlencoded"), responses(
    (status = 200, description = "A token", body = AccessToken),
    (status = 400, description = "`authorization_pending`, `expired_token`, `invalid_client` or `unsupported_grant_type`", body = Problem, content_type = "application/problem+json"),
    (status = 403, description = "`access_denied`", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn device_token(shared: web::Data<Shared>, form: Form) -> ApiResult<HttpResponse> {
    if form.required("grant_type")? != GRANT_TYPE {
        return Err(ApiError::conflict("unsupported_grant_type"));
    }
    let device_hash = secret::hash(form.required("device_code")?);
    let client_id = client_id(&form)?;
    let signer = shared.keys.signer(&shared.pool).await?;
    let token = db::transact(&shared.pool, async |tx| {
        let state = db::logins::device_state(tx, &device_hash, client_id).await?;
        let state = state.ok_or_else(|| ApiError::conflict("invalid_client"))?;
        if state.denied {
            return Err(ApiError::new(ErrorCode::Forbidden, "access_denied"));
        }
        if state.expired {
            return Err(ApiError::conflict("expired_token"));
        }
        let user_id = state.user_id.ok_or_else(|| ApiError::conflict("authorization_pending"))?;
        db::logins::remove_device_login(tx, &device_hash).await?;
        let username = db::users::name_of(tx, user_id).await?;
        let start = Start {
            user_id,
            username: &username,
            client: &state.client,
            kind: LoginKind::Device,
            bound: Bound::User,
            refresh: login::wants_refresh(&state.scope),
            wall_time_min: None,
        };
        Ok(login::start(tx, &signer, start).await?.1)
    })
    .await?;
    Ok(HttpResponse::Ok().json(token))
}

/// The page on which a user approves or denies a device login.
#[utoipa::path(get, path = "/auth/oauth/ALCF/login/device", tag = "auth", security(()), params(
    ("user_code" = Option<String>, Query, description = "The code, filled in"),
), responses(
    (status = 200, description = "The page", content_type = "text/html"),
    (status = 400, description = "The code is unknown, was decided on, or has lapsed", content_type = "text/html"),
))]
pub(crate) async fn device_page(shared: web::Data<Shared>, query: QueryParams) -> ApiResult<HttpResponse> {
    let Some(typed) = query.text("user_code") else {
        return Ok(page(StatusCode::OK, &Content::default()));
    };
    let mut connection = shared.pool.acquire().await?;
    let code = device::normal_code(typed);
    let program = match &code {
        Some(code) => db::logins::device_client(&mut connection, code).await?,
        None => None,
    };
    let (status, message) = match program {
        Some(_) => (StatusCode::OK, ""),
        None => (StatusCode::BAD_REQUEST, UNKNOWN_CODE),
    };
    let content =
        Content { message, code: code.as_deref().unwrap_or_default(), program: program.as_deref(), done: false };
    Ok(page(status, &content))
}

/// Approves or denies a device login.
#[utoipa::path(post, path = "/auth/oauth/ALCF/login/device", tag = "auth", security(()),
    request_body(content = DeviceDecision, content_type = "application/x-www-form-urlencoded"), responses(
    (status = 200, description = "It is decided", content_type = "text/html"),
    (status = 400, description = "The code is unknown, was decided on, or has lapsed", content_type = "text/html"),
    (status = 401, description = "Name or password is wrong", content_type = "text/html"),
    (status = 429, description = "Too many failed logins", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn decide_device(
    shared: web::Data<Shared>,
    request: HttpRequest,
    form: Form,
) -> ApiResult<HttpResponse> {
    let Some(code) = device::normal_code(form.get("user_code").unwrap_or_default()) else {
        return Ok(page(StatusCode::BAD_REQUEST, &Content { message: UNKNOWN_CODE, ..Content::default() }));
    };
    let program = {
        let mut connection = shared.pool.acquire().await?;
        db::logins::device_client(&mut connection, &code).await?
    };
    let username = form.get("username").unwrap_or_default();
    let password = form.get("password").unwrap_or_default();
    // Nobody denies another's login either: both take the password.
    let Some(user) = check_password(&shared, &request, username, password).await? else {
        let content = Content {
            message: "User name or password is wrong.",
            code: &code,
            program: program.as_deref(),
            done: false,
        };
        return Ok(page(StatusCode::UNAUTHORIZED, &content));
    };
    let approved = form.get("decision") == Some("approve");
    let mut connection = shared.pool.acquire().await?;
    let decided = db::logins::decide_device_login(&mut connection, &code, approved.then_some(user.id)).await?;
    let (status, message) = match (decided, approved) {
        (false, _) => (StatusCode::BAD_REQUEST, UNKNOWN_CODE),
        (true, true) => (StatusCode::OK, "Approved. The program is logged in; you can close this page."),
        (true, false) => (StatusCode::OK, "Denied. The program is not logged in; you can close this page."),
    };
    Ok(page(status, &Content { message, done: decided, ..Content::default() }))
}

const UNKNOWN_CODE: &str = "This code is unknown, was decided on already, or has lapsed. Start the login again.";

fn client_id(form: &Form) -> ApiResult<Uuid> {
    let text = form.required("client_id")?;
    text.parse().map_err(|_| ApiError::invalid_field("client_id", format!("a UUID is wanted, not {text:?}")))
}

#[derive(Default)]
struct Content<'a> {
    message: &'a str,
    code: &'a str,
    program: Option<&'a str>,
    /// Nothing is left to decide.
    done: bool,
}

fn page(status: StatusCode, content: &Content<'_>) -> HttpResponse {
    let program = content.program.map(|program| format!("Asked for by {program}.")).unwrap_or_default();
    let body = PAGE
        .replace("{{form}}", if content.done { "hidden" } else { "" })
        .replace("{{message}}", &escape(content.message))
        .replace("{{code}}", &escape(content.code))
        .replace("{{program}}", &escape(&program));
    HttpResponse::build(status)
        .content_type("text/html; charset=utf-8")
        .insert_header((
            "content-security-policy",
            "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
        ))
        .insert_header(("cache-control", "no-store"))
        // The address has the code.
        .insert_header(("referrer-policy", "no-referrer"))
        .insert_header(("x-content-type-options", "nosniff"))
        .body(body)
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // No placeholder comes about from a value.
            '{' => escaped.push_str("&#123;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use actix_web::body::MessageBody as _;

    use super::*;

    #[test]
    fn what_a_program_says_of_itself_is_only_text() {
        let content =
            Content { program: Some("<script>x</script> \"{{code}}\""), code: "BCDF-GHJK", ..Content::default() };
        let body = page(StatusCode::OK, &content).into_body().try_into_bytes().unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(!body.contains("<script>"));
        assert!(body.contains("&lt;script&gt;"));
        assert_eq!(body.matches("BCDF-GHJK").count(), 1);
        assert!(!body.contains("{{"));
    }
}
