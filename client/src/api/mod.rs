//! The typed API client: one method a call of the service, one file a resource.
//!
//! It sends, decodes and turns error answers into [`ClientError`]. It retries nothing by itself:
//! what to repeat, and for how long, is the caller's decision (see [`ClientError::is_transient`]). The one
//! exception is a refused access token, which is renewed where it can be.

mod auth;
mod keeper;
mod resources;
mod service;
mod sessions;
mod stream;

use std::{sync::Arc, time::Duration};

use copal_schemas::problem::{ErrorCode, Problem};
use keeper::Keeper;
use reqwest::{Method, RequestBuilder, Response, StatusCode, header::LOCATION, redirect::Policy};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use url::{Host, Url};

pub use resources::{EventQuery, JobQuery};
pub use service::ServiceInfo;
pub use stream::{ChangeStream, StreamQuery};

use crate::Credentials;

/// How long a connection may take to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(6);
/// How long an answer may take, beyond what the request itself asks to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// How long to wait for the answer to a call that the service may hold for so many seconds.
fn patience(wait_sec: f64) -> Duration {
    ANSWER_TIMEOUT + Duration::from_secs_f64(wait_sec.clamp(0.0, 60.0))
}

/// A call that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The service could not be reached, or the connection broke before the answer was complete.
    #[error("can't reach the service at {url}; check that it runs and that the address is right")]
    Unreachable {
        /// The service's base URL.
        url: Url,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// The service answered with an error.
    #[error("{}", .0.detail)]
    Problem(Box<Problem>),
    /// The answer is not what this version of the client understands.
    #[error("the answer of {url} is not understood; are client and service of the same version?")]
    Answer {
        /// What was asked.
        url: Url,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
}

impl ClientError {
    /// The service's code, where the service answered.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Problem(problem) => Some(problem.code),
            _ => None,
        }
    }

    /// Whether the same call may succeed later without anybody's doing: the service is away, too
    /// busy, or limits rates. A call that the service refuses is not transient.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Problem(problem) => problem.status >= 500 || problem.status == 429,
            Self::Answer { .. } => false,
        }
    }
}

/// A connection to the service, cheap to clone; clones share the connection pool and the token.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    http: reqwest::Client,
    base: Url,
    access: Access,
}

/// What requests carry.
#[derive(Debug)]
enum Access {
    Anonymous,
    /// A token that nobody renews.
    Token(SecretString),
    Kept(Box<Keeper>),
}

impl Client {
    /// A client of the service at `base`, anonymous where there is no token.
    ///
    /// # Errors
    /// When the TLS set-up of this machine can't be used.
    pub fn new(base: &Url, token: Option<SecretString>) -> Result<Self, ClientError> {
        Self::with_access(base, token.map_or(Access::Anonymous, Access::Token))
    }

    fn with_access(base: &Url, access: Access) -> Result<Self, ClientError> {
        let mut base = base.clone();
        // Url::join drops the last part of a path that does not end in a slash.
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let mut http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            // Passwords and tokens are for the service that the user has named.
            .redirect(Policy::none())
            .user_agent(concat!("copal/", env!("CARGO_PKG_VERSION")));
        if is_loopback(&base) {
            // Login nodes set http_proxy for the outside world; it can't lead back to this machine.
            http = http.no_proxy();
        }
        let http = http.build().map_err(|source| ClientError::Unreachable { url: base.clone(), source })?;
        Ok(Self { inner: Arc::new(Inner { http, base, access }) })
    }

    /// A client with stored credentials, which it renews in their file where they can be renewed.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn from_credentials(credentials: &Credentials) -> Result<Self, ClientError> {
        Self::with_access(&credentials.api_root, Access::Kept(Box::new(Keeper::new(credentials.clone()))))
    }

    /// The stored credentials as they are now, where the client has such.
    #[must_use]
    pub fn credentials(&self) -> Option<Credentials> {
        match &self.inner.access {
            Access::Kept(keeper) => Some(keeper.credentials()),
            Access::Anonymous | Access::Token(_) => None,
        }
    }

    /// The service's base URL, with a slash at its end.
    #[must_use]
    pub fn base(&self) -> &Url {
        &self.inner.base
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        // Paths are this crate's own, so the base with the path appended is always a URL.
        let url = format!("{}{}", self.inner.base, path.trim_start_matches('/'));
        self.inner.http.request(method, url).timeout(ANSWER_TIMEOUT)
    }

    /// Sends a request with the client's token.
    async fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let keeper = match &self.inner.access {
            Access::Anonymous => return self.send_bare(request).await,
            Access::Token(token) => return self.send_bare(request.bearer_auth(token.expose_secret())).await,
            Access::Kept(keeper) => keeper,
        };
        let token = keeper.token(self).await;
        let again = request.try_clone();
        let refusal = match self.send_bare(request.bearer_auth(token.expose_secret())).await {
            Err(error) if error.code() == Some(ErrorCode::Unauthenticated) => error,
            other => return other,
        };
        match (again, keeper.replace(self, &token).await) {
            (Some(again), Some(token)) => self.send_bare(again.bearer_auth(token.expose_secret())).await,
            _ => Err(refusal),
        }
    }

    /// Sends a request as it is.
    async fn send_bare(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let answer =
            request.send().await.map_err(|source| ClientError::Unreachable { url: self.inner.base.clone(), source })?;
        if answer.status().is_success() { Ok(answer) } else { Err(problem(answer).await) }
    }

    async fn fetch<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        self.decode(self.send(request).await?).await
    }

    /// Sends a request without the client's token, as those for tokens are.
    async fn fetch_bare<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        self.decode(self.send_bare(request).await?).await
    }

    async fn decode<T: DeserializeOwned>(&self, answer: Response) -> Result<T, ClientError> {
        let url = answer.url().clone();
        answer.json().await.map_err(|source| {
            if source.is_decode() {
                ClientError::Answer { url, source }
            } else {
                ClientError::Unreachable { url, source }
            }
        })
    }

    async fn done(&self, request: RequestBuilder) -> Result<(), ClientError> {
        self.send(request).await.map(drop)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, query: &impl Serialize) -> Result<T, ClientError> {
        self.fetch(self.request(Method::GET, path).query(query)).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        self.fetch(self.request(Method::POST, path).json(body)).await
    }

    async fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        self.fetch(self.request(Method::PUT, path).json(body)).await
    }

    async fn patch<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        self.fetch(self.request(Method::PATCH, path).json(body)).await
    }

    async fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.done(self.request(Method::DELETE, path)).await
    }
}

/// Whether the address is of this very machine.
#[must_use]
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

async fn problem(answer: Response) -> ClientError {
    let (status, url) = (answer.status(), answer.url().clone());
    if status.is_redirection() {
        let place = answer.headers().get(LOCATION).map(|place| String::from_utf8_lossy(place.as_bytes()).into_owned());
        let place = place.unwrap_or_else(|| "nowhere".into());
        let detail = format!(
            "{url} answered {status} and sends to {place}; log in there with `copal login --url` if that is right"
        );
        return ClientError::Problem(Box::new(Problem {
            status: status.as_u16(),
            ..Problem::new(ErrorCode::Unknown, detail)
        }));
    }
    let text = answer.text().await.unwrap_or_default();
    ClientError::Problem(Box::new(serde_json::from_str(&text).unwrap_or_else(|_| foreign_problem(status, &url, &text))))
}

/// An error answer that is no problem document: a proxy's page, or another service altogether.
fn foreign_problem(status: StatusCode, url: &Url, text: &str) -> Problem {
    let code = match status.as_u16() {
        401 => ErrorCode::Unauthenticated,
        403 => ErrorCode::Forbidden,
        404 => ErrorCode::NotFound,
        429 => ErrorCode::RateLimited,
        502..=504 => ErrorCode::Unavailable,
        500.. => ErrorCode::Internal,
        _ => ErrorCode::Unknown,
    };
    let start: String = text.chars().filter(|letter| !letter.is_control()).take(200).collect();
    Problem { status: status.as_u16(), ..Problem::new(code, format!("{url} answered {status}: {start}")) }
}
