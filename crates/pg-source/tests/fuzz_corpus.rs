//! The fuzz target `connection` on the stable compiler: its corpus goes through the same body.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

#[expect(unreachable_pub, reason = "the file is also a library")]
#[path = "../../../fuzz/src/connection.rs"]
mod body;

#[test]
fn connection() {
    let folder: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus/connection"].iter().collect();
    let mut files: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{}", folder.display());
    for file in files {
        println!("{}", file.display());
        body::connection(&fs::read(file).unwrap());
    }
}
