//! Ids and ranges of ids as people write them: `7`, `12-20`, `3,5,8-10`; and the shortest such
//! text for a list of ids.

use std::{collections::BTreeMap, fmt, ops::RangeInclusive, str::FromStr};

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

    /// The same as ranges.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = RangeInclusive<i64>> + '_ {
        self.0.iter().cloned()
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
#[derive(Debug, Default)]
pub(crate) struct Shortest(BTreeMap<i64, i64>);

impl Shortest {
    /// In ascending order, each once.
    pub(crate) fn of(ids: impl IntoIterator<Item = i64>) -> Self {
        let mut shortest = Self::default();
        ids.into_iter().for_each(|id| shortest.add(id..=id));
        shortest
    }

    /// Adds ids, some of which may be there already.
    pub(crate) fn add(&mut self, ids: RangeInclusive<i64>) {
        let (mut first, mut last) = ids.into_inner();
        // Ranges that overlap or touch become one.
        while let Some((start, end)) = self.0.range(..=last.saturating_add(1)).next_back().map(|(a, b)| (*a, *b)) {
            if end.saturating_add(1) < first {
                break;
            }
            (first, last) = (first.min(start), last.max(end));
            self.0.remove(&start);
        }
        self.0.insert(first, last);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> i64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// The ranges in ascending order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = RangeInclusive<i64>> + '_ {
        self.0.iter().map(|(first, last)| *first..=*last)
    }
}

impl fmt::Display for Shortest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (first, last) in &self.0 {
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
            let shortest = Shortest::of(ids.iter().copied());
            prop_assert_eq!(shortest.len() as usize, ids.len());
            prop_assert_eq!(read(&shortest.to_string()).unwrap(), ids.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn ranges_that_touch_are_one(ranges in proptest::collection::vec((1..60_i64, 0..9_i64), 1..12)) {
            let mut shortest = Shortest::default();
            ranges.iter().for_each(|(first, more)| shortest.add(*first..=first + more));
            let all: std::collections::BTreeSet<i64> = ranges.iter().flat_map(|(first, more)| *first..=first + more).collect();
            prop_assert_eq!(shortest.ranges().flatten().collect::<Vec<_>>(), all.iter().copied().collect::<Vec<_>>());
            let mut runs = shortest.ranges().collect::<Vec<_>>();
            runs.dedup_by(|next, before| *before.end() + 1 >= *next.start());
            prop_assert_eq!(runs.len(), shortest.ranges().count());
        }
    }
}
