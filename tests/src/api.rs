//! The service as its clients see it: raw requests and raw answers, so that a test checks the wire
//! and not what a typed client makes of it.

use reqwest::{Method, header::HeaderMap};
use serde_json::Value;

/// Requests to one service, with or without a token.
#[derive(Clone, Debug)]
pub struct Api {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
}

/// What the service answered.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body; null when it is empty, a string when it is no JSON.
    pub body: Value,
    request: String,
}

impl Api {
    /// Anonymous requests to the service at `base` (`http://127.0.0.1:8642`).
    ///
    /// # Panics
    /// Never on a machine that can open sockets.
    #[must_use]
    pub fn new(base: &str) -> Self {
        // Services under test are on this machine, whatever proxy the developer's environment names.
        let http = reqwest::Client::builder().no_proxy().build().expect("plain HTTP needs nothing of the machine");
        Self { http, base: base.trim_end_matches('/').into(), token: None }
    }

    /// The same service with a token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.into()), ..self.clone() }
    }

    /// The same token at another service.
    #[must_use]
    pub fn at(&self, base: &str) -> Self {
        Self { base: base.trim_end_matches('/').into(), ..self.clone() }
    }

    /// The base URL, without a slash at its end.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The token.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// A request to build on. `path` starts with a slash and may have a query, in which spaces are encoded here.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a request built by [`Api::request`].
    ///
    /// # Panics
    /// When there is no answer.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let request = request.build().expect("the test builds a valid request");
        let name = format!("{} {}", request.method(), request.url());
        let answer = self.http.execute(request).await.unwrap_or_else(|error| panic!("{name}: no answer: {error:?}"));
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let text = answer.text().await.unwrap_or_else(|error| panic!("{name}: the answer broke off: {error:?}"));
        let body = match text.is_empty() {
            true => Value::Null,
            false => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        };
        Answer { status, headers, body, request: name }
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    /// POST with a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    /// PUT with a JSON body.
    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::PUT, path).json(body)).await
    }

    /// PATCH with a JSON body.
    pub async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::PATCH, path).json(body)).await
    }

    /// DELETE.
    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// POST of a form.
    pub async fn post_form(&self, path: &str, form: &[(&str, &str)]) -> Answer {
        self.send(self.request(Method::POST, path).form(form)).await
    }

    /// The rows of a list.
    pub async fn list(&self, path: &str) -> Vec<Value> {
        self.get(path).await.ok()["results"].as_array().expect("a list has results").clone()
    }

    /// The ids of a list's rows.
    pub async fn ids(&self, path: &str) -> Vec<i64> {
        self.list(path).await.iter().map(id).collect()
    }

    /// How many rows match, by `count`.
    pub async fn count(&self, path: &str) -> i64 {
        self.get(path).await.ok()["count"].as_i64().expect("a list has a count")
    }
}

impl Answer {
    /// The body of a 200.
    ///
    /// # Panics
    /// On any other status.
    #[track_caller]
    pub fn ok(self) -> Value {
        self.expect_status(200)
    }

    /// The body of a 201.
    ///
    /// # Panics
    /// On any other status.
    #[track_caller]
    pub fn created(self) -> Value {
        self.expect_status(201)
    }

    /// A 204 without a body.
    ///
    /// # Panics
    /// On any other status, or with a body.
    #[track_caller]
    pub fn deleted(self) {
        let request = self.request.clone();
        assert_eq!(self.expect_status(204), Value::Null, "{request}: a 204 has no body");
    }

    /// The body of an answer with this status.
    ///
    /// # Panics
    /// On any other status.
    #[track_caller]
    pub fn expect_status(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}: {}", self.request, self.body);
        self.body
    }

    /// The problem document (RFC 9457) of a refusal with this status.
    ///
    /// # Panics
    /// On any other status, or when the body is no problem document.
    #[track_caller]
    pub fn refused(self, status: u16) -> Value {
        let (request, kind) = (self.request.clone(), self.headers.get("content-type").cloned());
        let body = self.expect_status(status);
        assert!(
            kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/problem+json")),
            "{request}: {body} is not sent as a problem document"
        );
        assert_eq!(body["status"], status, "{request}: {body}");
        for key in ["code", "title", "detail"] {
            assert!(body[key].as_str().is_some_and(|text| !text.is_empty()), "{request}: {body} has no {key}");
        }
        if status == 422 {
            assert!(
                body["errors"].as_array().is_some_and(|errors| !errors.is_empty()),
                "{request}: {body} names no field"
            );
        }
        body
    }

    /// A 422 whose errors name the field by its last part or by the text of its message.
    ///
    /// # Panics
    /// On any other status, or when no error names the field.
    #[track_caller]
    pub fn invalid(self, field: &str) -> Value {
        let request = self.request.clone();
        let body = self.refused(422);
        let errors = body["errors"].as_array().cloned().unwrap_or_default();
        let named = errors.iter().any(|error| {
            error["loc"].as_array().is_some_and(|loc| loc.iter().any(|part| part == field))
                || error["msg"].as_str().is_some_and(|msg| msg.contains(field))
        });
        assert!(named, "{request}: {body} does not name {field}");
        body
    }
}

/// The id of an object.
///
/// # Panics
/// When it has none.
#[must_use]
#[track_caller]
pub fn id(object: &Value) -> i64 {
    object["id"].as_i64().unwrap_or_else(|| panic!("{object} has no id"))
}
