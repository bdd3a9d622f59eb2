//! Bodies of backend messages as values. Bounded: a cut body is an error, never a panic.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::error::SourceError;

/// What the server asks for during sign-in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AuthRequest {
    Ok,
    Cleartext,
    Md5 { salt: [u8; 4] },
    Sasl { mechanisms: Vec<String> },
    SaslContinue(Bytes),
    SaslFinal(Bytes),
    Other(u32),
}

impl AuthRequest {
    pub(crate) fn parse(body: &Bytes) -> Option<Self> {
        let (code, rest) = body.split_first_chunk::<4>()?;
        Some(match u32::from_be_bytes(*code) {
            0 => Self::Ok,
            3 => Self::Cleartext,
            5 => Self::Md5 { salt: *rest.first_chunk::<4>()? },
            10 => {
                let texts = rest.split(|byte| *byte == 0).filter(|text| !text.is_empty());
                let mechanisms = texts.map(|text| String::from_utf8_lossy(text).into_owned());
                Self::Sasl { mechanisms: mechanisms.collect() }
            }
            11 => Self::SaslContinue(body.slice(4..)),
            12 => Self::SaslFinal(body.slice(4..)),
            other => Self::Other(other),
        })
    }
}

/// Name and value of a `ParameterStatus`.
pub(crate) fn parameter(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut texts = body.split(|byte| *byte == 0);
    Some((texts.next()?, texts.next()?))
}

/// `server_version` as `server_version_num`, exact to the major version: `15.18 (Debian)` is 150000.
pub(crate) fn version(text: &[u8]) -> u32 {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    let major = digits
        .fold(0_u32, |sum, digit| sum.saturating_mul(10).saturating_add(u32::from(digit - b'0')));
    major.saturating_mul(10_000)
}

/// Process id and secret of a `BackendKeyData`.
pub(crate) fn key(body: &Bytes) -> Option<(i32, Bytes)> {
    let pid = body.first_chunk::<4>()?;
    Some((i32::from_be_bytes(*pid), body.slice(4..)))
}

/// A row of a simple query, as text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    during: String,
    values: Vec<Option<String>>,
}

impl Row {
    pub(crate) fn parse(during: &str, body: &[u8]) -> Result<Self, SourceError> {
        let broken = || SourceError::unexpected(during, "a row that is cut or not UTF-8");
        let (count, mut rest) = body.split_first_chunk::<2>().ok_or_else(broken)?;
        let mut values = Vec::with_capacity(usize::from(u16::from_be_bytes(*count)));
        for _ in 0..u16::from_be_bytes(*count) {
            let (length, after) = rest.split_first_chunk::<4>().ok_or_else(broken)?;
            let length = i32::from_be_bytes(*length);
            let value = match usize::try_from(length) {
                Ok(length) => {
                    let (value, after) = after.split_at_checked(length).ok_or_else(broken)?;
                    rest = after;
                    let text = str::from_utf8(value).map_err(|_| broken())?;
                    Some(text.to_owned())
                }
                Err(_) => {
                    rest = after;
                    None
                }
            };
            values.push(value);
        }
        Ok(Self { during: during.to_owned(), values })
    }

    /// Column `index`, `None` if it is null or not there.
    pub(crate) fn text(&self, index: usize) -> Option<&str> {
        self.values.get(index)?.as_deref()
    }

    /// Column `index`, which must not be null (S-F3).
    pub(crate) fn required(&self, index: usize) -> Result<&str, SourceError> {
        self.text(index).ok_or_else(|| self.unexpected(index, "null"))
    }

    /// Column `index` as a value, which must not be null.
    pub(crate) fn value<T: FromStr<Err: fmt::Display>>(
        &self,
        index: usize,
    ) -> Result<T, SourceError> {
        let text = self.required(index)?;
        text.parse().map_err(|_| self.unexpected(index, text))
    }

    /// Column `index` as a value.
    pub(crate) fn optional<T: FromStr<Err: fmt::Display>>(
        &self,
        index: usize,
    ) -> Result<Option<T>, SourceError> {
        if self.text(index).is_some() { self.value(index).map(Some) } else { Ok(None) }
    }

    /// Column `index` as a boolean.
    pub(crate) fn flag(&self, index: usize) -> Result<bool, SourceError> {
        match self.required(index)? {
            "t" => Ok(true),
            "f" => Ok(false),
            other => Err(self.unexpected(index, other)),
        }
    }

    fn unexpected(&self, index: usize, found: &str) -> SourceError {
        SourceError::unexpected(&self.during, format!("{found:?} in column {index}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[Option<&str>]) -> Vec<u8> {
        let mut body = (values.len() as u16).to_be_bytes().to_vec();
        for value in values {
            body.extend(value.map_or(-1, |value| value.len() as i32).to_be_bytes());
            body.extend(value.unwrap_or_default().bytes());
        }
        body
    }

    #[test]
    fn values_of_a_row_are_typed_on_demand() {
        let row = Row::parse("q", &row(&[Some("7"), None, Some("t"), Some("")])).unwrap();
        assert_eq!(row.value::<u32>(0).unwrap(), 7);
        assert_eq!(row.optional::<u32>(1).unwrap(), None);
        assert!(row.flag(2).unwrap());
        assert_eq!(row.text(3), Some(""));
        for error in [
            row.required(1).map(drop),
            row.required(4).map(drop),
            row.value::<u32>(2).map(drop),
            row.flag(0).map(drop),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with("unexpected answer during q"), "{error}");
        }
        walferry_coverage::reached("S-F3");
    }

    // A-I3
    #[test]
    fn cut_bodies_are_errors() {
        let whole = row(&[Some("abc"), None, Some("d")]);
        for end in 0..whole.len() {
            assert!(Row::parse("q", &whole[..end]).is_err());
        }
        assert!(Row::parse("q", &[0, 1, 0, 0, 0, 1, 0xFF]).is_err());
        let md5 = Bytes::from_static(&[0, 0, 0, 5, 1, 2, 3, 4]);
        assert_eq!(AuthRequest::parse(&md5), Some(AuthRequest::Md5 { salt: [1, 2, 3, 4] }));
        for end in 0..md5.len() {
            assert_eq!(AuthRequest::parse(&md5.slice(..end)), None);
        }
        walferry_coverage::reached("A-I3");
    }

    #[test]
    fn versions_are_exact_to_the_major_one() {
        let cases = [
            ("14.23", 140_000),
            ("15.18 (Debian 15.18-0)", 150_000),
            ("18beta1", 180_000),
            ("", 0),
        ];
        for (text, number) in cases {
            assert_eq!(version(text.as_bytes()), number);
        }
    }

    #[test]
    fn mechanisms_are_listed() {
        let body = Bytes::from_static(b"\0\0\0\x0ASCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0");
        let mechanisms = vec!["SCRAM-SHA-256-PLUS".to_owned(), "SCRAM-SHA-256".to_owned()];
        assert_eq!(AuthRequest::parse(&body), Some(AuthRequest::Sasl { mechanisms }));
    }
}
