//! Times in a scheduler's answers. Epoch seconds where it can print them; else a local time without its
//! zone, of which the night on which clocks go back makes two.

use chrono::{DateTime, MappedLocalTime, NaiveDateTime, TimeDelta, TimeZone, Utc};
use copal_schemas::Timestamp;

/// How far a scheduler's clock may be ahead of this machine's.
const SKEW: TimeDelta = TimeDelta::minutes(5);

/// Seconds since the epoch, with a fraction or not. Zero and words (`N/A`, `Unknown`) are no time.
#[must_use]
pub fn epoch(text: &str) -> Option<Timestamp> {
    let seconds = text.trim().parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds < 1e11)?;
    DateTime::from_timestamp_micros((seconds * 1e6).round() as i64)
}

/// `HH:MM:SS`, hours beyond 24 included.
#[must_use]
pub fn duration(text: &str) -> Option<TimeDelta> {
    let parts = text.trim().split(':').map(|part| part.parse::<i64>().ok()).collect::<Option<Vec<i64>>>()?;
    let [hours, minutes, seconds] = parts[..] else { return None };
    TimeDelta::try_seconds(hours.checked_mul(3_600)?.checked_add(minutes.checked_mul(60)?)?.checked_add(seconds)?)
}

/// When a job started and ended, by local times of `zone`. Where one means two instants, those count between which
/// the job `ran` as long as the scheduler says, and else the later ones. Nothing started or ended after `now`.
pub fn span<Z: TimeZone>(
    zone: &Z,
    start: Option<NaiveDateTime>,
    end: Option<NaiveDateTime>,
    ran: Option<TimeDelta>,
    now: Timestamp,
) -> (Option<Timestamp>, Option<Timestamp>) {
    let (starts, ends) = (instants(zone, start, now), instants(zone, end, now));
    let pairs = starts.iter().flat_map(|start| ends.iter().map(move |end| (*start, *end)));
    let unlikely = |(start, end): &(Option<Timestamp>, Option<Timestamp>)| {
        let lasted = end.zip(*start).map(|(end, start)| end - start);
        let backwards = lasted.is_some_and(|lasted| lasted < TimeDelta::zero());
        let off = lasted.zip(ran).map_or(TimeDelta::zero(), |(lasted, ran)| (lasted - ran).abs());
        (backwards, off)
    };
    // Of equals the first, and later instants come first.
    pairs.min_by_key(unlikely).unwrap_or_default()
}

/// The instants that a local time may mean, the later first; `None` alone when there is no time.
fn instants<Z: TimeZone>(zone: &Z, local: Option<NaiveDateTime>, now: Timestamp) -> Vec<Option<Timestamp>> {
    let Some(local) = local else { return vec![None] };
    let hour = TimeDelta::hours(1);
    let found = match zone.from_local_datetime(&local) {
        MappedLocalTime::Single(time) => vec![time],
        MappedLocalTime::Ambiguous(earlier, later) => vec![later, earlier],
        // An hour that clocks leave out: the scheduler's clock had not been put forward yet.
        MappedLocalTime::None => {
            zone.from_local_datetime(&(local - hour)).latest().map(|time| time + hour).into_iter().collect()
        }
    };
    let found: Vec<Timestamp> = found.into_iter().map(|time| time.with_timezone(&Utc)).collect();
    let past = found.iter().copied().filter(|time| *time <= now + SKEW);
    let past: Vec<Option<Timestamp>> = past.map(Some).collect();
    match past.is_empty() {
        false => past,
        true => vec![found.last().copied()],
    }
}

#[cfg(test)]
mod tests {
    use chrono::{FixedOffset, NaiveDate};
    use proptest::prelude::*;

    use super::*;

    /// A zone four hours behind in summer and five in winter, whose summer of 2026 ends on 1 November at 6:00 UTC and
    /// begins on 8 March at 7:00 UTC, as in New York.
    #[derive(Clone, Debug)]
    struct NewYork;

    impl NewYork {
        fn hours(utc: &NaiveDateTime) -> i32 {
            let at =
                |month, day, hour| NaiveDate::from_ymd_opt(2026, month, day).unwrap().and_hms_opt(hour, 0, 0).unwrap();
            if *utc >= at(3, 8, 7) && *utc < at(11, 1, 6) { -4 } else { -5 }
        }
    }

    impl TimeZone for NewYork {
        type Offset = FixedOffset;

        fn from_offset(_: &FixedOffset) -> Self {
            Self
        }

        fn offset_from_local_date(&self, local: &NaiveDate) -> MappedLocalTime<FixedOffset> {
            self.offset_from_local_datetime(&local.and_hms_opt(12, 0, 0).unwrap())
        }

        fn offset_from_local_datetime(&self, local: &NaiveDateTime) -> MappedLocalTime<FixedOffset> {
            let fits = |hours: &i32| Self::hours(&(*local - TimeDelta::hours(i64::from(*hours)))) == *hours;
            let fitting: Vec<i32> = [-4, -5].into_iter().filter(fits).collect();
            let offset = |hours: i32| FixedOffset::east_opt(hours * 3_600).unwrap();
            match fitting[..] {
                [] => MappedLocalTime::None,
                [one] => MappedLocalTime::Single(offset(one)),
                [first, second, ..] => MappedLocalTime::Ambiguous(offset(first), offset(second)),
            }
        }

        fn offset_from_utc_date(&self, utc: &NaiveDate) -> FixedOffset {
            self.offset_from_utc_datetime(&utc.and_hms_opt(12, 0, 0).unwrap())
        }

        fn offset_from_utc_datetime(&self, utc: &NaiveDateTime) -> FixedOffset {
            FixedOffset::east_opt(Self::hours(utc) * 3_600).unwrap()
        }
    }

    fn local(text: &str) -> Option<NaiveDateTime> {
        Some(NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S").unwrap())
    }

    fn utc(text: &str) -> Timestamp {
        local(text).unwrap().and_utc()
    }

    #[test]
    fn pitfall_016_the_hour_that_comes_twice_is_told_by_how_long_the_job_ran() {
        let now = utc("2026-11-01 12:00:00");
        let (start, end) = (local("2026-11-01 01:30:00"), local("2026-11-01 01:40:00"));
        let at = |ran| span(&NewYork, start, end, Some(TimeDelta::minutes(ran)), now);
        assert_eq!(at(70), (Some(utc("2026-11-01 05:30:00")), Some(utc("2026-11-01 06:40:00"))));
        assert_eq!(at(10).1.unwrap() - at(10).0.unwrap(), TimeDelta::minutes(10));
        // A clock that went back makes no end before its start.
        let back = span(&NewYork, local("2026-11-01 01:50:00"), local("2026-11-01 01:10:00"), None, now);
        assert_eq!(back, (Some(utc("2026-11-01 05:50:00")), Some(utc("2026-11-01 06:10:00"))));
    }

    #[test]
    fn pitfall_016_a_time_of_that_hour_is_never_in_the_future() {
        let seen = |now| span(&NewYork, local("2026-11-01 01:30:00"), None, None, utc(now)).0.unwrap();
        assert_eq!(seen("2026-11-01 05:31:00"), utc("2026-11-01 05:30:00"));
        assert_eq!(seen("2026-11-01 06:31:00"), utc("2026-11-01 06:30:00"));
        // In the hour that is left out there is still an instant, and summer and winter differ by an hour.
        let gap = span(&NewYork, local("2026-03-08 02:30:00"), None, None, utc("2026-03-09 00:00:00")).0;
        assert_eq!(gap, Some(utc("2026-03-08 07:30:00")));
        let noon =
            |day: &str| span(&NewYork, local(&format!("{day} 12:00:00")), None, None, utc("2027-01-01 00:00:00")).0;
        assert_eq!(noon("2026-07-01"), Some(utc("2026-07-01 16:00:00")));
        assert_eq!(noon("2026-12-01"), Some(utc("2026-12-01 17:00:00")));
    }

    #[test]
    fn epochs_and_durations() {
        assert_eq!(epoch("1796034878").unwrap().timestamp(), 1_796_034_878);
        assert_eq!(epoch("1796034878.5").unwrap().timestamp_millis(), 1_796_034_878_500);
        for none in ["", "0", "0.0", "N/A", "Unknown", "None", "INVALID", "-5", "inf", "NaN", "1e300"] {
            assert_eq!(epoch(none), None, "{none}");
        }
        assert_eq!(duration("100:00:01"), Some(TimeDelta::seconds(360_001)));
        for none in ["", "5", "00:05", "a:b:c", "9223372036854775807:0:0"] {
            assert_eq!(duration(none), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn pitfall_016_what_a_clock_in_any_zone_showed_is_understood(
            start in 1_772_000_000_i64..1_798_000_000, minutes in 0_i64..3_000,
        ) {
            let (start, end) = (DateTime::from_timestamp(start, 0).unwrap(), DateTime::from_timestamp(start + minutes * 60, 0).unwrap());
            let shown = |time: Timestamp| Some(time.with_timezone(&NewYork).naive_local());
            let (from, to) = span(&NewYork, shown(start), shown(end), Some(end - start), end + TimeDelta::hours(3));
            prop_assert_eq!(to.unwrap() - from.unwrap(), end - start);
            prop_assert!((from.unwrap() - start).abs() <= TimeDelta::hours(1));
        }
    }
}
