//! A form of the login endpoints: urlencoded, or multipart.

use std::{
    future::{Future, ready},
    pin::Pin,
};

use actix_multipart::Multipart;
use actix_web::{FromRequest, HttpRequest, dev::Payload};
use futures_util::{TryStreamExt as _, stream};

use super::body;
use crate::error::{ApiError, ApiResult};

/// Logins are short.
const FORM_LIMIT_BYTES: usize = 64 << 10;

/// The fields of a form, in order. Unknown ones do no harm.
#[derive(Debug, Default)]
pub struct Form(Vec<(String, String)>);

impl Form {
    /// The value of a field, where it is there.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The value of a field.
    ///
    /// # Errors
    /// 422 when it is missing or empty.
    pub fn required(&self, name: &str) -> ApiResult<&str> {
        match self.get(name) {
            Some(value) if !value.is_empty() => Ok(value),
            _ => Err(ApiError::invalid_field(name, "the field is required")),
        }
    }

    async fn read(request: HttpRequest, mut payload: Payload) -> ApiResult<Self> {
        let bad = |error: &dyn std::fmt::Display| ApiError::invalid_at(vec!["body".into()], error.to_string());
        // Read as a whole first: the reader of parts sets itself no limit.
        let body = body::read(&request, &mut payload, FORM_LIMIT_BYTES).await?.freeze();
        let mut fields = Vec::new();
        if content_type(&request).starts_with("multipart/form-data") {
            let mut parts = Multipart::new(request.headers(), stream::once(ready(Ok(body))));
            while let Some(mut part) = parts.try_next().await.map_err(|error| bad(&error))? {
                let name = part.name().unwrap_or_default().to_owned();
                let mut value = Vec::new();
                while let Some(chunk) = part.try_next().await.map_err(|error| bad(&error))? {
                    value.extend_from_slice(&chunk);
                }
                fields.push((name, String::from_utf8(value).map_err(|error| bad(&error))?));
            }
        } else {
            fields.extend(url::form_urlencoded::parse(&body).into_owned());
        }
        match fields.iter().find(|(_, value)| value.contains('\0')) {
            Some((name, _)) => Err(ApiError::invalid_field(name, "the text has a NUL character (U+0000)")),
            None => Ok(Self(fields)),
        }
    }
}

fn content_type(request: &HttpRequest) -> &str {
    request.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default()
}

impl FromRequest for Form {
    type Error = ApiError;
    type Future = Pin<Box<dyn Future<Output = Result<Self, ApiError>>>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        Box::pin(Self::read(request.clone(), payload.take()))
    }
}
