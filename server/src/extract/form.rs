//! A form of the login endpoints: urlencoded, or multipart.

use std::{future::Future, pin::Pin};

use actix_multipart::Multipart;
use actix_web::{FromRequest, HttpRequest, dev::Payload};
use futures_util::{StreamExt as _, TryStreamExt as _};

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
        let mut fields = Vec::new();
        let mut size = 0;
        let mut grow = |bytes: usize| {
            size += bytes;
            if size > FORM_LIMIT_BYTES { Err(ApiError::body_too_large(FORM_LIMIT_BYTES)) } else { Ok(()) }
        };
        if content_type(&request).starts_with("multipart/form-data") {
            let mut parts = Multipart::new(request.headers(), payload);
            while let Some(mut part) = parts.try_next().await.map_err(|error| bad(&error))? {
                let name = part.name().unwrap_or_default().to_owned();
                grow(name.len())?;
                let mut value = Vec::new();
                while let Some(chunk) = part.try_next().await.map_err(|error| bad(&error))? {
                    grow(chunk.len())?;
                    value.extend_from_slice(&chunk);
                }
                fields.push((name, String::from_utf8(value).map_err(|error| bad(&error))?));
            }
        } else {
            let mut body = Vec::new();
            while let Some(chunk) = payload.next().await {
                let chunk = chunk.map_err(|error| bad(&error))?;
                grow(chunk.len())?;
                body.extend_from_slice(&chunk);
            }
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
