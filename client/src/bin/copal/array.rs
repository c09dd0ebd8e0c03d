//! Arrays of Jobs on the command line: `--array 0-99:2,200`, and `{index}` or `{index:06}` in workdirs,
//! parameters and tags.

use std::str::FromStr;

/// The most Jobs of one array.
const MOST: i64 = 1_000_000;

/// `FIRST-LAST[:STEP][,…][%MAX]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArraySpec {
    ranges: Vec<Range>,
    /// How many may run at once, where that was said.
    pub(crate) at_once: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: i64,
    last: i64,
    step: i64,
}

impl Range {
    fn len(self) -> i64 {
        (self.last - self.first) / self.step + 1
    }
}

impl ArraySpec {
    /// The indices in the order in which they were written.
    pub(crate) fn indices(&self) -> impl Iterator<Item = i64> + use<> {
        let ranges = self.ranges.clone();
        ranges.into_iter().flat_map(|range| (0..range.len()).map(move |place| range.first + place * range.step))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> i64 {
        self.ranges.iter().map(|range| range.len()).sum()
    }

    /// The least and the greatest index, and the step of the first range.
    pub(crate) fn bounds(&self) -> (i64, i64, i64) {
        let first = self.ranges.iter().map(|range| range.first).min().unwrap_or(0);
        let last = self.ranges.iter().map(|range| range.last).max().unwrap_or(0);
        (first, last, self.ranges.first().map_or(1, |range| range.step))
    }
}

impl FromStr for ArraySpec {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is not an array; write FIRST-LAST or FIRST-LAST:STEP, such as 0-99, 0-99:10 or 1,5,10-19")
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
            let range = Range { first: number(first)?, last: number(last)?, step };
            if range.step < 1 || range.first > range.last {
                return Err(wrong());
            }
            spec.ranges.push(range);
        }
        if spec.len() > MOST {
            return Err(format!("{text} has more than {MOST} Jobs"));
        }
        Ok(spec)
    }
}

/// Whether a text has an index to fill in.
pub(crate) fn has_index(text: &str) -> bool {
    text.contains("{index}") || text.contains("{index:")
}

/// Fills the index into a text: `{index}`, or `{index:06}` padded with zeros to six digits.
/// Other braces stay as they are.
///
/// # Errors
/// When what follows `{index:` is no width.
pub(crate) fn fill(text: &str, index: i64) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("{index") {
        let (before, tail) = rest.split_at(start);
        filled.push_str(before);
        let inner = &tail["{index".len()..];
        if let Some(after) = inner.strip_prefix('}') {
            filled.push_str(&index.to_string());
            rest = after;
        } else if let Some(spec) = inner.strip_prefix(':') {
            let width = spec.split_once('}').and_then(|(width, after)| Some((width.parse::<usize>().ok()?, after)));
            let Some((width, after)) = width.filter(|(width, _)| *width <= 20) else {
                return Err(format!("{text:?}: the width of an index is a number, such as {{index:06}}"));
            };
            filled.push_str(&format!("{index:0width$}"));
            rest = after;
        } else {
            filled.push_str("{index");
            rest = inner;
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(text: &str) -> Result<Vec<i64>, String> {
        text.parse::<ArraySpec>().map(|spec| spec.indices().collect())
    }

    #[test]
    fn ranges_and_steps_are_read() {
        assert_eq!(indices("0-3").unwrap(), [0, 1, 2, 3]);
        assert_eq!(indices("5-11:3").unwrap(), [5, 8, 11]);
        assert_eq!(indices("7").unwrap(), [7]);
        assert_eq!("0-49999".parse::<ArraySpec>().unwrap().len(), 50_000);
        assert_eq!(indices("1,5,10-14:2").unwrap(), [1, 5, 10, 12, 14]);
        let limited = "0-9%4".parse::<ArraySpec>().unwrap();
        assert_eq!((limited.len(), limited.at_once), (10, Some(4)));
        for text in ["", "1,", "0-9%", "0-9%0", "3-1", "0-9:0", "a-b", "0-9:x", "-1-3", "0-99999999"] {
            assert!(indices(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_index_is_filled_in_with_its_width() {
        assert_eq!(fill("seeds/{index:06}/{index}", 42).unwrap(), "seeds/000042/42");
        assert_eq!(fill("{indexes} {x} {", 1).unwrap(), "{indexes} {x} {");
        assert!(fill("{index:a}", 1).is_err());
        assert!(fill("{index:6", 1).is_err());
        assert!(!has_index("{indexes}"));
    }
}
