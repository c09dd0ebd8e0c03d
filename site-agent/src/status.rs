//! The board on which the agent's services show how they fare; kept in `log/agent-status.json` for
//! `copal site status`.

use std::{
    error::Error as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chrono::Utc;
use copal_client::{
    SiteDir,
    agent_status::{AgentStatus, this_host},
};
use copal_schemas::SiteId;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The file is written at most once in this time.
const PAUSE: Duration = Duration::from_millis(500);
/// The file is written at least once in this time, which shows that the agent lives.
const PERIOD: Duration = Duration::from_secs(30);

/// The board. Clones are the same board.
#[derive(Clone)]
pub struct StatusBoard {
    inner: Arc<Inner>,
}

struct Inner {
    site: SiteDir,
    status: Mutex<AgentStatus>,
    changed: Notify,
}

impl StatusBoard {
    /// An empty board.
    #[must_use]
    pub fn new(site: &SiteDir, site_id: SiteId, api_root: String) -> Self {
        let now = Utc::now();
        let status = AgentStatus {
            pid: std::process::id(),
            host: this_host(),
            version: env!("CARGO_PKG_VERSION").into(),
            site_id,
            api_root,
            started: now,
            updated: now,
            stopped: None,
            services: std::collections::BTreeMap::new(),
        };
        Self { inner: Arc::new(Inner { site: site.clone(), status: Mutex::new(status), changed: Notify::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, AgentStatus> {
        self.inner.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A service did its work.
    pub fn success(&self, service: &str, detail: impl Into<String>) {
        let mut status = self.lock();
        let entry = status.services.entry(service.into()).or_default();
        if entry.failures > 0 {
            tracing::info!(service, "works again after {} failures", entry.failures);
        }
        entry.last_success = Some(Utc::now());
        entry.failures = 0;
        entry.detail = detail.into();
        drop(status);
        self.inner.changed.notify_one();
    }

    /// A service failed. Logged when it is news.
    pub fn failure(&self, service: &str, error: &str) {
        let mut status = self.lock();
        let entry = status.services.entry(service.into()).or_default();
        if entry.failures == 0 || entry.last_error.as_deref() != Some(error) {
            tracing::warn!(service, "{error}");
        }
        entry.failures = entry.failures.saturating_add(1);
        entry.last_error = Some(error.into());
        entry.last_error_time = Some(Utc::now());
        drop(status);
        self.inner.changed.notify_one();
    }

    /// Why a service does not work at present; `None` while it does, or has not begun.
    #[must_use]
    pub fn trouble(&self, service: &str) -> Option<String> {
        let status = self.lock();
        let entry = status.services.get(service)?;
        (entry.failures > 0).then(|| entry.last_error.clone().unwrap_or_default())
    }

    /// Keeps the file up to date until `stop`, and marks it as stopped then.
    pub async fn keep_written(self, stop: CancellationToken) {
        let mut was_written = true;
        while !stop.is_cancelled() {
            was_written = self.write(was_written);
            tokio::select! {
                () = stop.cancelled() => break,
                () = async { tokio::time::sleep(PAUSE).await; self.inner.changed.notified().await } => {}
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
        self.lock().stopped = Some(Utc::now());
        self.write(was_written);
    }

    /// Writes the file. A failure is logged when it is news; says whether there was none.
    fn write(&self, was_written: bool) -> bool {
        let status = {
            let mut status = self.lock();
            status.updated = Utc::now();
            status.clone()
        };
        let outcome = status.write(&self.inner.site);
        if let Err(error) = &outcome
            && was_written
        {
            tracing::warn!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default());
        }
        outcome.is_ok()
    }
}
