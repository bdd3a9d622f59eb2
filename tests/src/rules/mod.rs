//! Whether the tests reached every invariant and every fault point of `docs/spec.md`.
//!
//! Owns the comparison of three texts: the specification, the counts that the test processes left in
//! the directory of `WALFERRY_COVERAGE_DIR`, and the list of what is not covered yet. That list can
//! only shrink: it names its own length, and an entry that is reached after all is an error.

pub mod spec;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use spec::Id;

/// The specification.
pub const SPEC: &str = include_str!("../../../docs/spec.md");
/// What no test reaches, with the reasons.
pub const NOT_COVERED: &str = include_str!("../../not_covered.txt");

/// How many of the smallest counts a report shows.
const SHOWN: usize = 20;

/// How often each identifier was reached, as the suites wrote it.
pub type Counts = BTreeMap<String, u64>;

/// The outcome of a comparison.
#[derive(Debug)]
pub struct Report {
    counts: Vec<(u64, Id)>,
    complaints: Vec<String>,
}

impl Report {
    /// What is wrong; empty if everything is covered or excused.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (zero, some): (Vec<_>, Vec<_>) = self.counts.iter().partition(|(count, _)| *count == 0);
        writeln!(f, "{} of {} reached; not: {}", some.len(), self.counts.len(), Words(&zero))?;
        writeln!(f, "smallest counts:")?;
        for (count, id) in some.iter().take(SHOWN) {
            writeln!(f, "  {id:<6} {count}")?;
        }
        for complaint in &self.complaints {
            writeln!(f, "WRONG: {complaint}")?;
        }
        Ok(())
    }
}

struct Words<'a>(&'a [&'a (u64, Id)]);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (number, (_, id)) in self.0.iter().enumerate() {
            write!(f, "{}{id}", if number == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// Sums the files of a directory.
///
/// # Errors
/// A file that cannot be read or holds something else than lines `ID count`.
pub fn sum(directory: &Path) -> io::Result<Counts> {
    let mut counts = Counts::new();
    for file in fs::read_dir(directory)? {
        let path = file?.path();
        for line in fs::read_to_string(&path)?.lines() {
            let parsed =
                line.split_once(' ').and_then(|(id, n)| Some((id, n.parse::<u64>().ok()?)));
            let Some((id, count)) = parsed else {
                let words = format!("{}: not a count: {line:?}", path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, words));
            };
            *counts.entry(id.to_owned()).or_default() += count;
        }
    }
    Ok(counts)
}

/// The identifiers that the specification defines, as text.
#[must_use]
pub fn identifiers(spec: &str) -> Vec<String> {
    let ids = spec::definitions(spec).unwrap_or_default();
    ids.iter().map(Id::to_string).collect()
}

/// Every identifier with its count, the smallest first.
#[must_use]
pub fn table(spec: &str, counts: &Counts) -> String {
    let lines = ranked(spec::definitions(spec).unwrap_or_default(), counts);
    let zeros: Vec<_> = lines.iter().filter(|(count, _)| *count == 0).collect();
    let mut text = format!("not reached by these games: {}", Words(&zeros));
    for (count, id) in lines.iter().skip(zeros.len()) {
        text += &format!("\n  {id:<6} {count}");
    }
    text
}

/// Compares what was reached with the specification and with the list of exceptions.
#[must_use]
pub fn compare(spec: &str, not_covered: &str, counts: &Counts) -> Report {
    let mut complaints = Vec::new();
    let ids = spec::definitions(spec).unwrap_or_else(|wrong| {
        complaints.extend(wrong);
        BTreeSet::new()
    });
    let excused = read_exceptions(not_covered, &mut complaints);
    for id in counts.keys() {
        // A rule that is no invariant may be counted, too; it is written in bold.
        let rule = spec.contains(&format!("**{id}**"));
        if !rule && !Id::parse(id).is_some_and(|id| ids.contains(&id)) {
            complaints
                .push(format!("a test reports {id}, which the specification does not define"));
        }
    }
    for id in &excused {
        if !ids.contains(id) {
            complaints.push(format!("{id} is listed as not covered and does not exist"));
        }
    }
    let ranked = ranked(ids, counts);
    for (count, id) in &ranked {
        match (*count > 0, excused.contains(id)) {
            (true, false) | (false, true) => (),
            (true, true) => {
                complaints.push(format!("{id} is listed as not covered and is reached"));
            }
            (false, false) => complaints.push(format!("{id} is reached by no test")),
        }
    }
    Report { counts: ranked, complaints }
}

/// The identifiers with their counts, the smallest first.
fn ranked(ids: BTreeSet<Id>, counts: &Counts) -> Vec<(u64, Id)> {
    let count = |id: Id| (counts.get(&id.to_string()).copied().unwrap_or(0), id);
    let mut ranked: Vec<_> = ids.into_iter().map(count).collect();
    ranked.sort();
    ranked
}

/// Reads `at most N` and the lines `ID reason` behind it.
fn read_exceptions(text: &str, complaints: &mut Vec<String>) -> BTreeSet<Id> {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let most = first.strip_prefix("at most ").and_then(|number| number.parse::<usize>().ok());
    let mut excused = BTreeSet::new();
    let mut count = 0;
    for line in lines {
        count += 1;
        let (id, reason) = line.split_once(' ').unwrap_or((line, ""));
        match Id::parse(id) {
            Some(_) if reason.trim().is_empty() => complaints.push(format!("{id} has no reason")),
            Some(id) if excused.contains(&id) => complaints.push(format!("{id} is listed twice")),
            Some(id) => {
                excused.insert(id);
            }
            None => complaints.push(format!("not an exception: {line:?}")),
        }
    }
    match most {
        None => complaints.push(format!("the first line is not \"at most N\": {first:?}")),
        Some(most) if most < count => {
            complaints.push(format!("{count} exceptions, but at most {most} are allowed"));
        }
        Some(most) if most > count => {
            complaints.push(format!("{count} exceptions: lower \"at most {most}\" to that"));
        }
        Some(_) => (),
    }
    excused
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = "**X-I1** one **X-I2** two **X-F1** three";

    fn complaints(not_covered: &str, reached: &[&str]) -> Vec<String> {
        let counts = reached.iter().map(|&id| (id.to_owned(), 1)).collect();
        compare(SPEC, not_covered, &counts).complaints
    }

    #[test]
    fn reached_or_excused_is_right() {
        let none = Vec::<String>::new();
        assert_eq!(complaints("at most 0\n", &["X-I1", "X-I2", "X-F1"]), none);
        assert_eq!(complaints("at most 1\nX-F1 needs a server\n", &["X-I1", "X-I2"]), none);
    }

    #[test]
    fn each_thing_that_can_be_wrong_is_named() {
        let all = ["X-I1", "X-I2", "X-F1"];
        let cases: [(&str, &[&str], &str); 9] = [
            ("at most 0\n", &["X-I1", "X-F1"], "X-I2 is reached by no test"),
            ("at most 1\nX-I1 late\n", &all, "X-I1 is listed as not covered and is reached"),
            ("at most 1\nX-I9 gone\n", &all, "X-I9 is listed as not covered and does not exist"),
            (
                "at most 0\nX-I2 late\n",
                &["X-I1", "X-F1"],
                "1 exceptions, but at most 0 are allowed",
            ),
            ("at most 1\n", &all, "0 exceptions: lower \"at most 1\" to that"),
            (
                "X-I2 late\n",
                &["X-I1", "X-F1", "X-I2"],
                "the first line is not \"at most N\": \"X-I2 late\"",
            ),
            ("at most 1\nX-I2\n", &["X-I1", "X-F1", "X-I2"], "X-I2 has no reason"),
            ("at most 2\nX-I2 a\nX-I2 b\n", &["X-I1", "X-F1"], "X-I2 is listed twice"),
            (
                "at most 0\n",
                &["X-I1", "X-I2", "X-F1", "X-I7"],
                "a test reports X-I7, which the specification does not define",
            ),
        ];
        for (not_covered, reached, expected) in cases {
            assert_eq!(complaints(not_covered, reached), [expected]);
        }
    }

    #[test]
    fn files_add_up() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("1"), "X-I1 2\nX-F1 1\n").unwrap();
        fs::write(directory.path().join("2"), "X-I1 3\nX-I1 1\n").unwrap();
        let counts = sum(directory.path()).unwrap();
        assert_eq!(counts, [("X-F1".to_owned(), 1), ("X-I1".to_owned(), 6)].into());
        fs::write(directory.path().join("3"), "X-I1\n").unwrap();
        assert!(sum(directory.path()).is_err());
    }

    #[test]
    fn a_report_shows_zeros_first() {
        let counts = [("X-I1".to_owned(), 7), ("X-F1".to_owned(), 3)].into();
        let report = compare(SPEC, "at most 1\nX-I2 late\n", &counts).to_string();
        assert_eq!(report, "2 of 3 reached; not: X-I2\nsmallest counts:\n  X-F1   3\n  X-I1   7\n");
    }
}
