//! Ids and ranges of ids as people write them: `7`, `12-20`, `3,5,8-10`; and the shortest such
//! text for a list of ids.

use std::{collections::BTreeSet, fmt, ops::RangeInclusive, str::FromStr};

/// The most ids that one text may mean; more is a slip of the finger.
const MOST: i64 = 1_000_000;

/// One comma-separated list of ids and ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdList(Vec<RangeInclusive<i64>>);

impl IdList {
    /// Every id of the list, in its order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = i64> + '_ {
        self.0.iter().cloned().flatten()
    }
}

impl FromStr for IdList {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut ranges = Vec::new();
        let mut total = 0;
        for part in text.split(',').map(str::trim) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| {
                text.trim()
                    .parse::<i64>()
                    .ok()
                    .filter(|id| *id > 0)
                    .ok_or_else(|| format!("{part:?} is neither an id nor a range of ids, such as 7 or 12-20"))
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("the range {part} ends before it begins"));
            }
            total += last - first + 1;
            if total > MOST {
                return Err(format!("{text} means more than {MOST} ids; select by tags or states instead"));
            }
            ranges.push(first..=last);
        }
        Ok(Self(ranges))
    }
}

/// Ids in the shortest form that [`IdList`] reads: `3,5,8-10`.
pub(crate) struct Shortest(BTreeSet<i64>);

impl Shortest {
    /// In ascending order, each once.
    pub(crate) fn of(ids: impl IntoIterator<Item = i64>) -> Self {
        Self(ids.into_iter().collect())
    }
}

impl fmt::Display for Shortest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = ids.next() {
            let mut last = first;
            while let Some(next) = ids.next_if(|id| *id == last + 1) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                1 => write!(f, "{separator}{first},{last}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Vec<i64>, String> {
        text.parse::<IdList>().map(|list| list.ids().collect())
    }

    #[test]
    fn lists_and_ranges_are_read() {
        assert_eq!(read("7").unwrap(), [7]);
        assert_eq!(read("3, 5,8-10").unwrap(), [3, 5, 8, 9, 10]);
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in ["", "x", "5-3", "0", "-3", "1,,2", "1-", "99999999999999999999", "1-2000000"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_shortest_form_reads_back(ids in proptest::collection::btree_set(1..60_i64, 1..40)) {
            let text = Shortest::of(ids.iter().copied()).to_string();
            prop_assert_eq!(read(&text).unwrap(), ids.into_iter().collect::<Vec<_>>());
        }
    }
}
