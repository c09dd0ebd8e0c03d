//! Arrays of Jobs on the command line: `--array 0-99:2,200%10`. What an index becomes in a Job is
//! `copal_schemas::job_array`.

use std::{collections::HashSet, fmt, str::FromStr};

use copal_schemas::job_array::{IndexText, MAX_ARRAY};

/// `FIRST-LAST[:STEP][,…][%MAX]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArraySpec {
    ranges: Vec<Range>,
    /// How many may run at once, where that was said.
    pub(crate) at_once: Option<u32>,
}

/// Indices with the same distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// The first.
    pub(crate) first: i64,
    /// The last, which the steps meet.
    pub(crate) last: i64,
    /// The distance.
    pub(crate) step: i64,
}

impl Range {
    fn len(self) -> i64 {
        (self.last - self.first) / self.step + 1
    }

    /// All indices.
    fn indices(self) -> impl Iterator<Item = i64> {
        (0..self.len()).map(move |place| self.first + place * self.step)
    }

    /// The same indices in ranges of at most so many.
    fn slices(self, most: i64) -> impl Iterator<Item = Self> {
        let starts = (0..self.len()).step_by(usize::try_from(most).unwrap_or(usize::MAX));
        starts.map(move |start| {
            let end = (start + most).min(self.len()) - 1;
            Self { first: self.first + start * self.step, last: self.first + end * self.step, step: self.step }
        })
    }
}

impl ArraySpec {
    /// The indices from 1 to `count`.
    pub(crate) fn counting(count: usize) -> Result<Self, String> {
        format!("1-{count}").parse()
    }

    /// The indices in the order in which they were written.
    pub(crate) fn indices(&self) -> impl Iterator<Item = i64> + '_ {
        self.ranges.iter().flat_map(|range| range.indices())
    }

    /// The same in ranges of at most `most`.
    pub(crate) fn slices(&self, most: i64) -> impl Iterator<Item = Range> + '_ {
        self.ranges.iter().flat_map(move |range| range.slices(most))
    }

    /// All but the first `count` indices.
    pub(crate) fn after(&self, count: i64) -> Self {
        let mut left = count;
        let mut ranges = Vec::new();
        for range in &self.ranges {
            let skipped = left.min(range.len());
            left -= skipped;
            if skipped < range.len() {
                ranges.push(Range { first: range.first + skipped * range.step, ..*range });
            }
        }
        Self { ranges, at_once: self.at_once }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> i64 {
        self.ranges.iter().map(|range| range.len()).sum()
    }

    /// The first and the last index as they were written.
    pub(crate) fn ends(&self) -> (i64, i64) {
        (self.ranges.first().map_or(0, |range| range.first), self.ranges.last().map_or(0, |range| range.last))
    }

    /// The least and the greatest index, and the step of the first range.
    pub(crate) fn bounds(&self) -> (i64, i64, i64) {
        let first = self.ranges.iter().map(|range| range.first).min().unwrap_or(0);
        let last = self.ranges.iter().map(|range| range.last).max().unwrap_or(0);
        (first, last, self.ranges.first().map_or(1, |range| range.step))
    }
}

impl fmt::Display for ArraySpec {
    /// As it is written on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, Range { first, last, step }) in self.ranges.iter().enumerate() {
            f.write_str(if place == 0 { "" } else { "," })?;
            match (first == last, *step) {
                (true, _) => write!(f, "{first}")?,
                (false, 1) => write!(f, "{first}-{last}")?,
                (false, step) => write!(f, "{first}-{last}:{step}")?,
            }
        }
        self.at_once.map_or(Ok(()), |most| write!(f, "%{most}"))
    }
}

impl FromStr for ArraySpec {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not an array; write FIRST-LAST or FIRST-LAST:STEP, such as 0-99, 0-99:10 or 1,5,10-19, \
                 and %MOST behind it for the most at once"
            )
        };
        let (list, at_once) = match text.split_once('%') {
            Some((list, most)) => (list, Some(most.trim().parse().ok().filter(|most| *most > 0).ok_or_else(wrong)?)),
            None => (text, None),
        };
        let mut spec = Self { ranges: Vec::new(), at_once };
        for part in list.split(',') {
            let (range, step) = match part.split_once(':') {
                Some((range, step)) => (range, step.trim().parse().map_err(|_| wrong())?),
                None => (part, 1),
            };
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.trim().parse::<u32>().map(i64::from).map_err(|_| wrong());
            let (first, last) = (number(first)?, number(last)?);
            if step < 1 || first > last {
                return Err(wrong());
            }
            spec.ranges.push(Range { first, last: last - (last - first) % step, step });
        }
        if spec.len() > MAX_ARRAY {
            return Err(format!("{text} has more than {MAX_ARRAY} Jobs"));
        }
        let mut seen = HashSet::new();
        if spec.ranges.len() > 1
            && let Some(twice) = spec.indices().find(|index| !seen.insert(*index))
        {
            return Err(format!("{text} names {twice} twice"));
        }
        Ok(spec)
    }
}

/// Whether a text has an index to fill in.
pub(crate) fn has_index(text: &str) -> bool {
    IndexText::parse(text).is_ok_and(|text| text.has_index())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn indices(text: &str) -> Result<Vec<i64>, String> {
        text.parse::<ArraySpec>().map(|spec| spec.indices().collect())
    }

    #[test]
    fn ranges_and_steps_are_read() {
        assert_eq!(indices("0-3").unwrap(), [0, 1, 2, 3]);
        assert_eq!(indices("5-12:3").unwrap(), [5, 8, 11]);
        assert_eq!(indices("7").unwrap(), [7]);
        assert_eq!("0-49999".parse::<ArraySpec>().unwrap().len(), 50_000);
        assert_eq!(indices("1,5,10-14:2").unwrap(), [1, 5, 10, 12, 14]);
        let limited = "0-9%4".parse::<ArraySpec>().unwrap();
        assert_eq!((limited.len(), limited.at_once), (10, Some(4)));
        for text in ["", "1,", "0-9%", "0-9%0", "3-1", "0-9:0", "a-b", "0-9:x", "-1-3", "0-99999999", "1-5,3"] {
            assert!(indices(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_an_index_by_itself_is_one() {
        assert!(has_index("seeds/{index:06}") && has_index("{index}"));
        assert!(!has_index("{indexes} {x} {"));
    }

    proptest! {
        #[test]
        fn slices_are_the_same_indices(first in 0..50_u32, length in 0..60_u32, step in 1..7_u32, most in 1..20_i64) {
            let spec: ArraySpec = format!("{first}-{}:{step},1000", first + length).parse().unwrap();
            let slices: Vec<Range> = spec.slices(most).collect();
            let again: Vec<i64> = slices.iter().flat_map(|slice| slice.indices()).collect();
            prop_assert_eq!(again, spec.indices().collect::<Vec<_>>());
            prop_assert!(slices.iter().all(|slice| slice.len() <= most));
        }

        #[test]
        fn what_is_left_is_written_so_that_it_can_be_read(
            first in 0..50_u32, length in 0..60_u32, step in 1..7_u32, done in 0..70_usize,
        ) {
            let spec: ArraySpec = format!("{first}-{}:{step},1000,2000-2003%7", first + length).parse().unwrap();
            let left: Vec<i64> = spec.indices().skip(done).collect();
            let rest = spec.after(done as i64);
            prop_assert_eq!(rest.indices().collect::<Vec<_>>(), left.clone());
            if !left.is_empty() {
                let read: ArraySpec = rest.to_string().parse().unwrap();
                prop_assert_eq!((read.indices().collect::<Vec<_>>(), read.at_once), (left, Some(7)));
            }
        }
    }
}
