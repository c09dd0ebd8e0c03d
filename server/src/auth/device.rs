//! The codes of the device login (RFC 8628): a program without a browser shows a short code, and
//! the user approves it in a browser elsewhere.

use chrono::TimeDelta;
use rand::seq::IndexedRandom as _;

/// What programs recognise a device code by.
pub(crate) const DEVICE_PREFIX: &str = "copal_device_";

/// How long a code can be approved.
pub(crate) const LIFE: TimeDelta = TimeDelta::seconds(300);

/// Seconds between two questions of the program.
pub(crate) const INTERVAL_SEC: f64 = 3.0;

/// Consonants without Y: no code is a word, and none is misread.
const LETTERS: &[u8] = b"BCDFGHJKLMNPQRSTVWXZ";

/// A code for people: `XXXX-XXXX`.
pub(crate) fn user_code() -> String {
    let mut rng = rand::rng();
    let mut letters = (0..8).filter_map(|_| LETTERS.choose(&mut rng)).map(|letter| char::from(*letter));
    let first: String = letters.by_ref().take(4).collect();
    let second: String = letters.collect();
    format!("{first}-{second}")
}

/// The code that somebody typed: case, spaces and the dash do not matter.
pub(crate) fn normal_code(typed: &str) -> Option<String> {
    let letters: String =
        typed.chars().filter(|letter| !letter.is_whitespace() && *letter != '-').collect::<String>().to_uppercase();
    let good = letters.len() == 8 && letters.bytes().all(|letter| LETTERS.contains(&letter));
    good.then(|| format!("{}-{}", &letters[..4], &letters[4..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_two_groups_of_consonants() {
        for _ in 0..100 {
            let code = user_code();
            assert_eq!(normal_code(&code), Some(code.clone()));
            assert_eq!(normal_code(&code.to_lowercase().replace('-', " ")), Some(code));
        }
    }

    #[test]
    fn other_texts_are_no_codes() {
        for text in ["", "BCDF-GHJ", "BCDF-GHJKL", "ABCD-EFGH", "<b>BCDF", "ÄÖÜß-BCDF"] {
            assert_eq!(normal_code(text), None, "{text}");
        }
    }
}
