//! Users and their tokens (contract, section 2).

use serde::{Deserialize, Serialize};

use crate::{BatchJobId, SiteId, Timestamp, UserId, lenient};

/// A user, as the service shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct User {
    /// The account's id.
    pub id: UserId,
    /// The login name, unique in the service.
    pub username: String,
}

/// Body of `POST /auth/password/register`.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Register {
    /// The login name.
    #[serde(deserialize_with = "lenient::string")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub username: String,
    /// The password in the clear; stored as an argon2id hash.
    #[serde(deserialize_with = "lenient::string")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub password: String,
}

/// Form of `POST /auth/password/login`; other fields of RFC 6749 are ignored.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Login {
    /// The login name.
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub username: String,
    /// The password in the clear.
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub password: String,
    /// `offline_access` asks for a refresh token, too.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub scope: String,
}

/// The scope that asks for a refresh token (OpenID Connect's word for it).
pub const OFFLINE_ACCESS: &str = "offline_access";

/// Answer of every login.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccessToken {
    /// The token for `Authorization: Bearer`.
    pub access_token: String,
    /// Always `bearer`.
    pub token_type: String,
    /// When the token lapses.
    #[serde(with = "crate::time::naive")]
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::Time))]
    pub expiration: Timestamp,
    /// Renews the login at `POST /auth/token`, once: the answer has the next one. Only there where
    /// the login asked for it with the scope `offline_access`, and for Sites and launchers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<String>,
}

/// Form of `POST /auth/token`.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Refresh {
    /// Always `refresh_token`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^refresh_token$"))]
    pub grant_type: String,
    /// The token of the answer before.
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub refresh_token: String,
}

/// Form of `POST /auth/revoke` (RFC 7009).
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Revoke {
    /// An access or refresh token: its login ends.
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub token: String,
}

/// Where a login came from and what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "db", derive(sqlx::Type), sqlx(type_name = "login_kind", rename_all = "lowercase"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum LoginKind {
    /// A user's, by password.
    Password,
    /// A user's, by a code that was approved in a browser.
    Device,
    /// An agent's, for one Site.
    Site,
    /// A launcher's, for one BatchJob.
    Launcher,
}

/// A login that has not lapsed. All tokens that stem from it end with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoginInfo {
    /// The login's id.
    pub id: i64,
    /// Where it came from.
    pub kind: LoginKind,
    /// The Site that it is bound to.
    pub site_id: Option<SiteId>,
    /// The BatchJob that it is bound to.
    pub batch_job_id: Option<BatchJobId>,
    /// The program and the address that logged in.
    pub client: String,
    /// When.
    #[serde(with = "crate::time::naive")]
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::Time))]
    pub created_at: Timestamp,
    /// When it was renewed last.
    #[serde(with = "crate::time::naive")]
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::Time))]
    pub last_used_at: Timestamp,
    /// When it lapses unless renewed.
    #[serde(with = "crate::time::naive")]
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::Time))]
    pub expires_at: Timestamp,
    /// Whether it is the login of the request's own token.
    pub current: bool,
}

/// Answer of `POST /batch-jobs/{id}/launcher-secret`.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LauncherSecret {
    /// Good for one exchange at `POST /auth/launcher`, as long as the BatchJob is not over.
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub secret: String,
}

/// Form of `POST /auth/device/login` (RFC 8628).
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeviceLoginStart {
    /// A UUID of the program's own choice; the same in both calls.
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub client_id: String,
    /// `offline_access` asks for a refresh token, too.
    #[serde(default)]
    pub scope: String,
}

/// Answer of `POST /auth/device/login`.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeviceLogin {
    /// Names the login in `POST /auth/device/token`; a secret of the program.
    pub device_code: String,
    /// What the user compares or types: `XXXX-XXXX`.
    pub user_code: String,
    /// Where the user approves.
    pub verification_uri: String,
    /// The same with the code filled in.
    pub verification_uri_complete: String,
    /// Seconds until the codes lapse.
    pub expires_in: f64,
    /// Seconds between two calls of `POST /auth/device/token`.
    pub interval: f64,
}

/// Form of `POST /auth/device/token`.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeviceToken {
    /// Always `urn:ietf:params:oauth:grant-type:device_code`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^urn:ietf:params:oauth:grant-type:device_code$"))]
    pub grant_type: String,
    /// As answered by `POST /auth/device/login`.
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub device_code: String,
    /// As sent to `POST /auth/device/login`.
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub client_id: String,
}

/// Form of `POST /auth/oauth/ALCF/login/device`, which the approval page sends.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeviceDecision {
    /// The code that the program shows.
    pub user_code: String,
    /// Who decides.
    pub username: String,
    /// Whose password proves it.
    pub password: String,
    /// `approve`; anything else denies.
    pub decision: String,
}
