//! The id in a path such as `/jobs/{id}`.

use std::{future::Ready, future::ready, str::FromStr};

use actix_web::{FromRequest, HttpRequest, dev::Payload};

use crate::error::ApiError;

/// The `{id}` of the path; 422 where it is no id of 64 bits.
#[derive(Clone, Copy, Debug)]
pub struct PathId<T>(pub T);

impl<T: FromStr + 'static> FromRequest for PathId<T> {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let text = request.match_info().get("id").unwrap_or_default();
        ready(text.parse().map(Self).map_err(|_| {
            ApiError::invalid_at(vec!["path".into(), "id".into()], format!("an integer id is wanted, not {text:?}"))
        }))
    }
}
