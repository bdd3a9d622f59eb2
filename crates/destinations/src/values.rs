//! What the text of a value means, by the OID of its type.
//!
//! Owns the classes that destinations tell apart and the readers of their text. Types that are not
//! listed, domains included, are text exactly as the source prints them.

/// A group of types that destinations treat alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// `bool`: `t` or `f`.
    Bool,
    /// `int2`, `int4`, `int8`, `oid`.
    Integer,
    /// `float4`, `float8`.
    Float,
    /// `numeric`: any number of digits, also `NaN` and infinities.
    Numeric,
    /// `bytea`: `\x` and hexadecimal digits.
    Bytes,
    /// `json`, `jsonb`.
    Json,
    /// Everything else.
    Text,
}

impl Class {
    pub(crate) const fn of(type_oid: u32) -> Self {
        match type_oid {
            16 => Self::Bool,
            20 | 21 | 23 | 26 => Self::Integer,
            700 | 701 => Self::Float,
            1700 => Self::Numeric,
            17 => Self::Bytes,
            114 | 3802 => Self::Json,
            _ => Self::Text,
        }
    }
}

/// The integer that `text` is the canonical form of; others (`007`, `+1`, `-0`) are not changed
/// into one.
#[inline]
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let canonical = match digits {
        [] => false,
        [b'0', rest @ ..] => rest.is_empty() && !negative,
        [_, ..] => true,
    };
    if !canonical {
        return None;
    }
    digits.iter().try_fold(0_i64, |value, &byte| {
        let digit = i64::from(byte.wrapping_sub(b'0'));
        if digit > 9 {
            return None;
        }
        let scaled = value.checked_mul(10)?;
        if negative { scaled.checked_sub(digit) } else { scaled.checked_add(digit) }
    })
}

/// `t` and `f`.
#[inline]
pub(crate) const fn boolean(text: &[u8]) -> Option<bool> {
    match text {
        b"t" => Some(true),
        b"f" => Some(false),
        _ => None,
    }
}

/// Appends the bytes that the hexadecimal form of a `bytea` stands for; `false` if it is not one.
pub(crate) fn bytes(text: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(digits) = text.strip_prefix(b"\\x").filter(|digits| digits.len() % 2 == 0) else {
        return false;
    };
    let start = out.len();
    out.resize(start + digits.len() / 2, 0);
    out.get_mut(start..).is_some_and(|out| hex::decode_to_slice(digits, out).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_form_is_an_integer() {
        let cases: [(&str, Option<i64>); 12] = [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("4294967295", Some(4_294_967_295)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("007", None),
            ("-0", None),
            ("", None),
            ("-", None),
            ("1x", None),
        ];
        for (text, value) in cases {
            assert_eq!(integer(text.as_bytes()), value, "{text}");
        }
    }

    #[test]
    fn bytea_is_read_from_hexadecimal_only() {
        let mut out = vec![7];
        assert!(bytes(b"\\x00ff10", &mut out));
        assert_eq!(out, [7, 0, 255, 16]);
        for text in [&b"abc"[..], b"\\x0", b"\\xzz", b""] {
            assert!(!bytes(text, &mut Vec::new()));
        }
    }
}
