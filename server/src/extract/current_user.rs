//! Who asks.

use std::future::{Ready, ready};

use actix_web::{FromRequest, HttpMessage as _, HttpRequest, dev::Payload};
use copal_schemas::UserId;

use crate::error::ApiError;

/// The user whose token the request carries, as the guard of all routes found it. Every query is
/// bound to its `id`.
#[derive(Clone, Debug)]
pub struct CurrentUser {
    /// The account.
    pub id: UserId,
    /// The login name.
    pub username: String,
}

impl FromRequest for CurrentUser {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let user = request.extensions().get::<Self>().cloned();
        ready(user.ok_or_else(|| ApiError::unauthenticated("Not authenticated; log in and send the token")))
    }
}
