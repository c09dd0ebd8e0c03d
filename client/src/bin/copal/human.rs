//! Times, spans and sizes for people: local and relative in what is shown, lenient in what is
//! read. Programs get RFC 3339 from `-o json` instead.

use chrono::{DateTime, FixedOffset, Local, NaiveDateTime, NaiveTime, TimeDelta, TimeZone, Utc};
use copal_schemas::{Timestamp, time};

/// What time it is, and in which zone times are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Now.
    pub(crate) now: Timestamp,
    /// The zone; `None` for this machine's.
    zone: Option<FixedOffset>,
}

impl Clock {
    /// This machine's clock and zone.
    pub(crate) fn here() -> Self {
        Self { now: Utc::now(), zone: None }
    }

    /// A clock that stands still in UTC.
    #[cfg(test)]
    pub(crate) fn fixed(now: &str) -> Self {
        Self { now: time::parse(now).unwrap(), zone: Some(FixedOffset::east_opt(0).unwrap()) }
    }

    /// `2026-11-30 13:05:12`
    pub(crate) fn local(&self, time: Timestamp) -> String {
        self.formatted(time, "%Y-%m-%d %H:%M:%S")
    }

    /// `13:05:12.345`
    pub(crate) fn local_time(&self, time: Timestamp) -> String {
        self.formatted(time, "%H:%M:%S%.3f")
    }

    fn formatted(&self, time: Timestamp, format: &str) -> String {
        match self.zone {
            Some(zone) => time.with_timezone(&zone).format(format).to_string(),
            None => time.with_timezone(&Local).format(format).to_string(),
        }
    }

    /// `3m ago`
    pub(crate) fn ago(&self, time: Timestamp) -> String {
        let seconds = (self.now - time).num_milliseconds() as f64 / 1000.0;
        match seconds {
            // Two machines' clocks are never quite the same.
            past if past > -2.0 => format!("{} ago", coarse(past.max(0.0))),
            future => format!("in {}", coarse(-future)),
        }
    }

    /// `2026-11-30 13:05:12 (3m ago)`
    pub(crate) fn both(&self, time: Timestamp) -> String {
        format!("{} ({})", self.local(time), self.ago(time))
    }

    /// Reads a time: a span before now (`10m`, `2h`, `3d`), a time of today (`13:05`), a local time
    /// (`2026-11-30 13:05`), or one with its zone (RFC 3339).
    ///
    /// # Errors
    /// When the text is none of these.
    pub(crate) fn read(&self, text: &str) -> Result<Timestamp, String> {
        let text = text.trim();
        if let Some(span) = read_span(text) {
            return Ok(self.now - span);
        }
        if let Ok(of_day) = NaiveTime::parse_from_str(text, "%H:%M:%S").or(NaiveTime::parse_from_str(text, "%H:%M")) {
            let today = match self.zone {
                Some(zone) => self.now.with_timezone(&zone).date_naive(),
                None => self.now.with_timezone(&Local).date_naive(),
            };
            return self.of_local(today.and_time(of_day)).ok_or_else(|| format!("{text} did not happen today"));
        }
        if let Ok(time) = DateTime::parse_from_rfc3339(text) {
            return Ok(time.with_timezone(&Utc));
        }
        // `time::parse` takes what has no zone for UTC; people mean the time of their clock.
        let zoned = text.ends_with('Z') || text.get(10..).is_some_and(|rest| rest.contains(['+', '-']));
        match time::parse(text) {
            Some(time) if zoned => Ok(time),
            Some(time) => self.of_local(time.naive_utc()).ok_or_else(|| format!("{text} does not exist in this zone")),
            None => Err(format!("{text:?} is no time; write 2h (ago), 13:05, 2026-11-30T13:05 or RFC 3339")),
        }
    }

    fn of_local(&self, local: NaiveDateTime) -> Option<Timestamp> {
        match self.zone {
            Some(zone) => zone.from_local_datetime(&local).earliest().map(|time| time.with_timezone(&Utc)),
            None => Local.from_local_datetime(&local).earliest().map(|time| time.with_timezone(&Utc)),
        }
    }
}

/// `90s`, `10m`, `2h`, `3d`
fn read_span(text: &str) -> Option<TimeDelta> {
    let number = text.get(..text.len().checked_sub(1)?)?.parse::<u32>().ok().map(i64::from)?;
    match text.as_bytes().last()? {
        b's' => TimeDelta::try_seconds(number),
        b'm' => TimeDelta::try_minutes(number),
        b'h' => TimeDelta::try_hours(number),
        b'd' => TimeDelta::try_days(number),
        _ => None,
    }
}

/// A span in one unit: `12s`, `5m`, `3h`, `2d`.
fn coarse(seconds: f64) -> String {
    match seconds as i64 {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// A span in seconds, in two units: `421ms`, `3m 20s`, `2h 05m`, `1d 03h`.
pub(crate) fn span(seconds: f64) -> String {
    match seconds.max(0.0) {
        seconds if seconds < 1.0 => format!("{:.0}ms", seconds * 1000.0),
        seconds if seconds < 10.0 => format!("{seconds:.2}s"),
        seconds if seconds < 59.5 => format!("{seconds:.0}s"),
        seconds => {
            let whole = seconds.round() as i64;
            match whole {
                ..3600 => format!("{}m {:02}s", whole / 60, whole % 60),
                3600..86_400 => format!("{}h {:02}m", whole / 3600, whole % 3600 / 60),
                _ => format!("{}d {:02}h", whole / 86_400, whole % 86_400 / 3600),
            }
        }
    }
}

/// `1 Job`, `3 Jobs`
pub(crate) fn count(number: impl Into<i64>, one: &str) -> String {
    match number.into() {
        1 => format!("1 {one}"),
        number => format!("{number} {one}s"),
    }
}

/// A size in bytes: `512 B`, `1.5 MiB`.
pub(crate) fn size(bytes: i64) -> String {
    let mut amount = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if amount < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{amount:.1} {unit}") };
        }
        amount /= 1024.0;
    }
    format!("{amount:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-30T12:00:00";

    #[test]
    fn times_are_shown_relative_to_now() {
        let clock = Clock::fixed(NOW);
        let at = |text: &str| clock.ago(time::parse(text).unwrap());
        assert_eq!(at("2026-11-30T11:59:30"), "30s ago");
        assert_eq!(at("2026-11-30T11:00:00"), "1h ago");
        assert_eq!(at("2026-11-27T12:00:00"), "3d ago");
        assert_eq!(at("2026-11-30T12:00:01"), "0s ago");
        assert_eq!(at("2026-11-30T12:10:00"), "in 10m");
    }

    #[test]
    fn times_are_read_in_many_forms() {
        let clock = Clock { now: time::parse(NOW).unwrap(), zone: FixedOffset::east_opt(3600) };
        let read = |text: &str| clock.read(text).map(time::format_naive);
        assert_eq!(read("2h").unwrap(), "2026-11-30T10:00:00");
        assert_eq!(read("13:05").unwrap(), "2026-11-30T12:05:00");
        assert_eq!(read("2026-11-30 13:05").unwrap(), "2026-11-30T12:05:00");
        assert_eq!(read("2026-11-30T13:05:00Z").unwrap(), "2026-11-30T13:05:00");
        assert_eq!(read("2026-11-30T13:05:00-02:00").unwrap(), "2026-11-30T15:05:00");
        assert!(read("tomorrow").is_err());
        assert!(read("h").is_err());
    }

    #[test]
    fn spans_and_sizes_are_short() {
        assert_eq!([0.421, 42.0, 200.0, 7500.0, 97_200.0].map(span), ["421ms", "42s", "3m 20s", "2h 05m", "1d 03h"]);
        assert_eq!([512, 1_572_864, 3 << 40].map(size), ["512 B", "1.5 MiB", "3.0 TiB"]);
    }
}
