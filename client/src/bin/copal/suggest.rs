//! What somebody who mistyped a word may have meant.

use std::collections::HashSet;

/// The candidate that is nearest to a word, if any is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let most = word.chars().count().div_ceil(3).min(3);
    candidates
        .into_iter()
        .map(|candidate| (distance(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// A hint for a word that means nothing: what is near it, else what there is, else what to do.
pub(crate) fn choice(word: &str, names: &[&str], otherwise: &str) -> String {
    const SHOWN: usize = 12;
    if let Some(near) = nearest(word, names.iter().copied()) {
        return format!("did you mean {near}?");
    }
    let mut seen = HashSet::new();
    let names: Vec<&str> = names.iter().copied().filter(|name| seen.insert(*name)).collect();
    match names.len() {
        0 => otherwise.into(),
        count if count <= SHOWN => format!("there is {}", names.join(", ")),
        count => format!("there is {} and {} more", names[..SHOWN].join(", "), count - SHOWN),
    }
}

/// Letters to add, drop, replace or swap with their neighbour (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = last;
        last = row;
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_recognised() {
        let names = ["theta", "polaris", "my-site"];
        assert_eq!(nearest("tetha", names), Some("theta"));
        assert_eq!(nearest("Polari", names), Some("polaris"));
        assert_eq!(nearest("mysite", names), Some("my-site"));
        assert_eq!(nearest("frontier", names), None);
        assert_eq!(nearest("", names), None);
    }

    #[test]
    fn a_hint_says_what_is_near_or_what_there_is() {
        assert_eq!(choice("Helo", &["Hello", "Sim"], "write one"), "did you mean Hello?");
        assert_eq!(choice("xyz", &["Hello", "Sim", "Hello"], "write one"), "there is Hello, Sim");
        assert_eq!(choice("xyz", &[], "write one"), "write one");
    }
}
