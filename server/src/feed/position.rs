//! Where a reader of the event stream is. Row ids do not tell: they are given before their
//! transactions commit, so a row may appear behind one that was read. What a database snapshot
//! sees does tell.

use std::{fmt, str::FromStr};

/// A Postgres snapshot (`pg_current_snapshot()`): which transactions had committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    xmin: u64,
    xmax: u64,
    running: Vec<u64>,
}

/// The place of a row among those that one snapshot sees and an earlier one does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The transaction that wrote it.
    pub xid: u64,
    /// 0 for changes of BatchJobs and Sites, 1 for events of Jobs.
    pub source: i16,
    /// Its id there.
    pub id: i64,
}

/// All that `base` sees was read, and of what only `target` sees, all up to a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Everything that it sees was read.
    pub base: Snapshot,
    /// A page that was read in part.
    pub partly: Option<(Snapshot, Key)>,
}

impl Snapshot {
    /// Whether the rows of a committed transaction are seen.
    #[must_use]
    pub fn sees(&self, xid: u64) -> bool {
        xid < self.xmin || (xid < self.xmax && self.running.binary_search(&xid).is_err())
    }

    /// Whether it sees all that the other one sees.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.xmax >= other.xmax && self.running.iter().all(|xid| !other.sees(*xid)) && self.xmin >= other.xmin
    }
}

impl Position {
    /// After all that a snapshot sees.
    #[must_use]
    pub fn at(base: Snapshot) -> Self {
        Self { base, partly: None }
    }
}

/// A text that is no position.
#[derive(Debug, thiserror::Error)]
#[error("it is no id of this stream; leave Last-Event-ID out to begin with what happens from now on")]
pub struct BadPosition;

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.xmin, self.xmax)?;
        for (index, xid) in self.running.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{xid}")?;
        }
        Ok(())
    }
}

impl FromStr for Snapshot {
    type Err = BadPosition;
    fn from_str(text: &str) -> Result<Self, BadPosition> {
        let number = |text: &str| text.parse::<u64>().ok().filter(|xid| i64::try_from(*xid).is_ok());
        let mut parts = text.split(':');
        let (Some(xmin), Some(xmax), Some(running), None) =
            (parts.next().and_then(number), parts.next().and_then(number), parts.next(), parts.next())
        else {
            return Err(BadPosition);
        };
        let running = running.split(',').filter(|xid| !xid.is_empty());
        let running: Option<Vec<u64>> = running.map(number).collect();
        let running = running.ok_or(BadPosition)?;
        // As Postgres has it, and reads it.
        let in_order = running.windows(2).all(|pair| pair[0] < pair[1]);
        let in_range = running.iter().all(|xid| (xmin..xmax).contains(xid));
        if xmin == 0 || xmin > xmax || !in_order || !in_range {
            return Err(BadPosition);
        }
        Ok(Self { xmin, xmax, running })
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.base)?;
        match &self.partly {
            Some((target, Key { xid, source, id })) => write!(f, ";{target};{xid}.{source}.{id}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Position {
    type Err = BadPosition;
    fn from_str(text: &str) -> Result<Self, BadPosition> {
        let mut parts = text.trim().split(';');
        let base = parts.next().ok_or(BadPosition)?.parse()?;
        let partly = match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => None,
            (Some(target), Some(key), None) => Some((target.parse()?, read_key(key).ok_or(BadPosition)?)),
            _ => return Err(BadPosition),
        };
        Ok(Self { base, partly })
    }
}

fn read_key(text: &str) -> Option<Key> {
    let mut parts = text.split('.');
    let key = Key {
        xid: parts.next()?.parse().ok().filter(|xid: &u64| i64::try_from(*xid).is_ok())?,
        source: parts.next()?.parse().ok().filter(|source| (0..=1).contains(source))?,
        id: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        text.parse().unwrap()
    }

    #[test]
    fn a_snapshot_sees_what_had_committed() {
        let snapshot = snapshot("10:20:12,15");
        for (xid, seen) in [(9, true), (10, true), (12, false), (13, true), (15, false), (19, true), (20, false)] {
            assert_eq!(snapshot.sees(xid), seen, "{xid}");
        }
    }

    #[test]
    fn a_later_snapshot_covers_an_earlier_one() {
        let early = snapshot("10:20:10,15");
        let late = snapshot("15:20:15");
        assert!(late.covers(&early) && !early.covers(&late));
        assert!(early.covers(&early));
        assert!(snapshot("25:25:").covers(&late));
    }

    #[test]
    fn positions_round_trip_and_nonsense_is_refused() {
        for text in ["10:20:12,15", "7:7:", "10:20:12;15:22:;21.1.7"] {
            assert_eq!(text.parse::<Position>().unwrap().to_string(), text);
        }
        for text in
            ["", "1", "1:2", "2:1:", "1:9:9", "1:9:5,4", "1:2:;", "1:2:;3:4:", "1:2:;3:4:;x", "1:2:;3:4:;1.2.3", "0:1:"]
        {
            assert!(text.parse::<Position>().is_err(), "{text:?}");
        }
    }
}
