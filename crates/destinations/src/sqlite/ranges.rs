//! A set of sequence numbers, kept as ranges (DS-18).

use std::fmt;

/// Numbers from 1, as inclusive ranges in order that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub(super) fn contains(&self, number: u64) -> bool {
        let next = self.0.partition_point(|(first, _)| *first <= number);
        next.checked_sub(1).and_then(|at| self.0.get(at)).is_some_and(|(_, last)| number <= *last)
    }

    pub(super) fn insert(&mut self, number: u64) {
        if self.contains(number) {
            return;
        }
        let at = self.0.partition_point(|(first, _)| *first < number);
        self.0.insert(at, (number, number));
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(self.0.len());
        for (first, last) in self.0.drain(..) {
            match merged.last_mut() {
                Some((_, end)) if end.checked_add(1) == Some(first) => *end = last,
                Some(_) | None => merged.push((first, last)),
            }
        }
        self.0 = merged;
    }

    /// Whether it is exactly `1..=count`.
    pub(super) fn is_complete(&self, count: u64) -> bool {
        match self.0.as_slice() {
            [] => count == 0,
            [(1, last)] => *last == count,
            [..] => false,
        }
    }

    /// Reads what `Display` wrote.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            let after = ranges.last().is_none_or(|(_, end)| *end < first);
            if first > last || !after {
                return None;
            }
            ranges.push((first, last));
        }
        Some(Self(ranges))
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // DS-18
    #[test]
    fn any_order_of_numbers_gives_the_same_ranges() {
        let orders = [[1, 2, 3, 5, 9], [9, 5, 3, 2, 1], [3, 9, 1, 5, 2]];
        for order in orders {
            let mut ranges = Ranges::default();
            for number in order {
                ranges.insert(number);
                ranges.insert(number);
            }
            assert_eq!(ranges.to_string(), "1-3,5,9");
            for number in 0..12 {
                assert_eq!(ranges.contains(number), order.contains(&number));
            }
            assert_eq!(Ranges::parse("1-3,5,9"), Some(ranges));
        }
    }

    #[test]
    fn complete_means_without_a_gap_from_one() {
        let complete = |text: &str, count| Ranges::parse(text).unwrap().is_complete(count);
        assert!(complete("", 0) && complete("1", 1) && complete("1-7", 7));
        assert!(!complete("", 1) && !complete("1-7", 8) && !complete("2-7", 7));
        assert!(!complete("1-3,5-7", 7));
    }

    #[test]
    fn damaged_text_is_refused() {
        for text in ["x", "3-1", "1-", "5,1", "1-3,2"] {
            assert_eq!(Ranges::parse(text), None, "{text}");
        }
    }
}
