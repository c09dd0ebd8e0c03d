//! How many Jobs end in a second, as of late. Pure; instants are arguments.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// How far back is looked.
const WINDOW: Duration = Duration::from_secs(1);
/// Ends within this are counted together.
const GRAIN: Duration = Duration::from_millis(50);

/// A rate over the last second.
#[derive(Debug, Default)]
pub(super) struct Rate {
    grains: VecDeque<(Instant, u32)>,
}

impl Rate {
    /// So many ended at `now`.
    pub(super) fn count(&mut self, now: Instant, number: u32) {
        match self.grains.back_mut() {
            Some((start, count)) if now.saturating_duration_since(*start) < GRAIN => *count += number,
            _ => self.grains.push_back((now, number)),
        }
        self.forget(now);
    }

    fn forget(&mut self, now: Instant) {
        while self.grains.front().is_some_and(|(start, _)| now.saturating_duration_since(*start) > WINDOW) {
            self.grains.pop_front();
        }
    }

    /// Ends in a second, up to `now`.
    pub(super) fn per_sec(&mut self, now: Instant) -> f64 {
        self.forget(now);
        let Some((start, _)) = self.grains.front() else { return 0.0 };
        let total: u32 = self.grains.iter().map(|(_, count)| count).sum();
        // A burst right after a quiet time is not a thousand a second for long.
        f64::from(total) / now.saturating_duration_since(*start).max(GRAIN * 2).as_secs_f64()
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
        assert_eq!(rate.per_sec(start), 0.0);
        (0..2_000).for_each(|ms| rate.count(at(ms), 1));
        let now = rate.per_sec(at(2_000));
        assert!((900.0..1_100.0).contains(&now), "{now}");
        assert_eq!(rate.per_sec(at(4_000)), 0.0);
    }
}
