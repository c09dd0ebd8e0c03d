//! Arrays of Jobs on the command line: `--array 0-99:2`, and `{index}` or `{index:06}` in workdirs,
//! parameters and tags.

use std::str::FromStr;

/// The most Jobs of one array.
const MOST: i64 = 1_000_000;

/// `FIRST-LAST[:STEP]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArraySpec {
    first: i64,
    last: i64,
    step: i64,
}

impl ArraySpec {
    /// The indices, ascending.
    pub(crate) fn indices(self) -> impl Iterator<Item = i64> {
        (0..self.len()).map(move |place| self.first + place * self.step)
    }

    /// How many there are.
    pub(crate) fn len(self) -> i64 {
        (self.last - self.first) / self.step + 1
    }
}

impl FromStr for ArraySpec {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not an array; write FIRST-LAST or FIRST-LAST:STEP, such as 0-99 or 0-99:10");
        let (range, step) = match text.split_once(':') {
            Some((range, step)) => (range, step.trim().parse().map_err(|_| wrong())?),
            None => (text, 1),
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.trim().parse::<u32>().map(i64::from).map_err(|_| wrong());
        let spec = Self { first: number(first)?, last: number(last)?, step };
        if spec.step < 1 || spec.first > spec.last {
            return Err(wrong());
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
        for text in ["", "3-1", "0-9:0", "a-b", "0-9:x", "-1-3", "0-99999999"] {
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
