//! Waking whoever waits: LISTEN/NOTIFY between processes, registries of waiters inside this one.
//!
//! A transaction that changes something sends one small notification a Site, inside itself
//! ([`Wakes`]). Each process holds one LISTEN connection ([`listen`]) and wakes what waits here:
//! acquires ([`waiters`]), `signals` calls, and the tail that feeds the event streams ([`tail`]).
//! Nothing depends on a notification for correctness: a lost one is made up for by the
//! fallback periods of those who wait.

mod changes;
mod listen;
mod position;
mod tail;
mod waiters;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use copal_schemas::{JobState, SessionId, SiteId, UserId, job_state};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

pub use changes::{batch_job_deleted, batch_jobs_changed, prune, site_changed, site_deleted};
pub use position::{BadPosition, Position};
pub use tail::{Entry, Message, Page, Source, StreamFilter, catch_up, start_position};
pub use waiters::{Token, Waiter, Wants};

/// The channel of all notifications.
const CHANNEL: &str = "copal";
/// How long somebody who waits trusts the notifications before looking again.
const FALLBACK: Duration = Duration::from_secs(30);
/// The same while notifications are known not to arrive.
const FALLBACK_DEAF: Duration = Duration::from_secs(1);
/// `signals` calls that have not looked yet are told of this many Sites; after that, to look anyway.
const SIGNALS_KEPT: usize = 256;

/// What a transaction did at one Site that somebody may wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wake {
    /// Jobs that a launcher may take now and could not before.
    #[serde(rename = "r", default, skip_serializing_if = "is_zero")]
    pub runnable: u32,
    /// The same for the agent's hooks.
    #[serde(rename = "p", default, skip_serializing_if = "is_zero")]
    pub processable: u32,
    /// The same for its staging.
    #[serde(rename = "t", default, skip_serializing_if = "is_zero")]
    pub stageable: u32,
    /// A Session's holder has something to hear.
    #[serde(rename = "g", default, skip_serializing_if = "std::ops::Not::not")]
    pub signals: bool,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Wake {
    /// A Job is in this state now, and held or not.
    #[must_use]
    pub fn free(state: JobState, held_by: Option<SessionId>) -> Self {
        let free = held_by.is_none();
        Self {
            runnable: u32::from(free && state.is_runnable()),
            processable: u32::from(free && job_state::PROCESSABLE.contains(&state)),
            stageable: u32::from(free && job_state::STAGEABLE.contains(&state)),
            signals: false,
        }
    }
}

/// All wake-ups of a transaction.
#[derive(Debug, Default)]
pub struct Wakes(BTreeMap<(UserId, SiteId), Wake>);

/// A notification on the wire.
#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    #[serde(rename = "s")]
    site: SiteId,
    #[serde(flatten)]
    wake: Wake,
}

impl Wakes {
    /// Adds what happened to one object; [`Wake::default`] for what only the event stream tells.
    pub fn add(&mut self, owner: UserId, site: SiteId, wake: Wake) {
        let sum = self.0.entry((owner, site)).or_default();
        sum.runnable = sum.runnable.saturating_add(wake.runnable);
        sum.processable = sum.processable.saturating_add(wake.processable);
        sum.stageable = sum.stageable.saturating_add(wake.stageable);
        sum.signals |= wake.signals;
    }

    /// What to notify, a text a Site.
    #[must_use]
    pub fn payloads(&self) -> Vec<String> {
        let texts = self.0.iter().map(|((_, site), wake)| serde_json::to_string(&Payload { site: *site, wake: *wake }));
        // Numbers and booleans always serialise.
        texts.filter_map(Result::ok).collect()
    }
}

/// The wake-ups of this process; cheap to clone.
#[derive(Clone)]
pub struct Feed(Arc<Inner>);

struct Inner {
    waiters: waiters::Registry,
    signals: broadcast::Sender<SiteId>,
    ticks: watch::Sender<u64>,
    pages: broadcast::Sender<tail::Message>,
    deaf: AtomicBool,
}

impl Feed {
    /// A feed that nobody feeds yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            waiters: waiters::Registry::default(),
            signals: broadcast::channel(SIGNALS_KEPT).0,
            ticks: watch::channel(0).0,
            pages: broadcast::channel(tail::PAGES_KEPT).0,
            deaf: AtomicBool::new(true),
        }))
    }

    /// Listens to the database and feeds the streams until `stop`.
    pub async fn run(self, pool: PgPool, stop: CancellationToken) {
        tokio::join!(listen::run(self.clone(), pool.clone(), stop.clone()), tail::run(self, pool, stop));
    }

    /// Registers interest in Jobs of a Site that become free. Register first, then look, then wait.
    #[must_use]
    pub fn wait_at(&self, site: SiteId, wants: Wants) -> Waiter {
        self.0.waiters.register(site, wants)
    }

    /// The Sites at which a Session's holder has something to hear, from now on. A receiver that
    /// lags has missed some and must look.
    #[must_use]
    pub fn signals(&self) -> broadcast::Receiver<SiteId> {
        self.0.signals.subscribe()
    }

    /// The changes of all users from now on; see [`tail::Message`].
    #[must_use]
    pub fn pages(&self) -> broadcast::Receiver<tail::Message> {
        self.0.pages.subscribe()
    }

    /// How long to trust the notifications before looking again.
    #[must_use]
    pub fn fallback(&self) -> Duration {
        if self.0.deaf.load(Ordering::Relaxed) { FALLBACK_DEAF } else { FALLBACK }
    }

    fn heard(&self, payload: &str) {
        if let Ok(Payload { site, wake }) = serde_json::from_str(payload) {
            self.0.waiters.wake(site, wake);
            if wake.signals {
                // Nobody may be waiting.
                let _ = self.0.signals.send(site);
            }
        }
        self.tick();
    }

    /// Wakes everybody: notifications may have been lost.
    fn heard_nothing(&self) {
        self.0.waiters.wake_all();
        self.tick();
    }

    fn tick(&self) {
        self.0.ticks.send_modify(|tick| *tick = tick.wrapping_add(1));
    }
}

impl Default for Feed {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_notification_a_site_with_sums() {
        let mut wakes = Wakes::default();
        wakes.add(UserId(1), SiteId(2), Wake::free(JobState::Preprocessed, None));
        wakes.add(UserId(1), SiteId(2), Wake::free(JobState::RestartReady, None));
        wakes.add(UserId(1), SiteId(2), Wake::free(JobState::Preprocessed, Some(SessionId(3))));
        wakes.add(UserId(1), SiteId(4), Wake::default());
        assert_eq!(wakes.payloads(), [r#"{"s":2,"r":2}"#, r#"{"s":4}"#]);
        let payload: Payload = serde_json::from_str(&wakes.payloads()[0]).unwrap();
        assert_eq!(payload.wake.runnable, 2);
    }
}
