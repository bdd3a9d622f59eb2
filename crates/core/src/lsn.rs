//! WAL positions as types, so that a commit position and a boundary cannot be mixed up.
//!
//! Owns the arithmetic and the text form (N-14). Knows nothing of streams or tables.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// An unsigned 64-bit WAL position, comparable only within one system and one timeline history.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// A text that is not a WAL position (N-14).
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("not a WAL position: {0:?}")]
pub struct ParseLsnError(pub String);

impl Lsn {
    /// The position before any WAL; never the place of a transaction.
    pub const ZERO: Self = Self(0);

    /// Bytes from `other` up to `self`, 0 if `self` is not past it.
    #[must_use]
    pub const fn bytes_past(self, other: Self) -> u64 {
        self.0.saturating_sub(other.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let half = |part: &str| {
            let valid =
                (1..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
            valid.then(|| u64::from_str_radix(part, 16).ok()).flatten()
        };
        let parsed = text.split_once('/').and_then(|(high, low)| Some((half(high)?, half(low)?)));
        parsed
            .map(|(high, low)| Self(high << 32 | low))
            .ok_or_else(|| ParseLsnError(text.to_owned()))
    }
}

impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Start of a transaction's commit record: what orders transactions. Never saved, never confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitLsn(pub Lsn);

impl CommitLsn {
    /// The smallest position that covers this transaction although its end is not known (H-05).
    #[must_use]
    pub const fn after_start(self) -> Position {
        Position(Lsn(self.0.0 + 1))
    }
}

impl fmt::Display for CommitLsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An exclusive boundary: everything with `commit_lsn < position`. Ends of transactions, consistent
/// points and keepalive positions are such boundaries; so are cutoffs and handovers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(pub Lsn);

impl Position {
    /// Whether the transaction lies below this boundary: a snapshot with this cutoff shows it, a
    /// stream that starts here does not send it, a handover here leaves it to the private stream.
    #[must_use]
    pub fn covers(self, commit: CommitLsn) -> bool {
        commit.0 < self.0
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // N-14
    #[test]
    fn text_form_has_two_unpadded_upper_case_parts() {
        let cases =
            [(0, "0/0"), (1, "0/1"), (0xAB_0000_00CD, "AB/CD"), (u64::MAX, "FFFFFFFF/FFFFFFFF")];
        for (value, text) in cases {
            assert_eq!(Lsn(value).to_string(), text);
        }
    }

    // N-14
    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "/",
            "1",
            "1/",
            "/1",
            "1/2/3",
            "123456789/0",
            "0/123456789",
            "g/0",
            "+1/0",
            " 1/0",
            "0/1 ",
            "-1/0",
        ] {
            assert_eq!(text.parse::<Lsn>(), Err(ParseLsnError(text.to_owned())));
        }
        assert_eq!("00ab/0000cD".parse::<Lsn>(), Ok(Lsn(0xAB_0000_00CD)));
    }

    // PG-01, PG-02
    #[test]
    fn a_boundary_covers_only_what_lies_below_it() {
        let commit = CommitLsn(Lsn(10));
        assert!(!Position(Lsn(9)).covers(commit));
        assert!(!Position(Lsn(10)).covers(commit));
        assert!(Position(Lsn(11)).covers(commit));
        assert!(commit.after_start().covers(commit));
    }

    proptest! {
        // N-I2
        #[test]
        fn parse_inverts_format(value: u64, other: u64) {
            prop_assert_eq!(Lsn(value).to_string().parse(), Ok(Lsn(value)));
            prop_assert_eq!(Lsn(value).cmp(&Lsn(other)), value.cmp(&other));
            walferry_coverage::reached("N-I2");
        }
    }
}
