//! The body of the fuzz target `record`. An ordinary test replays its corpus.

use std::path::Path;

use crate::codec::{self, Change, Snapshot};

/// Any bytes: as a file, and as the body of a file whose header is right.
///
/// # Panics
/// If bytes are accepted that do not encode to themselves (R-I1).
pub fn record(data: &[u8]) {
    let path = Path::new("record");
    drop(codec::decode::<Snapshot>(data, path));
    drop(codec::decode_first::<Change>(data, path));
    let Ok(decoded) = codec::decode::<Snapshot>(&codec::framed::<Snapshot>(data), path) else {
        return;
    };
    let valid = codec::validate(&decoded.body.record, path);
    let again = codec::encode(&decoded.body, path).map(|encoded| encoded.bytes);
    let Ok(again) = again else { panic!("what was decoded cannot be encoded: {decoded:?}") };
    match codec::decode::<Snapshot>(&again, path) {
        Ok(second) => {
            assert_eq!(second.body, decoded.body, "R-I1");
            assert_eq!(codec::validate(&second.body.record, path).is_ok(), valid.is_ok());
        }
        Err(error) => panic!("what was encoded cannot be decoded: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::testing::{record as value, tables};

    #[test]
    fn the_corpus_passes() {
        let folder: PathBuf =
            [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus/record"].iter().collect();
        fs::create_dir_all(&folder).unwrap();
        let snapshot = Snapshot { sequence: 7, record: value(1, 20, tables(2)) };
        let encoded = codec::encode(&snapshot, Path::new("record")).unwrap().bytes;
        let body = encoded.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        let seeds = [
            ("body", encoded[body..].to_vec()),
            ("file", encoded.clone()),
            ("empty_body", b"{}\n".to_vec()),
        ];
        let mut written = Vec::new();
        for (name, bytes) in seeds {
            let path = folder.join(name);
            if fs::read(&path).ok().as_ref() != Some(&bytes) {
                fs::write(&path, bytes).unwrap();
                written.push(path);
            }
        }
        for file in fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            println!("{}", path.display());
            record(&fs::read(path).unwrap());
        }
        assert!(written.is_empty(), "commit the seeds just written: {written:?}");
    }
}
