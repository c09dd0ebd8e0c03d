//! Tokens after the login: renewal, revocation, and the credentials of agents and launchers.

use actix_web::{HttpRequest, HttpResponse, web};
use copal_schemas::{
    BatchJobId, SiteId,
    page::Page,
    problem::{ErrorCode, Problem},
    user::{AccessToken, LauncherSecret, LoginInfo, LoginKind, Refresh, Revoke},
};

use super::client;
use crate::{
    app::Shared,
    auth::{
        LoginId,
        login::{self, Renewed, Start},
        secret,
    },
    db,
    error::{ApiError, ApiResult},
    extract::{Bound, CurrentUser, Form, PathId},
};

/// What an agent and a launcher recognise their secret by.
const LAUNCHER_PREFIX: &str = "copal_launcher_";

/// Exchanges a refresh token for new tokens. Each is good for one exchange.
#[utoipa::path(post, path = "/auth/token", tag = "auth", security(()),
    request_body(content = Refresh, content_type = "application/x-www-form-urlencoded"), responses(
    (status = 200, description = "New tokens", body = AccessToken),
    (status = 401, description = "The login is over", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn renew_token(shared: web::Data<Shared>, form: Form) -> ApiResult<HttpResponse> {
    if form.required("grant_type")? != "refresh_token" {
        return Err(ApiError::invalid_field("grant_type", "\"refresh_token\" is wanted"));
    }
    let token = form.required("refresh_token")?;
    let signer = shared.keys.signer(&shared.pool).await?;
    // A theft is no error of the transaction: the revocation has to be committed.
    match db::transact(&shared.pool, async |tx| login::renew(tx, &signer, token).await).await? {
        Renewed::Tokens(tokens) => Ok(HttpResponse::Ok().json(tokens)),
        Renewed::Refused => Err(ApiError::unauthenticated("the login is over; log in again")),
        Renewed::Stolen => {
            shared.keys.expire();
            Err(ApiError::unauthenticated(
                "this refresh token was used before, so that somebody else may have it: its login is revoked; log in again",
            ))
        }
    }
}

/// Ends the login that an access or refresh token belongs to; an unknown token is no error (RFC 7009).
#[utoipa::path(post, path = "/auth/revoke", tag = "auth", security(()),
    request_body(content = Revoke, content_type = "application/x-www-form-urlencoded"), responses(
    (status = 204, description = "No token of that login is good any more"),
))]
pub(crate) async fn revoke_token(shared: web::Data<Shared>, form: Form) -> ApiResult<HttpResponse> {
    let token = form.required("token")?;
    let user = shared.keys.verify(&shared.pool, token).await;
    let mut connection = shared.pool.acquire().await?;
    match user {
        Ok(user) => db::logins::revoke(&mut connection, user.login).await?,
        Err(error) if error.code() == ErrorCode::Unauthenticated => {
            db::logins::revoke_by_refresh_token(&mut connection, &secret::hash(token)).await?;
        }
        // What it is good for is not known now, so nobody may believe that it is good for nothing.
        Err(error) => return Err(error),
    }
    shared.keys.expire();
    Ok(HttpResponse::NoContent().finish())
}

/// Lists the user's logins.
#[utoipa::path(get, path = "/auth/logins/", tag = "auth", responses(
    (status = 200, description = "The logins that are good, the newest first", body = Page<LoginInfo>),
))]
pub(crate) async fn list_logins(shared: web::Data<Shared>, user: CurrentUser) -> ApiResult<HttpResponse> {
    let mut connection = shared.pool.acquire().await?;
    let results = db::logins::list(&mut connection, user.id, user.login).await?;
    let count = i64::try_from(results.len()).unwrap_or(i64::MAX);
    Ok(HttpResponse::Ok().json(Page { count, results }))
}

/// Ends one of the user's logins.
#[utoipa::path(delete, path = "/auth/logins/{id}", tag = "auth", params(("id" = i64, Path)), responses(
    (status = 204, description = "No token of it is good any more"),
    (status = 404, description = "No such login", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn revoke_login(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<i64>,
) -> ApiResult<HttpResponse> {
    let mut connection = shared.pool.acquire().await?;
    if !db::logins::revoke_of_user(&mut connection, user.id, LoginId(id.0)).await? {
        return Err(ApiError::not_found(format_args!("login {}", id.0)));
    }
    shared.keys.expire();
    Ok(HttpResponse::NoContent().finish())
}

/// Makes a credential for a Site's agent, good for that Site only.
#[utoipa::path(post, path = "/sites/{id}/token", tag = "auth", params(("id" = i64, Path)), responses(
    (status = 201, description = "Tokens", body = AccessToken),
    (status = 403, description = "Only a user makes them", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "No such Site", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn create_site_token(
    shared: web::Data<Shared>,
    user: CurrentUser,
    request: HttpRequest,
    id: PathId<SiteId>,
) -> ApiResult<HttpResponse> {
    let description = client::description(&shared, &request);
    let signer = shared.keys.signer(&shared.pool).await?;
    let tokens = db::transact(&shared.pool, async |tx| {
        // Held until the login is stored, so that the Site is not deleted in between.
        db::sites::lock(tx, user.id, id.0).await?;
        let start = Start {
            user_id: user.id,
            username: &user.username,
            client: &description,
            kind: LoginKind::Site,
            bound: Bound::Site(id.0),
            refresh: true,
            wall_time_min: None,
        };
        Ok(login::start(tx, &signer, start).await?.1)
    })
    .await?;
    Ok(HttpResponse::Created().json(tokens))
}

/// Makes a secret that the BatchJob's launcher exchanges for a credential when it starts, however
/// long the BatchJob waits in the queue.
#[utoipa::path(post, path = "/batch-jobs/{id}/launcher-secret", tag = "auth", params(("id" = i64, Path)), responses(
    (status = 201, description = "The secret", body = LauncherSecret),
    (status = 400, description = "The BatchJob is over", body = Problem, content_type = "application/problem+json"),
    (status = 403, description = "Not for launchers", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "No such BatchJob", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn create_launcher_secret(
    shared: web::Data<Shared>,
    user: CurrentUser,
    id: PathId<BatchJobId>,
) -> ApiResult<HttpResponse> {
    let (secret, hash) = secret::new(LAUNCHER_PREFIX);
    db::transact(&shared.pool, async |tx| {
        let batch_job = db::batch_jobs::lock(tx, &user, id.0).await?;
        if batch_job.state.is_over() {
            return Err(ApiError::conflict(format!("BatchJob {} is over; no launcher starts in it", id.0)));
        }
        db::logins::add_launcher_secret(tx, id.0, &hash).await
    })
    .await?;
    Ok(HttpResponse::Created().json(LauncherSecret { secret }))
}

/// Exchanges a launcher's secret, once, for a credential that is good to the end of the walltime and
/// ends with the BatchJob.
#[utoipa::path(post, path = "/auth/launcher", tag = "auth", security(()),
    request_body(content = LauncherSecret, content_type = "application/x-www-form-urlencoded"), responses(
    (status = 200, description = "Tokens", body = AccessToken),
    (status = 401, description = "The secret is unknown or was exchanged, or the BatchJob is over", body = Problem, content_type = "application/problem+json"),
))]
pub(crate) async fn exchange_launcher_secret(
    shared: web::Data<Shared>,
    request: HttpRequest,
    form: Form,
) -> ApiResult<HttpResponse> {
    let hash = secret::hash(form.required("secret")?);
    let description = client::description(&shared, &request);
    let signer = shared.keys.signer(&shared.pool).await?;
    let tokens = db::transact(&shared.pool, async |tx| {
        let claim = db::logins::take_launcher_secret(tx, &hash).await?.ok_or_else(|| {
            ApiError::unauthenticated("the secret is unknown or was exchanged before, or its BatchJob is over")
        })?;
        if let Some(earlier) = claim.earlier {
            db::logins::revoke(tx, earlier).await?;
        }
        let start = Start {
            user_id: claim.user_id,
            username: &claim.username,
            client: &description,
            kind: LoginKind::Launcher,
            bound: Bound::Launcher(claim.site_id, claim.batch_job_id),
            refresh: true,
            wall_time_min: Some(claim.wall_time_min),
        };
        let (login, tokens) = login::start(tx, &signer, start).await?;
        db::logins::bind_launcher_secret(tx, &hash, login).await?;
        Ok(tokens)
    })
    .await?;
    Ok(HttpResponse::Ok().json(tokens))
}
