//! Calls about the service itself.

use std::time::{Duration, Instant};

use copal_schemas::Timestamp;
use reqwest::{Method, header::DATE};
use serde::Deserialize;

use super::{Client, ClientError};

/// What the service says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceInfo {
    /// Its version.
    pub version: String,
    /// What time it is there, to the second; `None` where a proxy took that away.
    pub time: Option<Timestamp>,
    /// How long it took to answer.
    pub latency: Duration,
}

#[derive(Deserialize)]
struct OpenApi {
    info: Info,
}

#[derive(Deserialize)]
struct Info {
    version: String,
}

impl Client {
    /// The service's version, clock and distance. Needs no token.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn service_info(&self) -> Result<ServiceInfo, ClientError> {
        let asked = Instant::now();
        let answer = self.send(self.request(Method::GET, "healthz")).await?;
        let latency = asked.elapsed();
        let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
        let time = date.and_then(|date| chrono::DateTime::parse_from_rfc2822(date).ok()).map(|time| time.to_utc());
        let described: OpenApi = self.get("openapi.json", &()).await?;
        Ok(ServiceInfo { version: described.info.version, time, latency })
    }
}
