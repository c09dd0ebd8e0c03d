//! A set of small numbers as bits: the free cores of a node.

/// Which of the numbers below a bound are in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    /// All numbers below `count`.
    pub(super) fn all(count: usize) -> Self {
        (0..count).collect()
    }

    pub(super) fn insert(&mut self, number: usize) {
        let word = number / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % 64);
    }

    pub(super) fn remove(&mut self, number: usize) {
        if let Some(word) = self.0.get_mut(number / 64) {
            *word &= !(1 << (number % 64));
        }
    }

    /// How many are in both.
    pub(super) fn count_common(&self, other: &Self) -> u32 {
        self.0.iter().zip(&other.0).map(|(a, b)| (a & b).count_ones()).sum()
    }

    /// The lowest that is in both.
    pub(super) fn first_common(&self, other: &Self) -> Option<usize> {
        let words = self.0.iter().zip(&other.0).map(|(a, b)| a & b);
        words.enumerate().find(|(_, word)| *word != 0).map(|(at, word)| at * 64 + word.trailing_zeros() as usize)
    }

    /// The lowest.
    pub(super) fn first(&self) -> Option<usize> {
        let (at, word) = self.0.iter().enumerate().find(|(_, word)| **word != 0)?;
        Some(at * 64 + word.trailing_zeros() as usize)
    }
}

impl FromIterator<usize> for Bits {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut bits = Self::default();
        numbers.into_iter().for_each(|number| bits.insert(number));
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_finds_across_words() {
        let mut bits = Bits::all(130);
        let odd: Bits = (0..200).filter(|number| number % 2 == 1).collect();
        assert_eq!(bits.count_common(&odd), 65);
        (0..129).for_each(|number| bits.remove(number));
        assert_eq!((bits.first(), bits.first_common(&odd)), (Some(129), Some(129)));
        bits.remove(129);
        assert_eq!((bits.first(), bits.count_common(&odd)), (None, 0));
        bits.insert(64);
        assert_eq!((bits.first(), bits.first_common(&odd)), (Some(64), None));
    }
}
