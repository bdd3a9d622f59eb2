//! Escapes of the text format of COPY.
//!
//! Owns which escapes there are. Knows nothing of rows and cells, nor that `\\N` is NULL.

use super::error::{DecodeError, DecodeReason};

/// Appends the value that `raw` stands for: `\b \f \n \r \t \v \\`, one to three octal digits, or
/// `x` and one or two hexadecimal digits. The server sends no others, so others are errors.
pub fn unescape_into(raw: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let (plain, escape) = rest.split_at(at);
        out.extend_from_slice(plain);
        let after = escape.get(1..).unwrap_or_default();
        let Some((byte, length)) = unescape(after) else {
            let reason = match after.first() {
                Some(&found) => DecodeReason::UnknownEscape { found },
                None => DecodeReason::LoneBackslash,
            };
            return Err(DecodeError { offset: raw.len() - escape.len(), tag: 0, reason });
        };
        out.push(byte);
        rest = after.get(length..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    Ok(())
}

/// The byte that the start of `after`, which a backslash precedes, stands for, and its length.
fn unescape(after: &[u8]) -> Option<(u8, usize)> {
    let (&letter, tail) = after.split_first()?;
    match letter {
        b'b' => Some((0x08, 1)),
        b'f' => Some((0x0C, 1)),
        b'n' => Some((b'\n', 1)),
        b'r' => Some((b'\r', 1)),
        b't' => Some((b'\t', 1)),
        b'v' => Some((0x0B, 1)),
        b'\\' => Some((b'\\', 1)),
        b'0'..=b'7' => Some(digits::<8>(after, 3)),
        b'x' => {
            Some(digits::<16>(tail, 2)).filter(|(_, length)| *length > 0).map(|(b, l)| (b, l + 1))
        }
        _ => None,
    }
}

/// The number at the start of `bytes`, at most `length` digits, modulo 256; and how many it has.
fn digits<const RADIX: u8>(bytes: &[u8], length: usize) -> (u8, usize) {
    let digits = bytes.iter().take(length).map_while(|byte| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    });
    digits.take_while(|digit| *digit < RADIX).fold((0_u8, 0), |(number, length), digit| {
        (number.wrapping_mul(RADIX).wrapping_add(digit), length + 1)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::encode;

    fn unescaped(raw: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let mut out = Vec::new();
        unescape_into(raw, &mut out).map(|()| out)
    }

    #[test]
    fn escapes_are_those_of_the_server() {
        let cases: [(&[u8], &[u8]); 10] = [
            (b"", b""),
            (br"\b\f\n\r\t\v\\", b"\x08\x0C\n\r\t\x0B\\"),
            (br"a\\b", br"a\b"),
            (br"\\n", br"\n"),
            (br"\1018", b"A8"),
            (br"\0", b"\0"),
            (br"\79", b"\x079"),
            (br"\501", b"A"),
            (br"\x41f", b"Af"),
            (br"\xfg", b"\x0Fg"),
        ];
        for (raw, value) in cases {
            assert_eq!(unescaped(raw), Ok(value.to_vec()), "{}", raw.escape_ascii());
        }
    }

    // A-07
    #[test]
    fn others_are_refused_where_they_stand() {
        let unknown = |found| DecodeReason::UnknownEscape { found };
        let cases: [(&[u8], usize, DecodeReason); 6] = [
            (br"a\", 1, DecodeReason::LoneBackslash),
            (br"\\\", 2, DecodeReason::LoneBackslash),
            (br"\.", 0, unknown(b'.')),
            (br"\nx\x", 3, unknown(b'x')),
            (br"\8", 0, unknown(b'8')),
            (br"\N", 0, unknown(b'N')),
        ];
        for (raw, offset, reason) in cases {
            assert_eq!(unescaped(raw), Err(DecodeError { offset, tag: 0, reason }));
        }
    }

    proptest! {
        #[test]
        fn unescape_inverts_escape(value: Vec<u8>) {
            let frame = encode::copy_row(&[Some(&value)]);
            prop_assert_eq!(unescaped(&frame[5..frame.len() - 1]), Ok(value));
        }
    }
}
