//! The launcher's lease: opening a Session, hearing its signals, asking it for Jobs, and knowing how long
//! ago the service was last heard. What is done about it is the pilot's decision.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use copal_client::{Client, ClientError};
use copal_schemas::{
    AppId, BatchJobId, JobId, JobState, SessionId, SiteId,
    job::Job,
    problem::ErrorCode,
    session::{Acquire, Signals},
};
use tokio::sync::mpsc::UnboundedSender;
use tracing::{info, warn};

/// How long a call for signals waits at the service at most. Each is a heartbeat at its start and at its end.
const SIGNALS_WAIT: Duration = Duration::from_secs(20);
/// How long a Session is held that is not heard of, until the service has said it: as long as it holds any.
const HELD: Duration = Duration::from_secs(300);
/// How long to wait before signals that are known already are asked for again.
const SAME_SIGNALS_GAP: Duration = Duration::from_millis(500);

/// What the service said.
#[derive(Debug)]
pub enum Heard {
    /// Whether all nodes were asked for, Jobs that this Session holds now, and the names of Apps that were not known
    /// before.
    Acquired(SessionId, bool, Vec<Job>, HashMap<AppId, String>),
    /// Asking for Jobs did not succeed; whether it was for all nodes, and when to ask again.
    NotAcquired(SessionId, bool, Duration),
    /// What to cancel, whether to stop.
    Signals(Signals),
    /// The service answers again.
    Back,
    /// This Session is gone.
    Ended(SessionId),
}

/// How long ago the service last heard of the Session for certain, whoever spoke for it, and how long it holds a
/// Session that it does not hear of.
#[derive(Clone, Debug)]
pub struct Contact {
    start: Instant,
    last_ms: Arc<AtomicU64>,
    held_ms: Arc<AtomicU64>,
}

impl Default for Contact {
    fn default() -> Self {
        let held_ms = Arc::new(AtomicU64::new(milliseconds(HELD)));
        Self { start: Instant::now(), last_ms: Arc::new(AtomicU64::new(0)), held_ms }
    }
}

impl Contact {
    /// A call that was sent at this time was answered. When the service heard it is not known, since the answer may have
    /// been long on its way; but not before.
    pub fn mark(&self, sent: Instant) {
        self.last_ms.fetch_max(milliseconds(sent.saturating_duration_since(self.start)), Ordering::Relaxed);
    }

    /// When it last heard of the Session, or later.
    #[must_use]
    pub fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.last_ms.load(Ordering::Relaxed))
    }

    /// The service said that it holds the Session for so many seconds from when it last heard of it.
    fn hold(&self, seconds: f64) {
        if let Ok(held) = Duration::try_from_secs_f64(seconds) {
            self.held_ms.store(milliseconds(held), Ordering::Relaxed);
        }
    }

    /// How long the service holds the Session from when it last heard of it.
    #[must_use]
    pub fn held(&self) -> Duration {
        Duration::from_millis(self.held_ms.load(Ordering::Relaxed))
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The wait before the next try: doubled each time, with jitter, so that a thousand launchers do not
/// come back at the same moment.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: Duration::from_millis(100) }
    }
}

impl Backoff {
    /// How long to wait now.
    pub fn wait(&mut self) -> Duration {
        let wait = self.next.mul_f64(rand::random_range(0.75..1.25));
        self.next = (self.next * 2).min(Duration::from_secs(5));
        wait
    }

    /// It worked.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Opens a Session; while the service is away, tries until `give_up`.
///
/// # Errors
/// When the service refuses, or stays away.
pub async fn open(
    client: &Client,
    site_id: SiteId,
    batch_job_id: Option<BatchJobId>,
    give_up: Instant,
) -> Result<SessionId> {
    let mut backoff = Backoff::default();
    loop {
        match client.create_session(site_id, batch_job_id).await {
            Ok(session) => return Ok(session.id),
            Err(error) if error.is_transient() && Instant::now() < give_up => {
                warn!(error = %chain(&error), "can't open a Session yet");
                let left = give_up.saturating_duration_since(Instant::now());
                tokio::time::sleep(backoff.wait().min(left)).await;
            }
            Err(error) => return Err(error).context("can't open a Session"),
        }
    }
}

/// An error and its causes in one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Whether an error says that the Session is gone. A 404 without Copal's own code is a proxy's, whose service is away: no
/// reason to kill anything.
#[must_use]
pub fn is_ended(error: &ClientError) -> bool {
    error.code() == Some(ErrorCode::SessionEnded)
}

/// Hears the signals of one Session, and keeps it alive, until it is gone or nobody listens. A task of
/// its own with a connection of its own: no other call delays the heartbeat.
pub async fn hear_signals(client: Client, id: SessionId, contact: Contact, heard: UnboundedSender<Heard>) {
    let mut backoff = Backoff::default();
    let mut known = Signals::default();
    let mut is_away = false;
    // The first answer comes at once: it says how long the Session is held.
    let mut wait = Duration::ZERO;
    loop {
        let sent = Instant::now();
        match client.signals(id, wait.as_secs_f64()).await {
            Ok(signals) => {
                // The launcher may have taken itself for cut off meanwhile.
                let is_late = sent.elapsed() > wait + contact.held() / 10;
                contact.mark(sent);
                signals.held_sec.into_iter().for_each(|seconds| contact.hold(seconds));
                wait = SIGNALS_WAIT.min(contact.held() / 10);
                backoff.reset();
                let was_away = std::mem::take(&mut is_away);
                if was_away {
                    info!("the service is back");
                }
                if was_away || is_late {
                    drop(heard.send(Heard::Back));
                }
                // What is to be cancelled is listed until that is reported: not a reason to ask in a loop.
                if signals == known && (signals.stop || !signals.cancel.is_empty()) {
                    tokio::time::sleep(SAME_SIGNALS_GAP).await;
                    continue;
                }
                known = signals.clone();
                if (signals.stop || !signals.cancel.is_empty()) && heard.send(Heard::Signals(signals)).is_err() {
                    return;
                }
            }
            Err(error) if is_ended(&error) => {
                drop(heard.send(Heard::Ended(id)));
                return;
            }
            Err(error) => {
                if heard.is_closed() {
                    return;
                }
                if !std::mem::replace(&mut is_away, true) {
                    warn!(error = %chain(&error), "no signals from the service; running Jobs go on");
                }
                tokio::time::sleep(backoff.wait()).await;
            }
        }
    }
}

/// Asks for Jobs once, off the pilot's loop.
#[derive(Clone, Debug)]
pub struct Asker {
    /// The service.
    pub client: Client,
    /// The Session.
    pub session_id: SessionId,
    /// The Site.
    pub site_id: SiteId,
    /// When the service was heard.
    pub contact: Contact,
}

impl Asker {
    /// Asks for Jobs, and for the names of their Apps where `knows` does not know one. `mine` are the Jobs
    /// that the pilot has, given when the answer to an earlier question may have been lost with Jobs in it.
    ///
    /// # Errors
    /// [`ClientError`]; Jobs that the service gave are found by the next question.
    pub async fn ask(
        &self,
        wanted: &Acquire,
        knows: impl Fn(AppId) -> bool,
        mine: Option<&HashSet<JobId>>,
    ) -> Result<(Vec<Job>, HashMap<AppId, String>), ClientError> {
        let mut jobs = match mine {
            Some(mine) => self.forgotten(mine).await?,
            None => Vec::new(),
        };
        if jobs.is_empty() {
            let sent = Instant::now();
            jobs = self.client.acquire(self.session_id, wanted).await?;
            self.contact.mark(sent);
        }
        let mut names = HashMap::new();
        if jobs.iter().any(|job| !knows(job.app_id)) {
            // Without a name the Jobs can't run; that they are held already is why the name is tried for long.
            let mut backoff = Backoff::default();
            let apps = loop {
                match self.client.list_apps(&[self.site_id]).await {
                    Ok(apps) => break apps,
                    Err(error) if error.is_transient() => tokio::time::sleep(backoff.wait()).await,
                    Err(error) => return Err(error),
                }
            };
            names = apps.into_iter().map(|app| (app.id, app.name)).collect();
        }
        Ok((jobs, names))
    }

    /// Jobs that this Session holds without having been told: the answer of an acquire was lost on its way.
    async fn forgotten(&self, mine: &HashSet<JobId>) -> Result<Vec<Job>, ClientError> {
        let query = copal_client::api::JobQuery {
            site_ids: vec![self.site_id],
            session_id: Some(self.session_id),
            states: vec![JobState::Preprocessed, JobState::RestartReady],
            ..Default::default()
        };
        let jobs = self.client.list_jobs(&query).await?.results;
        Ok(jobs.into_iter().filter(|job| !mine.contains(&job.id)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows_to_a_bound() {
        let mut backoff = Backoff::default();
        assert!(backoff.wait() < Duration::from_millis(200));
        let last = (0..20).map(|_| backoff.wait()).last().unwrap();
        assert!(last > Duration::from_secs(3) && last < Duration::from_secs(7), "{last:?}");
        backoff.reset();
        assert!(backoff.wait() < Duration::from_millis(200));
    }

    #[test]
    fn contact_never_goes_back() {
        let contact = Contact::default();
        let sent = Instant::now();
        contact.clone().mark(sent + Duration::from_secs(9));
        let last = contact.last();
        contact.mark(sent);
        assert!(contact.last() == last && last > sent + Duration::from_secs(8));
    }
}
