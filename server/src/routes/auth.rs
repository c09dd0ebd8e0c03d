//! Accounts and logins (contract, section 2).

use actix_web::{HttpRequest, HttpResponse, web};
use copal_schemas::{
    problem::Problem,
    user::{AccessToken, Login, LoginKind, Register, User},
};

use super::client;
use crate::{
    app::Shared,
    auth::{
        limit::{self, Begun},
        login::{self, Start},
        password,
    },
    config::Registration,
    db,
    error::{ApiError, ApiResult},
    extract::{Bound, CurrentUser, Form, ValidJson},
};

/// The longest user name and password in letters: hashing must not become a way to keep cores busy.
const MAX_CREDENTIAL_LETTERS: usize = 256;

/// The largest body that makes an account: anybody may send one.
const REGISTER_LIMIT_BYTES: usize = 64 << 10;

/// The ways to log in.
#[utoipa::path(get, path = "/auth/how", tag = "auth", security(()), responses(
    (status = 200, description = "The enabled methods, in the spelling of Balsam's clients", body = Vec<String>),
))]
pub(crate) async fn login_methods() -> HttpResponse {
    HttpResponse::Ok().json(["LoginMethod.password", "LoginMethod.oauth_device"])
}

/// Makes an account.
#[utoipa::path(post, path = "/auth/password/register", tag = "auth", security(()), request_body = Register, responses(
    (status = 201, description = "The account", body = User),
    (status = 400, description = "The name is taken", body = Problem, content_type = "application/problem+json"),
    (status = 403, description = "Registration is closed", body = Problem, content_type = "application/problem+json"),
    (status = 429, description = "Too many accounts from one address", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn register(
    shared: web::Data<Shared>,
    request: HttpRequest,
    body: ValidJson<Register, REGISTER_LIMIT_BYTES>,
) -> ApiResult<HttpResponse> {
    if shared.config.registration == Registration::Closed {
        return Err(ApiError::forbidden("registration is closed at this service; ask its operator for an account"));
    }
    let Register { username, password } = body.0;
    check_credential("username", &username)?;
    check_credential("password", &password)?;
    limit::count(&shared.pool, Begun::Account, client::address(&shared, &request)).await?;
    let hash = password::hash(password.into()).await?;
    let mut connection = shared.pool.acquire().await?;
    let user = db::users::create(&mut connection, &username, &hash).await?;
    Ok(HttpResponse::Created().json(user))
}

/// Logs in with name and password.
#[utoipa::path(post, path = "/auth/password/login", tag = "auth", security(()),
    request_body(content = Login, content_type = "application/x-www-form-urlencoded"), responses(
    (status = 200, description = "A token", body = AccessToken),
    (status = 401, description = "Name or password is wrong", body = Problem, content_type = "application/problem+json"),
    (status = 429, description = "Too many failed logins", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn login(shared: web::Data<Shared>, request: HttpRequest, form: Form) -> ApiResult<HttpResponse> {
    let username = form.required("username")?;
    let password = form.required("password")?;
    if form.get("grant_type").is_some_and(|grant| !grant.is_empty() && grant != "password") {
        return Err(ApiError::invalid_field("grant_type", "\"password\" is wanted"));
    }
    let user = check_password(&shared, &request, username, password).await?;
    let user = user.ok_or_else(|| ApiError::unauthenticated("Unauthorized: user name or password is wrong"))?;
    let signer = shared.keys.signer(&shared.pool).await?;
    let description = client::description(&shared, &request);
    let refresh = login::wants_refresh(form.get("scope").unwrap_or_default());
    let tokens = db::transact(&shared.pool, async |tx| {
        let start = Start {
            user_id: user.id,
            username: &user.username,
            client: &description,
            kind: LoginKind::Password,
            bound: Bound::User,
            refresh,
            wall_time_min: None,
        };
        Ok(login::start(tx, &signer, start).await?.1)
    })
    .await?;
    Ok(HttpResponse::Ok().json(tokens))
}

/// The user, when the password is right. Counts the attempt, and refuses it when there were too many.
pub(super) async fn check_password(
    shared: &Shared,
    request: &HttpRequest,
    username: &str,
    password: &str,
) -> ApiResult<Option<User>> {
    if [username, password].iter().any(|text| text.chars().count() > MAX_CREDENTIAL_LETTERS) {
        return Ok(None);
    }
    let attempt = limit::begin(&shared.pool, username, client::address(shared, request)).await?;
    let account = db::users::find(&mut *shared.pool.acquire().await?, username).await?;
    let (user, stored) = match account {
        Some(account) => (Some(User { id: account.id, username: account.username }), account.password_hash),
        None => (None, None),
    };
    let fits = password::verify(password.into(), stored).await?;
    metrics::counter!("copal_logins_total", "outcome" => if fits { "accepted" } else { "refused" }).increment(1);
    if !fits {
        return Ok(None);
    }
    attempt.succeeded(&shared.pool).await?;
    Ok(user)
}

/// Who the token belongs to.
#[utoipa::path(get, path = "/auth/password/me", tag = "auth", responses(
    (status = 200, description = "The user", body = User),
))]
pub(crate) async fn whoami(user: CurrentUser) -> HttpResponse {
    HttpResponse::Ok().json(User { id: user.id, username: user.username })
}

fn check_credential(field: &str, text: &str) -> ApiResult<()> {
    match text.chars().count() {
        0 => Err(ApiError::invalid_field(field, "must not be empty")),
        letters if letters > MAX_CREDENTIAL_LETTERS => Err(ApiError::invalid_field(
            field,
            format!("{letters} letters are too many; at most {MAX_CREDENTIAL_LETTERS}"),
        )),
        _ => Ok(()),
    }
}
