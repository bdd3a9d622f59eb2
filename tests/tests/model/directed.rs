//! Where each fault point is reached by a test that is about it, not only by luck of the dice: a row
//! of the scenes (`exhaustive`), or a file that names it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use walferry_tests::rules::{NOT_COVERED, SPEC, identifiers};

use super::exhaustive::SCENES;

/// Files with directed tests, and the fault points that they are about.
const DIRECTED: &[(&str, &str)] = &[
    ("crates/core/src/main_budget.rs", "Y-F6"),
    ("crates/core/src/names.rs", "N-F2 N-F3"),
    ("crates/core/src/pipeline/tests/fence.rs", "W-F8 W-F9"),
    ("crates/core/src/pipeline/tests/listing.rs", "T-F2 T-F4 T-F6"),
    ("crates/core/src/pipeline/tests/quarantine.rs", "X-F9"),
    ("crates/core/src/pipeline/tests/requests.rs", "Y-F4"),
    ("crates/core/src/schema_plan.rs", "D-F8 D-F10"),
    ("crates/core/src/schema_sequences.rs", "D-F6 D-F7"),
    ("crates/core/tests/copies/readers.rs", "K-F11"),
    ("crates/core/tests/copies/slots.rs", "K-F13 K-F16"),
    ("crates/core/tests/schema.rs", "D-F9"),
    ("crates/pg-source/src/message.rs", "S-F3"),
    ("crates/pg-source/tests/postgres/stream.rs", "A-F6"),
    ("crates/runtime/src/builder.rs", "N-F1"),
    ("crates/runtime/src/ops.rs", "L-F3"),
    ("crates/store/src/file/tests.rs", "R-F1 R-F2 R-F3 R-F4 R-F5 R-F6 R-F7 R-F8 V-F5"),
    ("crates/store/tests/two_processes.rs", "V-F2 V-F4"),
    ("tests/tests/model/games.rs", "DS-F4"),
    ("tests/tests/transcripts/begin.rs", "A-F3 M-F1 M-F2 M-F4 T-F3 T-F5 T-F7 T-F8 U-F8 U-F9 U-F13"),
    ("tests/tests/transcripts/failures.rs", "K-F14"),
    ("tests/tests/transcripts/identity.rs", "S-F1 S-F2"),
    ("tests/tests/transcripts/idle.rs", "A-F4"),
    ("tests/tests/transcripts/memory.rs", "A-F7 B-F3 B-F4 B-F5 K-F15 W-F10"),
    ("tests/tests/transcripts/promotion.rs", "P-F5 P-F6 P-F7 P-F8 P-F9 P-F10 P-F11 P-F12"),
    ("tests/tests/transcripts/recreation.rs", "A-F9 I-F6 I-F7 I-F8 I-F9 I-F10 M-F3 U-F12"),
    ("tests/tests/transcripts/retries.rs", "Y-F2"),
    ("tests/tests/transcripts/stream.rs", "A-F8 H-F3 H-F4 W-F2"),
    ("tests/tests/transcripts/copies.rs", "Y-F5"),
];

fn known() -> BTreeMap<&'static str, &'static str> {
    let rows = DIRECTED.iter().flat_map(|(file, ids)| ids.split(' ').map(move |id| (id, *file)));
    let scenes = SCENES.iter().flat_map(|scene| scene.reaches.iter().map(|id| (*id, scene.name)));
    rows.chain(scenes).collect()
}

// O: each crash point and each fault point has a directed test
#[test]
fn every_fault_point_has_a_test_that_is_about_it() {
    let known = known();
    let excused: BTreeSet<_> =
        NOT_COVERED.lines().filter_map(|line| line.split(' ').next()).collect();
    let faults = identifiers(SPEC).into_iter().filter(|id| id.contains("-F"));
    let missing: Vec<_> = faults
        .filter(|id| !known.contains_key(id.as_str()) && !excused.contains(id.as_str()))
        .collect();
    assert!(missing.is_empty(), "no directed test is about {missing:?}");
    let all: BTreeSet<_> = identifiers(SPEC).into_iter().collect();
    let unknown: Vec<_> = known.keys().filter(|id| !all.contains(**id)).collect();
    assert!(unknown.is_empty(), "{unknown:?} stand in the table and not in the specification");
}

#[test]
fn every_file_of_the_table_names_its_fault_points() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(""));
    for (file, ids) in DIRECTED {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        for id in ids.split(' ') {
            assert!(text.contains(&format!("\"{id}\"")), "{file} does not report {id}");
        }
    }
}
