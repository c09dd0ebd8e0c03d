//! When the pilot's loop must look again though it hears nothing. A time counts only while a step acts on it: one that has
//! come and stays would keep the loop from ever sleeping.

use std::time::{Duration, Instant};

use super::{Pilot, RECALL_PERIOD};

/// How long the loop sleeps at most.
const LONGEST: Duration = Duration::from_secs(30);
/// How long it sleeps at least.
const SHORTEST: Duration = Duration::from_millis(1);

impl Pilot {
    /// Whether Jobs are placed and asked for: there is a Session, which the service surely holds still, and no end that
    /// tells perhaps of the allocation's.
    pub(super) fn places(&self) -> bool {
        self.lease.is_some() && !self.is_cut_off && !self.doubts.any()
    }

    /// When the launcher has been idle for too long, if it is idle.
    pub(super) fn idle_end(&self) -> Option<Instant> {
        // While the service is away or slow nobody knows whether there is work, and that is no idleness, for as
        // long as the Session can still be ours.
        let is_in_the_dark = self.asking.is_in_the_dark() && !self.is_cut_off;
        let is_idle = self.book.is_empty() && self.lease.is_some() && !is_in_the_dark;
        let idle = Duration::from_secs_f64(self.settings.launcher.idle_ttl_sec.clamp(0.0, 1e9));
        is_idle.then(|| self.last_busy + idle)
    }

    /// When something is due that nobody else says.
    pub(super) fn next_wake(&self) -> Instant {
        let now = Instant::now();
        let mut times = vec![self.doubts.next(), (!self.is_cut_off).then(|| self.fence_at())];
        if self.stopping.is_some() {
            times.push(self.give_up_at);
        } else {
            times.push(Some(self.deadline.term_at));
            times.push((!self.arriving.is_empty()).then_some(self.arrive_by));
            times.push(self.idle_end());
            times.push(self.book.next_checkpoint(&self.deadline));
            if self.places() {
                times.push(self.asking.next(self.book.is_empty()));
                times.push(self.book.has_spare().then(|| self.book.last_recall + RECALL_PERIOD));
                times.push(self.book.any_waits().then(|| self.book.next_late()));
            }
        }
        let first = times.into_iter().flatten().min();
        first.map_or(now + LONGEST, |at| at.clamp(now + SHORTEST, now + LONGEST))
    }
}
