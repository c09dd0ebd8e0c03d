//! Users and their tokens (contract, section 2).

use serde::{Deserialize, Serialize};

use crate::{Timestamp, UserId, lenient};

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
    pub username: String,
    /// The password in the clear; stored as an argon2id hash.
    #[serde(deserialize_with = "lenient::string")]
    pub password: String,
}

/// Form of `POST /auth/password/login`; other fields of RFC 6749 are ignored.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Login {
    /// The login name.
    pub username: String,
    /// The password in the clear.
    pub password: String,
}

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
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub expiration: Timestamp,
}
