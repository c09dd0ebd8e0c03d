//! What waits here in vain and is given back: other launchers of the Site may stand idle, or have more time.

use std::time::{Duration, Instant};

use copal_schemas::{JobId, session::Release};
use tracing::{debug, info};

use super::{
    super::demand::{self, CRUMB},
    Book,
};

/// How often is looked for Jobs that have waited for too long.
const LATE_PERIOD: Duration = Duration::from_secs(5);
/// After so long others are offered a Job that waits for its turn: one may have all nodes free by now.
const OFFER_AFTER: Duration = Duration::from_secs(20);

/// Of so many Jobs is remembered that the log says why they wait.
const MOST_TOLD: usize = 10_000;

impl Book {
    /// Gives back what was fetched ahead of the places there are, once Jobs end too slowly to need it soon. It was
    /// fetched while they ended quickly, and another launcher may stand idle. Those that wait for their turn stay.
    pub(in crate::pilot) fn give_back_spare(&mut self, now: Instant) {
        let rate = self.rate.per_sec(now, self.slots.len());
        if self.waiting.is_empty() || !demand::is_slow(rate) {
            return;
        }
        let room = self.packer.room();
        let mut spare = Vec::new();
        let (mut jobs, mut nodes) = (self.waiting.for_next(), self.waiting.next_nodes());
        if jobs > room.free_jobs || nodes > room.free_nodes + CRUMB {
            // Last in the order first.
            for token in self.packer.waiting_jobs().into_iter().rev() {
                let Some(held) = self.waiting.get(token).filter(|held| !held.for_turn) else { continue };
                if jobs <= room.free_jobs && nodes <= room.free_nodes + CRUMB {
                    break;
                }
                jobs -= 1;
                nodes -= held.nodes;
                spare.push(token);
            }
        }
        self.hand_back(&spare);
    }

    /// Gives back Jobs for which the time has become too short while they waited, and offers others those that have
    /// waited long. Whether any was offered: then others must be given the time to take it.
    pub(in crate::pilot) fn give_back_late(&mut self, now: Instant) -> bool {
        if now < self.next_late() {
            return false;
        }
        self.last_late = now;
        let late: Vec<JobId> =
            self.waiting.all().filter(|held| self.packer.is_late(&held.ask)).map(|held| held.job.id).collect();
        for job in late {
            if let Some(held) = self.waiting.take_job(job) {
                let reason = self.packer.why(held.ask.job).unwrap_or_else(|| "too little time is left".into());
                self.packer.withdraw(held.ask.job);
                self.give_back(&held.job, reason, true);
            }
        }
        self.tell_who_waits(now);
        let offered: Vec<JobId> =
            self.waiting.all().filter(|held| now >= held.since + OFFER_AFTER).map(|held| held.ask.job).collect();
        self.hand_back(&offered);
        !offered.is_empty()
    }

    /// Logs, once for each, why a Job has not been placed.
    fn tell_who_waits(&mut self, now: Instant) {
        if self.told.len() > MOST_TOLD {
            self.told.clear();
        }
        for held in self.waiting.all().filter(|held| now >= held.since + LATE_PERIOD) {
            // Finding out takes a look at every node.
            if !self.told.contains(&held.job.id)
                && let Some(reason) = self.packer.why(held.ask.job)
            {
                self.told.insert(held.job.id);
                info!(job.id = %held.job.id, "a Job waits: {reason}");
            }
        }
    }

    fn hand_back(&mut self, tokens: &[JobId]) {
        for token in tokens {
            if let Some(held) = self.waiting.take(*token) {
                self.packer.withdraw(*token);
                self.given_back.push(Release { job_id: held.job.id, message: None, for_now: false });
            }
        }
        if !tokens.is_empty() {
            debug!(jobs = tokens.len(), "gave Jobs back that waited in vain");
        }
    }

    /// When [`Book::give_back_late`] must be called next.
    pub(in crate::pilot) fn next_late(&self) -> Instant {
        self.last_late + LATE_PERIOD
    }

    /// Whether a Job waits here.
    pub(in crate::pilot) fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a Job waits here, or at a worker, for the next place.
    pub(in crate::pilot) fn has_spare(&self) -> bool {
        self.waiting.for_next() > 0 || self.posts.iter().any(|post| post.followers > 0)
    }
}
