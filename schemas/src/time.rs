//! The two spellings of a point in time that Balsam's clients expect (contract, section 1.7):
//! naive UTC for most fields, zone-aware UTC for `Job.last_update`. Input is lenient for both.

use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};

use crate::Timestamp;

/// Naive UTC with microseconds; the fraction is left out only where it is exactly zero.
#[must_use]
pub fn format_naive(time: Timestamp) -> String {
    let format = if time.timestamp_subsec_micros() == 0 { "%Y-%m-%dT%H:%M:%S" } else { "%Y-%m-%dT%H:%M:%S%.6f" };
    time.format(format).to_string()
}

/// The same with `+00:00` at its end.
#[must_use]
pub fn format_aware(time: Timestamp) -> String {
    format!("{}+00:00", format_naive(time))
}

/// Reads ISO 8601 with `T` or a space, a fraction of 0 to 9 digits, and an optional zone
/// (`Z`, `+hh:mm`); naive input is UTC. A date alone is its midnight. A Unix time in seconds
/// is read too. `None` when the text is none of these.
#[must_use]
pub fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    // The separator may be a space; the `+` of a zone that went through a query string unencoded is one too.
    let iso = match text.get(10..11) {
        Some(" ") => format!("{}T{}", &text[..10], &text[11..]),
        _ => text.to_owned(),
    };
    let iso = iso.replacen(' ', "+", 1);
    if let Ok(time) = DateTime::parse_from_rfc3339(&iso) {
        return Some(time.with_timezone(&Utc));
    }
    for format in ["%Y-%m-%dT%H:%M:%S%.f%z", "%Y-%m-%dT%H:%M%z"] {
        if let Ok(time) = DateTime::parse_from_str(&iso, format) {
            return Some(time.with_timezone(&Utc));
        }
    }
    for format in ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M"] {
        let naive = iso.strip_suffix('Z').unwrap_or(&iso);
        if let Ok(time) = NaiveDateTime::parse_from_str(naive, format) {
            return Some(time.and_utc());
        }
    }
    if let Ok(date) = NaiveDate::parse_from_str(text, "%Y-%m-%d") {
        return date.and_hms_opt(0, 0, 0).map(|naive| naive.and_utc());
    }
    text.parse::<f64>().ok().and_then(from_unix)
}

/// A Unix time in seconds; `None` beyond the years that can be stored.
#[must_use]
pub fn from_unix(seconds: f64) -> Option<Timestamp> {
    // Pydantic takes numbers above 2e10 for milliseconds.
    let seconds = if seconds.abs() > 2e10 { seconds / 1000.0 } else { seconds };
    if !seconds.is_finite() || seconds.abs() > 2e11 {
        return None;
    }
    DateTime::from_timestamp_micros((seconds * 1e6).round() as i64)
}

/// `#[serde(with = "time::naive")]`: naive UTC out, lenient in.
pub mod naive {
    use serde::{Deserializer, Serializer};

    /// Writes naive UTC.
    pub fn serialize<S: Serializer>(time: &crate::Timestamp, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&super::format_naive(*time))
    }
    /// Reads any spelling.
    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<crate::Timestamp, D::Error> {
        crate::lenient::datetime(input)
    }
}

/// `#[serde(with = "time::naive_option")]`: the same for a nullable field.
pub mod naive_option {
    use serde::{Deserializer, Serializer};

    /// Writes naive UTC or null.
    pub fn serialize<S: Serializer>(time: &Option<crate::Timestamp>, out: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => out.serialize_str(&super::format_naive(*time)),
            None => out.serialize_none(),
        }
    }
    /// Reads any spelling or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Option<crate::Timestamp>, D::Error> {
        crate::lenient::nullable_datetime(input)
    }
}

/// `#[serde(with = "time::aware")]`: zone-aware UTC out, lenient in.
pub mod aware {
    use serde::{Deserializer, Serializer};

    /// Writes UTC with `+00:00`.
    pub fn serialize<S: Serializer>(time: &crate::Timestamp, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&super::format_aware(*time))
    }
    /// Reads any spelling.
    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<crate::Timestamp, D::Error> {
        crate::lenient::datetime(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_the_contract_is_read() {
        let expected = parse("2026-11-30T10:06:02.078662Z").unwrap();
        for text in [
            "2026-11-30T10:06:02.078662",
            "2026-11-30 10:06:02.078662",
            "2026-11-30T11:06:02.078662+01:00",
            "2026-11-30T11:06:02.078662 01:00",
            "2026-11-30 11:06:02.078662+0100",
            "1796033162.078662",
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
        assert_eq!(parse("yesterday"), None);
        assert_eq!(parse(""), None);
        assert_eq!(parse("1e300"), None);
    }

    #[test]
    fn the_fraction_is_left_out_only_when_zero() {
        assert_eq!(format_naive(parse("2026-11-30T10:06:02").unwrap()), "2026-11-30T10:06:02");
        assert_eq!(format_aware(parse("2026-11-30T10:06:02.5").unwrap()), "2026-11-30T10:06:02.500000+00:00");
    }
}
