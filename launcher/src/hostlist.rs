//! Compressed lists of hosts, as schedulers write them: `nid[0001-0003,0007],x1000c0s[0-3]b0n0`.
//! Pure text; which variable holds such a list is known to `nodes`.

/// The most hosts of one list: more is a slip of the pen, not a machine.
pub const MAX_HOSTS: usize = 1_000_000;

/// A list that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostlistError {
    /// A `[` without its `]`, or the other way round, or one inside another.
    #[error("{0:?} has a bracket without its partner")]
    Bracket(String),
    /// Something in brackets that is no number and no range upwards.
    #[error("{0:?} is no number and no range upwards")]
    Range(String),
    /// More than [`MAX_HOSTS`].
    #[error("the list has more than {MAX_HOSTS} hosts")]
    TooMany,
}

/// The hosts of a list, in its order. Names are separated by commas or white space; each may have
/// any number of bracketed ranges with text around them. Numbers keep the width of a range's lower bound.
/// Slurm's ways of saying "none" give an empty list.
///
/// # Errors
/// [`HostlistError`] with the part that makes no sense.
pub fn expand(text: &str) -> Result<Vec<String>, HostlistError> {
    let text = text.trim();
    if matches!(text, "(null)" | "None assigned" | "None") {
        return Ok(Vec::new());
    }
    let mut hosts = Vec::new();
    for item in items(text)? {
        expand_item(item, &mut hosts)?;
    }
    Ok(hosts)
}

/// The shortest list of these hosts in this order that [`expand`] gives back, with one bracket a name.
#[must_use]
pub fn compress<S: AsRef<str>>(hosts: &[S]) -> String {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for host in hosts {
        let name = Name::parse(host.as_ref());
        if !groups.last_mut().is_some_and(|group| group.take(name)) {
            groups.push(Group::new(name));
        }
    }
    groups.iter().map(Group::text).collect::<Vec<_>>().join(",")
}

/// The parts between commas and white space outside of brackets.
fn items(text: &str) -> Result<Vec<&str>, HostlistError> {
    let mut items = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return Err(HostlistError::Bracket(text[start..].to_owned())),
            ',' if !inside => {
                items.push(&text[start..at]);
                start = at + 1;
            }
            _ if letter.is_whitespace() && !inside => {
                items.push(&text[start..at]);
                start = at + letter.len_utf8();
            }
            _ => {}
        }
    }
    if inside {
        return Err(HostlistError::Bracket(text[start..].to_owned()));
    }
    items.push(&text[start..]);
    items.retain(|item| !item.is_empty());
    Ok(items)
}

/// All names of one part: the product of its brackets, the last one running fastest.
fn expand_item(item: &str, hosts: &mut Vec<String>) -> Result<(), HostlistError> {
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((before, after)) = rest.split_once('[') {
        // `items` has seen to it that each bracket has its partner.
        let (inner, behind) = after.split_once(']').unwrap_or((after, ""));
        let numbers = numbers(inner)?;
        if names.len().saturating_mul(numbers.len()) > MAX_HOSTS {
            return Err(HostlistError::TooMany);
        }
        names =
            names.iter().flat_map(|name| numbers.iter().map(move |number| format!("{name}{before}{number}"))).collect();
        rest = behind;
    }
    if hosts.len() + names.len() > MAX_HOSTS {
        return Err(HostlistError::TooMany);
    }
    hosts.extend(names.into_iter().map(|name| name + rest));
    Ok(())
}

/// `0001-0003,0007` as texts.
pub(crate) fn numbers(text: &str) -> Result<Vec<String>, HostlistError> {
    let mut numbers = Vec::new();
    for part in text.split(',').map(str::trim) {
        let bad = || HostlistError::Range(part.to_owned());
        let number = |digits: &str| match digits.bytes().all(|byte| byte.is_ascii_digit()) {
            true => digits.parse::<u64>().map_err(|_| bad()),
            false => Err(bad()),
        };
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(low)?, number(high)?);
        if first > last {
            return Err(bad());
        }
        if last - first >= MAX_HOSTS as u64 || numbers.len() as u64 + (last - first) >= MAX_HOSTS as u64 {
            return Err(HostlistError::TooMany);
        }
        let width = low.len();
        numbers.extend((first..=last).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

/// A name around its last number.
#[derive(Clone, Copy)]
struct Name<'a> {
    prefix: &'a str,
    digits: &'a str,
    suffix: &'a str,
}

impl<'a> Name<'a> {
    fn parse(name: &'a str) -> Self {
        let Some(last) = name.rfind(|letter: char| letter.is_ascii_digit()) else {
            return Self { prefix: name, digits: "", suffix: "" };
        };
        let start = name[..last]
            .rfind(|letter: char| !letter.is_ascii_digit())
            .map_or(0, |at| at + name[at..].chars().next().map_or(1, char::len_utf8));
        // Longer numbers are left as text, so that arithmetic never overflows.
        let start = start.max((last + 1).saturating_sub(18));
        Self { prefix: &name[..start], digits: &name[start..=last], suffix: &name[last + 1..] }
    }
}

/// Names that differ in one number only.
struct Group<'a> {
    prefix: &'a str,
    suffix: &'a str,
    /// First digits and the number of names.
    ranges: Vec<(&'a str, u64)>,
}

impl<'a> Group<'a> {
    fn new(name: Name<'a>) -> Self {
        Self { prefix: name.prefix, suffix: name.suffix, ranges: vec![(name.digits, 1)] }
    }

    /// Takes the name in when it belongs here.
    fn take(&mut self, name: Name<'a>) -> bool {
        let Some((first, count)) = self.ranges.last_mut() else { return false };
        if name.prefix != self.prefix || name.suffix != self.suffix || name.digits.is_empty() || first.is_empty() {
            return false;
        }
        let width = first.len();
        let next = first.parse::<u64>().map(|first| format!("{:0width$}", first + *count));
        if next.as_deref() == Ok(name.digits) {
            *count += 1;
        } else {
            self.ranges.push((name.digits, 1));
        }
        true
    }

    fn text(&self) -> String {
        let (prefix, suffix) = (self.prefix, self.suffix);
        if let [(digits, 1)] = self.ranges[..] {
            return format!("{prefix}{digits}{suffix}");
        }
        let ranges: Vec<String> = self
            .ranges
            .iter()
            .map(|(first, count)| match first.parse::<u64>() {
                Ok(number) if *count > 1 => {
                    let width = first.len();
                    format!("{first}-{:0width$}", number + count - 1)
                }
                _ => (*first).to_owned(),
            })
            .collect();
        format!("{prefix}[{}]{suffix}", ranges.join(","))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pitfall_053_node_lists_expand_in_all_their_forms() {
        let cases: &[(&str, &[&str])] = &[
            ("nid[0001-0003,0007],x1000c0s0b0n0", &["nid0001", "nid0002", "nid0003", "nid0007", "x1000c0s0b0n0"]),
            ("b04-[09-10]", &["b04-09", "b04-10"]),
            ("a,b[001,003],c", &["a", "b001", "b003", "c"]),
            ("r[0-1]_b[0-1]", &["r0_b0", "r0_b1", "r1_b0", "r1_b1"]),
            ("foo[10,12-14],foo-m11-16", &["foo10", "foo12", "foo13", "foo14", "foo-m11-16"]),
            ("x1000c0s[0-3]b0n0", &["x1000c0s0b0n0", "x1000c0s1b0n0", "x1000c0s2b0n0", "x1000c0s3b0n0"]),
            ("nid0[3038-3039,8241]", &["nid03038", "nid03039", "nid08241"]),
            ("n[9-11]\n", &["n9", "n10", "n11"]),
            ("n[099-101].example.org", &["n099.example.org", "n100.example.org", "n101.example.org"]),
            ("n1", &["n1"]),
            ("a b\nc", &["a", "b", "c"]),
            ("", &[]),
            ("(null)", &[]),
            ("None assigned", &[]),
        ];
        for (text, hosts) in cases {
            assert_eq!(&expand(text).unwrap(), hosts, "{text:?}");
        }
    }

    #[test]
    fn pitfall_053_nonsense_is_refused_with_the_part() {
        assert_eq!(expand("n[1-3").unwrap_err(), HostlistError::Bracket("n[1-3".into()));
        assert_eq!(expand("a,n1-3]").unwrap_err(), HostlistError::Bracket("n1-3]".into()));
        assert!(matches!(expand("n[1-[2-3]]").unwrap_err(), HostlistError::Bracket(_)));
        assert_eq!(expand("n[5-3]").unwrap_err(), HostlistError::Range("5-3".into()));
        assert_eq!(expand("n[]").unwrap_err(), HostlistError::Range(String::new()));
        assert_eq!(expand("n[a-b]").unwrap_err(), HostlistError::Range("a-b".into()));
        assert_eq!(expand("n[+1-3]").unwrap_err(), HostlistError::Range("+1-3".into()));
        assert_eq!(expand("n[0-99999][0-99999]").unwrap_err(), HostlistError::TooMany);
        assert_eq!(expand("n[0-18446744073709551615]").unwrap_err(), HostlistError::TooMany);
    }

    #[test]
    fn pitfall_053_ten_thousand_nodes() {
        let hosts = expand("nid[00001-10000]").unwrap();
        assert_eq!(hosts.len(), 10_000);
        assert_eq!(hosts[9_999], "nid10000");
        assert_eq!(compress(&hosts), "nid[00001-10000]");
    }

    #[test]
    fn lists_are_compressed_in_order() {
        assert_eq!(compress(&["n1", "n2", "n3", "n7"]), "n[1-3,7]");
        assert_eq!(compress(&["n3", "n1"]), "n[3,1]");
        assert_eq!(compress(&["n08", "n09", "n10", "m"]), "n[08-10],m");
        assert_eq!(compress(&["x0s1b0", "x0s2b0"]), "x0s1b0,x0s2b0");
        assert_eq!(compress::<&str>(&[]), "");
    }

    proptest! {
        #[test]
        fn round_trip(hosts in prop::collection::vec("[a-z]{1,3}-?[0-9]{0,4}[a-z]{0,2}[0-9]{0,22}(\\.x)?", 0..50)) {
            prop_assert_eq!(expand(&compress(&hosts)).unwrap(), hosts);
        }

        #[test]
        fn round_trip_of_ranges(first in 0u64..2_000, count in 1u64..300, width in 1usize..6) {
            let hosts: Vec<String> = (first..first + count).map(|number| format!("n{number:0width$}s")).collect();
            let text = compress(&hosts);
            prop_assert!(text.len() < 20 + 6 * 4, "{}", text);
            prop_assert_eq!(expand(&text).unwrap(), hosts);
        }

        #[test]
        fn never_panics(text in "[a-c0-9\\[\\],\\- \n]{0,40}") {
            let _ = expand(&text);
        }
    }
}
