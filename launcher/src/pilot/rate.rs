//! How many Jobs end in a second, as of late, and will go on to. Pure; instants are arguments.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// How far back is looked.
const WINDOW: Duration = Duration::from_secs(1);
/// Ends within this are counted together.
const GRAIN: Duration = Duration::from_millis(50);
/// How much a run counts in the mean of how long they took.
const WEIGHT: f64 = 1.0 / 16.0;

/// A rate over the last second.
#[derive(Debug, Default)]
pub(super) struct Rate {
    grains: VecDeque<(Instant, u32)>,
    /// How long runs took, in seconds.
    mean_sec: Option<f64>,
}

impl Rate {
    /// A run that took so many seconds ended at `now`.
    pub(super) fn count(&mut self, now: Instant, took_sec: f64) {
        let took_sec = took_sec.max(0.0);
        let mean_sec = self.mean_sec.get_or_insert(took_sec);
        *mean_sec += (took_sec - *mean_sec) * WEIGHT;
        match self.grains.back_mut() {
            Some((start, count)) if now.saturating_duration_since(*start) < GRAIN => *count += 1,
            _ => self.grains.push_back((now, 1)),
        }
        self.forget(now);
    }

    fn forget(&mut self, now: Instant) {
        while self.grains.front().is_some_and(|(start, _)| now.saturating_duration_since(*start) > WINDOW) {
            self.grains.pop_front();
        }
    }

    /// Ends in a second, up to `now`, where so many run at a time. Long Jobs that happen to end at the same moment are
    /// no stream: there are no more ends than the places give that each run occupies for as long as it takes.
    pub(super) fn per_sec(&mut self, now: Instant, places: usize) -> f64 {
        self.forget(now);
        let Some((start, _)) = self.grains.front() else { return 0.0 };
        let total: u32 = self.grains.iter().map(|(_, count)| count).sum();
        // A burst right after a quiet time is not a thousand a second for long.
        let seen = f64::from(total - 1) / now.saturating_duration_since(*start).max(GRAIN * 2).as_secs_f64();
        seen.min(places as f64 / self.mean_sec.unwrap_or_default().max(1e-4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_and_fades() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut rate = Rate::default();
        assert_eq!(rate.per_sec(start, 4), 0.0);
        (0..2_000).for_each(|ms| rate.count(at(ms), 0.002));
        let now = rate.per_sec(at(2_000), 4);
        assert!((900.0..1_100.0).contains(&now), "{now}");
        assert_eq!(rate.per_sec(at(4_000), 4), 0.0);
    }

    #[test]
    fn long_jobs_that_end_at_the_same_moment_are_no_stream() {
        let now = Instant::now();
        let mut rate = Rate::default();
        rate.count(now, 3_600.0);
        assert_eq!(rate.per_sec(now, 64), 0.0);
        (0..63).for_each(|_| rate.count(now, 3_600.0));
        assert!(rate.per_sec(now, 64) < 0.02);
    }
}
