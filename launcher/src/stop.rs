//! When a launcher must stop: the end of its time, and what is left of it. Pure; instants are arguments.

use std::time::{Duration, Instant};

/// The end of a launcher's time.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// When running Jobs get TERM.
    pub term_at: Instant,
    /// When everything must be over.
    pub end_at: Instant,
}

impl Deadline {
    /// The end of `wall_time_min` minutes from `start`, with `pad_sec` seconds before it in which
    /// Jobs are ended and everything is reported. A pad longer than half of the time is cut to that.
    #[must_use]
    pub fn new(start: Instant, wall_time_min: f64, pad_sec: f64) -> Self {
        let time = wall_time_min * 60.0;
        let pad = pad_sec.clamp(0.0, time / 2.0);
        let after = |seconds: f64| start + Duration::from_secs_f64(seconds.clamp(0.0, 1e9));
        Self { term_at: after(time - pad), end_at: after(time) }
    }

    /// Seconds between TERM and KILL at the end: so that two fifths of what is left remain for reporting.
    #[must_use]
    pub fn grace_sec(&self, now: Instant, usual_sec: f64) -> f64 {
        let left = self.end_at.saturating_duration_since(now).as_secs_f64();
        usual_sec.min(left * 0.6).max(0.2)
    }

    /// Whole minutes that a Job may say it takes and still be started: rounded up, as estimates are.
    #[must_use]
    pub fn minutes_left(&self, now: Instant) -> i32 {
        let seconds = self.term_at.saturating_duration_since(now).as_secs_f64();
        // At most a number of minutes that fits.
        (seconds / 60.0).ceil().clamp(1.0, f64::from(i32::MAX)) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pad_is_kept_free() {
        let start = Instant::now();
        let deadline = Deadline::new(start, 2.0, 5.0);
        assert_eq!(deadline.term_at, start + Duration::from_secs(115));
        assert_eq!(deadline.end_at, start + Duration::from_secs(120));
        assert_eq!(deadline.minutes_left(start), 2);
        assert!((deadline.grace_sec(deadline.term_at, 5.0) - 3.0).abs() < 1e-6);
        assert!((deadline.grace_sec(start, 5.0) - 5.0).abs() < 1e-6);
        let short = Deadline::new(start, 0.1, 60.0);
        assert_eq!(short.term_at, start + Duration::from_secs(3));
    }
}
