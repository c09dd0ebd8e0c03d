//! [`ApiError`]: every way in which a request fails, and its one conversion to problem details.
//!
//! The cause of an internal error goes to the log and never to the client. What a database error
//! means to a client is decided here once; a *named* constraint is turned into a sentence beside
//! the query that may break it (see [`OnConstraint`]).

use std::{fmt, time::Duration};

use actix_web::{
    HttpResponse, ResponseError,
    http::{StatusCode, header},
};
use copal_schemas::problem::{CONTENT_TYPE, ErrorCode, FieldError, Problem};
use serde_json::Value;

/// The result of handlers and of everything they call.
pub type ApiResult<T> = Result<T, ApiError>;

/// A request that failed. Small, so that results stay cheap to pass.
pub struct ApiError(Box<Inner>);

struct Inner {
    problem: Problem,
    cause: Option<anyhow::Error>,
    retry_after: Option<Duration>,
    retryable: bool,
    allow: Option<String>,
}

impl ApiError {
    /// An error with the status and title of its code; `detail` is a sentence with the remedy.
    #[must_use]
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            problem: Problem::new(code, detail),
            cause: None,
            retry_after: None,
            retryable: false,
            allow: None,
        }))
    }

    /// 400: a rule of the domain forbids it.
    #[must_use]
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::Conflict, detail)
    }

    /// 400: more items than one call may have.
    #[must_use]
    pub fn bulk_too_large(items: usize) -> Self {
        let most = copal_schemas::page::MAX_BULK;
        Self::new(ErrorCode::BulkTooLarge, format!("{items} items in one call; send at most {most} a call"))
    }

    /// 401: no credential or a bad one.
    #[must_use]
    pub fn unauthenticated(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unauthenticated, detail)
    }

    /// 403: the credential is good, but not for this.
    #[must_use]
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::Forbidden, detail)
    }

    /// 404: no such object for this user. `what` names it: `Site 7`.
    #[must_use]
    pub fn not_found(what: impl fmt::Display) -> Self {
        Self::new(ErrorCode::NotFound, format!("{what} does not exist, or is not yours"))
    }

    /// 404 with the code that tells a launcher to stop: its Session is gone.
    #[must_use]
    pub fn session_ended(id: copal_schemas::SessionId) -> Self {
        Self::new(ErrorCode::SessionEnded, format!("Session {id} ended; start another to go on"))
    }

    /// 405, with the methods that the path has.
    #[must_use]
    pub fn method_not_allowed(allow: String) -> Self {
        let mut error = Self::new(ErrorCode::MethodNotAllowed, format!("this path takes {allow}"));
        error.0.allow = Some(allow);
        error
    }

    /// 413: the body is larger than `limit_bytes`.
    #[must_use]
    pub fn body_too_large(limit_bytes: usize) -> Self {
        let kib = limit_bytes >> 10;
        Self::new(ErrorCode::BodyTooLarge, format!("the body is larger than {kib} KiB; split it into several calls"))
    }

    /// 422: wrong values, each with its place.
    #[must_use]
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = match errors.first() {
            Some(first) if errors.len() == 1 => describe(first),
            Some(first) => format!("{}; and {} more", describe(first), errors.len() - 1),
            None => "the request is not valid".into(),
        };
        let mut error = Self::new(ErrorCode::Invalid, detail);
        error.0.problem.errors = errors;
        error
    }

    /// 422 with one wrong value: `loc` starts with `body`, `query` or `path`.
    #[must_use]
    pub fn invalid_at(loc: Vec<Value>, msg: impl Into<String>) -> Self {
        Self::invalid(vec![FieldError { loc, msg: msg.into() }])
    }

    /// 422 for one field of the body's top level.
    #[must_use]
    pub fn invalid_field(field: &str, msg: impl Into<String>) -> Self {
        Self::invalid_at(vec!["body".into(), field.into()], msg)
    }

    /// 429, with the time after which to try again.
    #[must_use]
    pub fn rate_limited(detail: impl Into<String>, retry_after: Duration) -> Self {
        let mut error = Self::new(ErrorCode::RateLimited, detail);
        error.0.retry_after = Some(retry_after);
        error
    }

    /// 500: a fault of the service. The cause is logged and never sent.
    #[must_use]
    pub fn internal(cause: impl Into<anyhow::Error>) -> Self {
        let mut error = Self::new(
            ErrorCode::Internal,
            "the service failed; its log has the cause under the id of the answer's x-request-id header",
        );
        error.0.cause = Some(cause.into());
        error
    }

    /// 503: the database can't be reached now, or the service stops.
    #[must_use]
    pub fn unavailable(cause: impl Into<anyhow::Error>) -> Self {
        let mut error = Self::new(ErrorCode::Unavailable, "the service can't answer now; try again in a moment");
        error.0.cause = Some(cause.into());
        error.0.retry_after = Some(Duration::from_secs(1));
        error
    }

    /// The code of the answer.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.0.problem.code
    }

    /// The answer's body.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.0.problem
    }

    /// What is behind an internal or unavailable error, for the log.
    #[must_use]
    pub fn cause(&self) -> Option<&anyhow::Error> {
        self.0.cause.as_ref()
    }

    /// Whether the same transaction may succeed when run again at once: two transactions met.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }
}

/// `body[0].num_nodes: an integer is wanted, not null`
fn describe(error: &FieldError) -> String {
    let mut place = String::new();
    for part in &error.loc {
        match part {
            Value::String(name) if place.is_empty() => place.push_str(name),
            Value::String(name) => {
                place.push('.');
                place.push_str(name);
            }
            index => {
                place.push('[');
                place.push_str(&index.to_string());
                place.push(']');
            }
        }
    }
    format!("{place}: {}", error.msg)
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.problem.detail)?;
        match &self.0.cause {
            Some(cause) => write!(f, ": {cause:#}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self}", self.code().as_str())
    }
}

impl std::error::Error for ApiError {}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.0.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        let mut answer = HttpResponse::build(self.status_code());
        answer.insert_header((header::CONTENT_TYPE, CONTENT_TYPE));
        if self.code() == ErrorCode::Unauthenticated {
            answer.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        }
        if let Some(allow) = &self.0.allow {
            answer.insert_header((header::ALLOW, allow.as_str()));
        }
        if let Some(after) = self.0.retry_after {
            answer.insert_header((header::RETRY_AFTER, after.as_secs().max(1).to_string()));
        }
        // `json` keeps a content type that is already set.
        answer.json(&self.0.problem)
    }
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Self::unavailable(error),
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default().into_owned();
                match code.as_str() {
                    // Serialization failure, deadlock: the transaction can simply run again.
                    "40001" | "40P01" => {
                        let mut error = Self::unavailable(error);
                        error.0.retryable = true;
                        error
                    }
                    // Lock or statement time-out, too many connections, a server that stops,
                    // crashes or starts.
                    "55P03" | "57014" | "53300" | "57P01" | "57P02" | "57P03" => Self::unavailable(error),
                    // A standby, or a server that its operator protects.
                    "25006" => {
                        let mut error = Self::unavailable(error);
                        error.0.problem.detail =
                            "the service's database is read-only now, so nothing can be changed; try again later"
                                .into();
                        error
                    }
                    code if code.starts_with("08") => Self::unavailable(error),
                    // A value that no column of the kind can hold and no check caught before.
                    "22003" | "22008" | "22021" | "22P05" => Self::invalid_at(
                        vec!["body".into()],
                        format!("a value can't be stored: {}", database.message()),
                    ),
                    _ => Self::internal(error),
                }
            }
            _ => Self::internal(error),
        }
    }
}

/// Turns the violation of one named constraint into an answer for the client.
pub trait OnConstraint<T> {
    /// Gives `answer()` where the constraint `name` was violated; other errors as they are.
    ///
    /// # Errors
    /// The answer, or the database's error.
    fn on_constraint(self, name: &str, answer: impl FnOnce() -> ApiError) -> ApiResult<T>;
}

impl<T> OnConstraint<T> for Result<T, sqlx::Error> {
    fn on_constraint(self, name: &str, answer: impl FnOnce() -> ApiError) -> ApiResult<T> {
        self.map_err(ApiError::from_constraint(name, answer))
    }
}

impl ApiError {
    fn from_constraint(name: &str, answer: impl FnOnce() -> Self) -> impl FnOnce(sqlx::Error) -> Self {
        move |error| match error.as_database_error().and_then(|error| error.constraint()) {
            Some(violated) if violated == name => answer(),
            _ => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use actix_web::body::MessageBody as _;

    use super::*;

    #[test]
    fn the_body_is_problem_details_and_hides_the_cause() {
        let answer = ApiError::internal(anyhow::anyhow!("secret of the database")).error_response();
        assert_eq!(answer.status(), 500);
        assert_eq!(answer.headers().get("content-type").unwrap(), CONTENT_TYPE);
        let body = answer.into_body().try_into_bytes().unwrap();
        assert!(!String::from_utf8_lossy(&body).contains("secret"));
    }

    #[test]
    fn a_wrong_value_is_named_in_the_sentence() {
        let error = ApiError::invalid_at(vec!["body".into(), 3.into(), "num_nodes".into()], "must be 1 or more");
        assert_eq!(error.problem().detail, "body[3].num_nodes: must be 1 or more");
        assert_eq!(error.problem().status, 422);
    }

    #[test]
    fn headers_go_with_their_status() {
        let answer = ApiError::unauthenticated("no token").error_response();
        assert_eq!(answer.headers().get("www-authenticate").unwrap(), "Bearer");
        let answer = ApiError::method_not_allowed("GET, PUT".into()).error_response();
        assert_eq!(answer.headers().get("allow").unwrap(), "GET, PUT");
        let answer = ApiError::rate_limited("too many", Duration::from_secs(7)).error_response();
        assert_eq!(answer.headers().get("retry-after").unwrap(), "7");
    }
}
