//! The last test of `./dev test`: nothing else runs beside or behind it (.config/nextest.toml).

use std::path::Path;

use walferry_tests::{coverage, rules};

#[test]
fn every_invariant_and_fault_point_is_reached_or_excused() {
    let Some(directory) = std::env::var_os(coverage::DIRECTORY) else {
        panic!("{} names no directory: ./dev test sets it", coverage::DIRECTORY);
    };
    let counts = rules::sum(Path::new(&directory)).unwrap();
    let report = rules::compare(rules::SPEC, rules::NOT_COVERED, &counts);
    println!("{report}");
    let complaints = report.complaints();
    assert!(complaints.is_empty(), "{} complaints, see above", complaints.len());
}
