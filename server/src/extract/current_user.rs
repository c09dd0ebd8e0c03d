//! Who asks, and what the token is good for.

use std::future::{Ready, ready};

use actix_web::{FromRequest, HttpMessage as _, HttpRequest, dev::Payload};
use copal_schemas::{BatchJobId, SiteId, UserId};

use crate::{auth::LoginId, error::ApiError};

/// The user whose token the request carries, as the guard of all routes found it. Every query is
/// bound to its `id`, and to its [`CurrentUser::site`] where there is one.
#[derive(Clone, Debug)]
pub struct CurrentUser {
    /// The account.
    pub id: UserId,
    /// The login name.
    pub username: String,
    /// The login that the token stems from.
    pub login: LoginId,
    /// What the token is good for.
    pub bound: Bound,
}

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Everything of the user's.
    User,
    /// One Site's agent: what belongs to the Site.
    Site(SiteId),
    /// One BatchJob's launcher: what belongs to its Site, as far as a launcher needs it.
    Launcher(SiteId, BatchJobId),
}

impl CurrentUser {
    /// The only Site that the token is good for; `None` where it is good for all of the user's.
    #[must_use]
    pub fn site(&self) -> Option<SiteId> {
        match self.bound {
            Bound::User => None,
            Bound::Site(site) | Bound::Launcher(site, _) => Some(site),
        }
    }

    /// The only BatchJob that the token is good for.
    #[must_use]
    pub fn batch_job(&self) -> Option<BatchJobId> {
        match self.bound {
            Bound::Launcher(_, batch_job) => Some(batch_job),
            _ => None,
        }
    }
}

impl FromRequest for CurrentUser {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let user = request.extensions().get::<Self>().cloned();
        ready(user.ok_or_else(|| ApiError::unauthenticated("Not authenticated; log in and send the token")))
    }
}
