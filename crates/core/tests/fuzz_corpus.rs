//! The fuzz targets on the stable compiler: every file of their corpora goes through the same body.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::fs;
use std::path::PathBuf;

use walferry_core::event::TruncateFlags;
use walferry_core::ids::TableId;
use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::schema::{Relation, RelationColumn, ReplicaIdentity};
use walferry_core::wire::{Cell, Message, OldKind, encode};

#[expect(unreachable_pub, reason = "the file is also a library")]
#[path = "../../../fuzz/src/wire.rs"]
mod bodies;
#[expect(unreachable_pub, reason = "the file is also a library")]
#[path = "../../../fuzz/src/machine/mod.rs"]
mod machine;
#[expect(unreachable_pub, reason = "the file is also a library")]
#[path = "../../../fuzz/src/names.rs"]
mod names;

const T: TableId = TableId(16_384);
const CELLS: [Cell<'static>; 4] =
    [Cell::Text(b"1"), Cell::Null, Cell::Unchanged, Cell::Binary(b"\0\x01")];

fn corpus(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", target].iter().collect()
}

/// Runs `body` on the seeds and on all else that the folder holds. A seed that has no file gets one,
/// and the test fails so that it is committed.
fn replay(target: &str, seeds: &[(&str, Vec<u8>)], body: fn(&[u8])) {
    let folder = corpus(target);
    fs::create_dir_all(&folder).unwrap();
    let mut written = Vec::new();
    for (name, bytes) in seeds {
        let path = folder.join(name);
        if fs::read(&path).ok().as_ref() != Some(bytes) {
            fs::write(&path, bytes).unwrap();
            written.push(path);
        }
    }
    let mut files: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    for file in files {
        eprintln!("{}", file.display());
        body(&fs::read(file).unwrap());
    }
    assert!(written.is_empty(), "commit the seeds just written: {written:?}");
}

fn relation() -> Message<'static> {
    let column =
        |name: &str, key| RelationColumn { key, name: name.to_owned(), type_oid: 25, modifier: -1 };
    Message::Relation(Relation {
        table: T,
        namespace: "public".to_owned(),
        name: "t".to_owned(),
        identity: ReplicaIdentity::Default,
        columns: vec![
            column("id", true),
            column("a", false),
            column("b", false),
            column("c", false),
        ],
    })
}

fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let commit = CommitLsn(Lsn(0x0152_3030));
    let end = Position(Lsn(0x0152_3060));
    let flags = TruncateFlags { cascade: true, restart_identity: true };
    let logical = Message::Logical { transactional: true, lsn: Lsn(9), prefix: "p", content: b"c" };
    let kind = Message::Type { oid: 16_400, namespace: "public", name: "mood" };
    vec![
        ("begin", encode::message(&Message::Begin { commit, time_us: 1, xid: 731 })),
        ("origin", encode::message(&Message::Origin { commit: Lsn(1), name: "up" })),
        ("relation", encode::message(&relation())),
        ("type", encode::message(&kind)),
        ("insert", encode::insert(T, &CELLS)),
        ("update", encode::update(T, None, &CELLS)),
        ("update_key", encode::update(T, Some((OldKind::Key, &CELLS)), &CELLS)),
        ("delete", encode::delete(T, OldKind::Full, &CELLS)),
        ("truncate", encode::message(&Message::Truncate { tables: [T].into(), flags })),
        ("message", encode::message(&logical)),
        ("commit", encode::message(&Message::Commit { commit, end, time_us: 1 })),
    ]
}

#[test]
fn frames() {
    let stream = |messages: &[(&str, Vec<u8>)]| -> Vec<u8> {
        messages.iter().flat_map(|(_, message)| encode::xlog_data(Lsn(1), message)).collect()
    };
    let alive = encode::keepalive(Position(Lsn(7)), 1, true);
    let done = [encode::frame(b'c', b""), encode::frame(b'Z', b"I")].concat();
    let seeds = [
        ("transaction", [vec![40], stream(&messages())].concat()),
        ("keepalive", [vec![9], alive.clone(), alive].concat()),
        ("other_frames", [vec![0], done].concat()),
        ("length_three", vec![0, b'd', 0, 0, 0, 3]),
        ("length_huge", vec![0, b'd', 0x7F, 0xFF, 0xFF, 0xFF]),
    ];
    replay("frames", &seeds, bodies::frames);
}

#[test]
fn pgoutput() {
    replay("pgoutput", &messages(), bodies::pgoutput);
}

#[test]
fn copy_rows() {
    let rows: [&[Option<&[u8]>]; 3] =
        [&[Some(b"1"), None], &[Some(b""), Some(b"\\\t\n")], &[Some(b"2"), Some(b"x")]];
    let block: Vec<u8> = rows.into_iter().flat_map(encode::copy_row).collect();
    let seeds = [
        ("block", [vec![2], block].concat()),
        ("row", b"\x031\tab\t\\N".to_vec()),
        ("escapes", br"abc\b\f\n\r\t\v\\\101\x41".to_vec()),
        ("lone_backslash", br"aab\".to_vec()),
        ("no_column", vec![0]),
    ];
    replay("copy_rows", &seeds, bodies::copy_rows);
}

#[test]
fn tuple() {
    let row = |old, new: Option<&[Cell<'_>]>| [vec![4], encode::row(old, new)].concat();
    let kind = |kind| Some((kind, &CELLS[..]));
    let seeds = [
        ("new", row(None, Some(&CELLS))),
        ("key_and_new", row(kind(OldKind::Key), Some(&CELLS))),
        ("full_and_new", row(kind(OldKind::Full), Some(&CELLS))),
        ("old", row(kind(OldKind::Full), None)),
        ("negative_length", vec![1, b'N', 0, 1, b't', 0xFF, 0xFF, 0xFF, 0xFF]),
    ];
    replay("tuple", &seeds, bodies::tuple);
}

#[test]
fn ddl() {
    let column = |number: i16, name: &str| {
        format!(r#"{{"number":{number},"name":"{name}","type":23,"modifier":-1,"not_null":false}}"#)
    };
    let message = |identity: &str, columns: &[String]| {
        format!(
            r#"{{"command":"ALTER TABLE","schema":"public","table":"t","oid":16384,"identity":{identity},"columns":[{}]}}"#,
            columns.join(",")
        )
        .into_bytes()
    };
    let key = r#"{"replica_identity":"d","key_columns":[1]}"#;
    let full = r#"{"replica_identity":"f"}"#;
    let theirs = br#"{"command_tag":"ALTER TABLE","nspname":"public","relname":"t","oid":16384,
        "identity":{"relreplident":"i","primary_key_attnums":[1],"replica_identity_index_attnums":[2]},
        "columns":[{"attname":"id","attnum":1,"atttypid":23,"atttypmod":-1,"attnotnull":true},
        {"attname":"a","attnum":2,"atttypid":25,"atttypmod":-1,"attnotnull":true,"default_expression":"''"}]}"#;
    let seeds = [
        ("ours", message(key, &[column(1, "id"), column(2, "a")])),
        ("theirs", theirs.to_vec()),
        ("unsorted", message(full, &[column(9, "z"), column(2, "a")])),
        ("twice", message(key, &[column(1, "id"), column(1, "a")])),
        ("no_columns", message(full, &[])),
        ("cut", message(full, &[column(1, "id")])[..60].to_vec()),
        ("deep", vec![b'['; 200]),
    ];
    replay("ddl", &seeds, bodies::ddl);
}

#[test]
fn names() {
    let seeds = [
        ("slot", b"walferry\nwalferry_0123456789abcdef01234567".to_vec()),
        ("other_prefix", b"a\na_b_0123456789abcdef01234567".to_vec()),
        ("upper_case", b"a\na_0123456789ABCDEF01234567".to_vec()),
        ("position", b"0/1523030\n16/B374D848".to_vec()),
        ("padded_position", b"00000000/0000000A".to_vec()),
        ("long_position", b"123456789/0".to_vec()),
    ];
    replay("names", &seeds, names::names);
}

/// A game of the pipeline from a text seed: the same on every machine.
fn game(seed: u8, length: usize) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[1]
    };
    (0..length).map(|_| byte()).collect()
}

#[test]
fn pipeline() {
    // The oldest operation succeeds, again and again: the whole start and the copies.
    let start = [vec![0; 8], [0, 0, 0].repeat(120)].concat();
    let seeds = [
        ("start", start),
        ("game_1", game(1, 1_500)),
        ("game_2", game(2, 1_500)),
        ("game_3", game(3, 1_500)),
        ("game_4", game(4, 1_500)),
    ];
    replay("pipeline", &seeds, machine::pipeline);
}
