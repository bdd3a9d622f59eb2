//! The byte form of what is stored (R-04): a header line with kind, format, length and SHA-256 of the
//! body, then the body, a line of JSON. The line can be read by people: `tail -n +2 record | jq`.
//!
//! Knows nothing of files, but for the path that its errors name.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use walferry_core::ids::TableId;
use walferry_core::record::{FORMAT, Record, RecordError, TableEntry, Tombstone};

use crate::error::StoreError;

/// Most bytes of a body: 65,536 tables with schemas of 4 KiB (R-04).
pub(crate) const BODY_BYTES_MAX: u64 = 256 << 20;
/// Longer than any header line: 15 + 10 + 20 + 64 characters with their separators.
pub(crate) const HEADER_BYTES_MAX: usize = 128;

/// A kind of body, with the magic word that opens its header.
pub(crate) trait Body: Serialize + DeserializeOwned {
    const MAGIC: &'static str;
}

/// The record as a whole.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Snapshot {
    /// Number of the save; never repeats in a place.
    pub(crate) sequence: u64,
    pub(crate) record: Record,
}

impl Body for Snapshot {
    const MAGIC: &'static str = "walferry-record";
}

/// What one save changed in the record before it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    /// Checksum of the snapshot that the journal continues.
    pub(crate) base: String,
    /// Number of the save; one more than that of the save before.
    pub(crate) sequence: u64,
    /// Everything but tables and tombstones, which are empty here.
    pub(crate) head: Record,
    /// Tables that are new or differ; `None` for those that are gone.
    pub(crate) tables: BTreeMap<TableId, Option<Arc<TableEntry>>>,
    /// Tombstones that are new or differ; `None` for those that are gone.
    pub(crate) tombstones: BTreeMap<TableId, Option<Tombstone>>,
}

impl Body for Change {
    const MAGIC: &'static str = "walferry-change";
}

/// Bytes of a body with its header, and the checksum as text.
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    pub(crate) sum: String,
}

/// A decoded body.
#[derive(Debug)]
pub(crate) struct Decoded<T> {
    pub(crate) body: T,
    pub(crate) sum: String,
    /// Bytes of header and body.
    pub(crate) bytes: usize,
}

/// Encodes `body`. The caller has validated it.
pub(crate) fn encode<T: Body>(body: &T, path: &Path) -> Result<Encoded, StoreError> {
    let mut bytes = vec![0; HEADER_BYTES_MAX];
    serde_json::to_writer(&mut bytes, body)
        .map_err(|error| StoreError::io("encode", path, error.into()))?;
    bytes.push(b'\n');
    let length = bytes.len() - HEADER_BYTES_MAX;
    check_length(length as u64, path)?;
    let sum = hex::encode(Sha256::digest(&bytes[HEADER_BYTES_MAX..]));
    let header = header::<T>(FORMAT, length, &sum);
    bytes.splice(..HEADER_BYTES_MAX, header.into_bytes());
    Ok(Encoded { bytes, sum })
}

/// Decodes the body that `bytes` starts with; more may follow.
pub(crate) fn decode_first<T: Body>(bytes: &[u8], path: &Path) -> Result<Decoded<T>, StoreError> {
    let head = &bytes[..bytes.len().min(HEADER_BYTES_MAX)];
    let line = head.iter().position(|&b| b == b'\n').map(|end| &head[..end]);
    let line = line.and_then(|line| core::str::from_utf8(line).ok()).unwrap_or_default();
    let mut words = line.split(' ');
    if words.next() != Some(T::MAGIC) {
        return Err(corrupt(path, "first word", T::MAGIC, excerpt(bytes)));
    }
    let format = words.next().and_then(|w| w.parse::<u32>().ok()).unwrap_or_default();
    if format > FORMAT {
        return Err(StoreError::TooNew { path: path.into(), found: format, known: FORMAT });
    }
    let length = words.next().and_then(|w| w.parse::<usize>().ok()).unwrap_or_default();
    let start = line.len() + 1;
    let body = &bytes[start..];
    if length as u64 > BODY_BYTES_MAX || length > body.len() {
        let found = format!("{} bytes", body.len());
        return Err(corrupt(path, "body", &format!("{length} bytes"), found));
    }
    let body = &body[..length];
    let sum = hex::encode(Sha256::digest(body));
    // The whole line is compared, so that no second spelling of a number or a sum passes.
    let expected = header::<T>(FORMAT, length, &sum);
    if expected.as_bytes() != &bytes[..start] {
        return Err(corrupt(path, "header", expected.trim_end(), format!("{line:?}")));
    }
    let body = serde_json::from_slice(body)
        .map_err(|error| corrupt(path, "body", "a record of this format", error.to_string()))?;
    Ok(Decoded { body, sum, bytes: start + length })
}

/// Decodes `bytes`, which must be one body and nothing else.
pub(crate) fn decode<T: Body>(bytes: &[u8], path: &Path) -> Result<Decoded<T>, StoreError> {
    let decoded = decode_first(bytes, path)?;
    if decoded.bytes != bytes.len() {
        let expected = format!("{} bytes", decoded.bytes);
        return Err(corrupt(path, "file", &expected, format!("{} bytes", bytes.len())));
    }
    Ok(decoded)
}

/// Refuses a length that no record may have, before anything is read or written.
pub(crate) fn check_length(bytes: u64, path: &Path) -> Result<(), StoreError> {
    if bytes <= BODY_BYTES_MAX {
        return Ok(());
    }
    Err(StoreError::TooLarge { path: path.into(), bytes, bytes_max: BODY_BYTES_MAX })
}

/// Checks R-05, naming the file.
pub(crate) fn validate(record: &Record, path: &Path) -> Result<(), StoreError> {
    record.validate().map_err(|error| match error {
        RecordError::TooNew { found, known } => {
            StoreError::TooNew { path: path.into(), found, known }
        }
        RecordError::Invalid(field) => StoreError::Invalid { path: path.into(), field },
    })
}

pub(crate) fn corrupt(
    path: &Path,
    what: &'static str,
    expected: &str,
    found: String,
) -> StoreError {
    StoreError::Corrupt { path: path.into(), what, expected: expected.to_owned(), found }
}

fn header<T: Body>(format: u32, length: usize, sum: &str) -> String {
    format!("{} {format} {length} {sum}\n", T::MAGIC)
}

/// Any body with the header that makes it a whole file.
#[cfg(any(test, fuzzing))]
pub(crate) fn framed<T: Body>(body: &[u8]) -> Vec<u8> {
    let sum = hex::encode(Sha256::digest(body));
    [header::<T>(FORMAT, body.len(), &sum).as_bytes(), body].concat()
}

fn excerpt(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing (the file is empty)".to_owned();
    }
    format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(24)]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{arbitrary_record, record, tables};

    fn path() -> &'static Path {
        Path::new("record")
    }

    fn encoded(record: Record) -> Vec<u8> {
        encode(&Snapshot { sequence: 7, record }, path()).unwrap().bytes
    }

    // R-04
    #[test]
    fn the_form_is_a_header_line_and_a_line_of_json() {
        let text = String::from_utf8(encoded(record(1, 0x1_0000_0020, tables(0)))).unwrap();
        let (header, body) = text.split_once('\n').unwrap();
        assert!(header.starts_with(&format!("walferry-record 1 {} ", body.len())), "{header}");
        assert!(body.contains(r#""checkpoint":"1/20""#) && body.ends_with("}\n"), "{body}");
    }

    // R-I1, R-F6
    #[test]
    fn every_changed_byte_every_cut_and_every_addition_is_rejected() {
        let bytes = encoded(record(1, 20, tables(1)));
        assert!(decode::<Snapshot>(&bytes, path()).is_ok());
        for index in 0..bytes.len() {
            for change in [1, 0x20, 0x80, 0xFF] {
                let mut changed = bytes.clone();
                changed[index] ^= change;
                assert!(decode::<Snapshot>(&changed, path()).is_err(), "byte {index} ^ {change}");
            }
            assert!(decode::<Snapshot>(&bytes[..index], path()).is_err(), "cut at {index}");
        }
        for byte in [0, b'\n', b' ', b'}'] {
            let mut longer = bytes.clone();
            longer.push(byte);
            assert!(decode::<Snapshot>(&longer, path()).is_err(), "{byte} added");
        }
        walferry_coverage::reached("R-I1");
        walferry_coverage::reached("R-F6");
    }

    // R-07: the format decides before anything else is looked at
    #[test]
    fn a_newer_format_is_named() {
        let newer = b"walferry-record 2 whatever a newer one says\n";
        let error = decode::<Snapshot>(newer, path()).unwrap_err();
        assert!(matches!(error, StoreError::TooNew { found: 2, known: 1, .. }), "{error}");
    }

    #[test]
    fn errors_name_the_file_and_both_values() {
        let bytes = encoded(record(1, 20, tables(0)));
        let short = decode::<Snapshot>(&bytes[..bytes.len() - 1], path()).unwrap_err();
        let expected = bytes.len() - bytes.iter().position(|&b| b == b'\n').unwrap() - 1;
        assert_eq!(
            short.to_string(),
            format!("record is damaged: body is {} bytes, expected {expected} bytes", expected - 1)
        );
        let empty = decode::<Snapshot>(b"", path()).unwrap_err();
        assert_eq!(
            empty.to_string(),
            "record is damaged: first word is nothing (the file is empty), expected walferry-record"
        );
        assert!(matches!(
            check_length(BODY_BYTES_MAX + 1, path()),
            Err(StoreError::TooLarge { .. })
        ));
        assert!(check_length(BODY_BYTES_MAX, path()).is_ok());
    }

    // R-05
    #[test]
    fn a_field_that_is_not_known_is_refused() {
        let body = "{\"sequence\":1,\"colour\":2}\n";
        let sum = hex::encode(Sha256::digest(body));
        let bytes = format!("walferry-record 1 {} {sum}\n{body}", body.len());
        let error = decode::<Snapshot>(bytes.as_bytes(), path()).unwrap_err().to_string();
        assert!(error.contains("unknown field `colour`"), "{error}");
    }

    proptest! {
        // R-I1
        #[test]
        fn decode_inverts_encode(record in arbitrary_record()) {
            record.validate().unwrap();
            let bytes = encoded(record.clone());
            let decoded = decode::<Snapshot>(&bytes, path()).unwrap();
            prop_assert_eq!(decoded.body, Snapshot { sequence: 7, record });
            walferry_coverage::reached("R-I1");
        }

        // R-I1
        #[test]
        fn no_damage_passes(
            record in arbitrary_record(),
            place: prop::sample::Index,
            change in 1..=255_u8,
            rest in prop::collection::vec(any::<u8>(), 1..20),
        ) {
            let bytes = encoded(record);
            let at = place.index(bytes.len());
            let mut changed = bytes.clone();
            changed[at] ^= change;
            prop_assert!(decode::<Snapshot>(&changed, path()).is_err());
            prop_assert!(decode::<Snapshot>(&bytes[..at], path()).is_err());
            let longer = [bytes.as_slice(), rest.as_slice()].concat();
            prop_assert!(decode::<Snapshot>(&longer, path()).is_err());
            walferry_coverage::reached("R-I1");
        }

        #[test]
        fn any_bytes_are_an_error_and_nothing_worse(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode::<Snapshot>(&bytes, path()).is_err());
        }
    }
}
