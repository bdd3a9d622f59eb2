//! Values and names as JSON.

use std::fmt::Write as _;

use serde::de::IgnoredAny;

use crate::values::{self, Class};

/// Text that is not UTF-8, which JSON cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotUtf8;

/// Appends the value that `text` stands for.
pub(super) fn value(out: &mut Vec<u8>, class: Class, text: &[u8]) -> Result<(), NotUtf8> {
    match class {
        Class::Integer if values::integer(text).is_some() => out.extend_from_slice(text),
        Class::Float if is_number(text) => out.extend_from_slice(text),
        Class::Bool => match values::boolean(text) {
            Some(true) => out.extend_from_slice(b"true"),
            Some(false) => out.extend_from_slice(b"false"),
            None => string(out, text)?,
        },
        Class::Json if is_json(text) => {
            // Between tokens a newline means nothing; inside strings it cannot stand.
            let flat = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
            out.extend(text.iter().map(flat));
        }
        Class::Integer
        | Class::Float
        | Class::Json
        | Class::Numeric
        | Class::Bytes
        | Class::Text => string(out, text)?,
    }
    Ok(())
}

/// Appends a JSON string.
pub(super) fn string(out: &mut Vec<u8>, text: &[u8]) -> Result<(), NotUtf8> {
    let text = str::from_utf8(text).map_err(|_| NotUtf8)?;
    quoted(out, text);
    Ok(())
}

/// Appends a JSON string.
pub(super) fn quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|b| *b < 0x20 || *b == b'"' || *b == b'\\') {
        let (plain, tail) = rest.split_at(at);
        out.extend_from_slice(plain);
        let Some((&byte, tail)) = tail.split_first() else { break };
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            other => out.extend_from_slice(format!("\\u{other:04x}").as_bytes()),
        }
        rest = tail;
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

fn is_json(text: &[u8]) -> bool {
    str::from_utf8(text).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// The grammar of RFC 8259 for numbers.
fn is_number(text: &[u8]) -> bool {
    fn digits(text: &[u8]) -> &[u8] {
        let end = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
        text.get(end..).unwrap_or_default()
    }
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let mut rest = match text {
        [b'0', rest @ ..] => rest,
        [b'1'..=b'9', ..] => digits(text),
        [..] => return false,
    };
    if let [b'.', fraction @ ..] = rest {
        rest = digits(fraction);
        if rest.len() == fraction.len() {
            return false;
        }
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent = match exponent {
            [b'+' | b'-', exponent @ ..] => exponent,
            exponent => exponent,
        };
        rest = digits(exponent);
        if rest.len() == exponent.len() {
            return false;
        }
    }
    rest.is_empty()
}

/// RFC 3339 in UTC of a time in microseconds since 2000-01-01.
pub(super) fn time(time_us: i64) -> String {
    const DAY_US: i64 = 86_400_000_000;
    let (days, us) = (time_us.div_euclid(DAY_US), time_us.rem_euclid(DAY_US));
    // Days since 0000-03-01 of the proleptic Gregorian calendar: a year that ends with February
    // has its leap day last.
    let days = days + 730_425;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (seconds, us) = (us / 1_000_000, us % 1_000_000);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    let written =
        write!(text, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z");
    debug_assert!(written.is_ok(), "a string takes everything");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(class: Class, text: &str) -> String {
        let mut out = Vec::new();
        value(&mut out, class, text.as_bytes()).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(serde_json::from_str::<IgnoredAny>(&text).is_ok(), "{text}");
        assert!(!text.contains('\n'));
        text
    }

    #[test]
    fn each_class_has_its_json() {
        let cases = [
            (Class::Bool, "t", "true"),
            (Class::Bool, "f", "false"),
            (Class::Integer, "-9223372036854775808", "-9223372036854775808"),
            (Class::Float, "1e+20", "1e+20"),
            (Class::Float, "1.5e-07", "1.5e-07"),
            (Class::Float, "-0", "-0"),
            (Class::Float, "NaN", "\"NaN\""),
            (Class::Float, "-Infinity", "\"-Infinity\""),
            (Class::Numeric, "0.10", "\"0.10\""),
            (Class::Bytes, "\\x00ff", "\"\\\\x00ff\""),
            (Class::Json, "{\"a\":\n [1, \"x\\n\"]}", "{\"a\":  [1, \"x\\n\"]}"),
            (Class::Json, "{", "\"{\""),
            (Class::Text, "a\"b\\\n\u{1}é\t", "\"a\\\"b\\\\\\n\\u0001é\\t\""),
            (Class::Text, "007", "\"007\""),
        ];
        for (class, text, expected) in cases {
            assert_eq!(json(class, text), expected);
        }
        assert_eq!(value(&mut Vec::new(), Class::Text, b"\xFF"), Err(NotUtf8));
        assert_eq!(value(&mut Vec::new(), Class::Json, b"\"\xFF\""), Err(NotUtf8));
    }

    #[test]
    fn only_json_numbers_are_numbers() {
        for text in ["", "-", "01", ".5", "1.", "1e", "1e+", "+1", "1x", "0x1", "Infinity"] {
            assert!(!is_number(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn times_are_utc_with_microseconds() {
        let cases = [
            (0, "2000-01-01T00:00:00.000000Z"),
            (-1, "1999-12-31T23:59:59.999999Z"),
            (5_097_600_000_000, "2000-02-29T00:00:00.000000Z"),
            (849_398_400_123_456, "2026-12-01T00:00:00.123456Z"),
        ];
        for (us, text) in cases {
            assert_eq!(time(us), text);
        }
        assert!(!time(i64::MAX).is_empty() && !time(i64::MIN).is_empty());
    }
}
