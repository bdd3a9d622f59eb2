//! Which invariants (`X-I1`) and fault points (`K-F6`) of `docs/spec.md` the tests really reached.
//!
//! A test calls [`reached`] behind the assertion that judges the invariant, or behind the check that
//! follows the fault. Counts are kept by thread, so that a simulation may call it in every step; a
//! thread that ends adds its counts to those of the process and, if `WALFERRY_COVERAGE_DIR` names a
//! directory, appends them to a file there, so that several processes add up.
//!
//! Knows nothing of the specification: `walferry-rules` compares.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::hash::{BuildHasherDefault, Hasher};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The variable that names the directory for the counts of each process.
pub const DIRECTORY: &str = "WALFERRY_COVERAGE_DIR";

static ENDED_THREADS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

thread_local! {
    static THREAD: RefCell<Counts> = RefCell::default();
}

/// Counts one time that the premise of an invariant held and it was judged, or that a fault point
/// was hit and its outcome was judged.
pub fn reached(id: &'static str) {
    // While the thread's values are being dropped there is nothing left to count into.
    let _gone = THREAD.try_with(|thread| thread.borrow_mut().add(id));
}

/// Hands the counts of the calling thread over: to the process, and to its file.
///
/// Every thread does it when it ends. Who calls [`std::process::exit`] from another thread than the
/// main one does it before.
pub fn flush() {
    let _gone = THREAD.try_with(|thread| thread.borrow_mut().flush());
}

/// The counts of this process: of the calling thread and of all threads that have ended.
#[must_use]
pub fn counts() -> BTreeMap<&'static str, u64> {
    flush();
    ENDED_THREADS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Where a literal lies in memory: comparing that is much cheaper than comparing text. Literals
/// with the same text in two places are added up when the thread ends.
type Place = (usize, usize);

#[derive(Default)]
struct Counts(HashMap<Place, (&'static str, u64), BuildHasherDefault<PlaceHasher>>);

impl Counts {
    fn add(&mut self, id: &'static str) {
        let place = (id.as_ptr().addr(), id.len());
        self.0.entry(place).or_insert((id, 0)).1 += 1;
    }

    fn flush(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let mut lines = BTreeMap::<&'static str, u64>::new();
        for (id, count) in self.0.drain().map(|(_, entry)| entry) {
            *lines.entry(id).or_default() += count;
        }
        let mut process = ENDED_THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        for (&id, count) in &lines {
            *process.entry(id).or_default() += count;
        }
        if let Some(directory) = std::env::var_os(DIRECTORY) {
            append(Path::new(&directory), &lines);
        }
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Adds lines `ID count` to the file of this process.
///
/// # Panics
/// If that is not possible: lost counts would look like rules that nothing reaches.
fn append(directory: &Path, lines: &BTreeMap<&'static str, u64>) {
    let mut text = String::new();
    for (id, count) in lines {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{id} {count}");
    }
    let path = directory.join(std::process::id().to_string());
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    assert!(written.is_ok(), "{DIRECTORY}: cannot write {}: {written:?}", path.display());
}

/// Multiplies: addresses of literals differ in their low bits, the table looks at the high ones too.
#[derive(Default)]
struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_usize(byte.into());
        }
    }

    fn write_usize(&mut self, value: usize) {
        self.0 = (self.0.rotate_left(5) ^ value as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_add_up_and_equal_texts_are_one() {
        let twice = || {
            reached("T-I1");
            // The same text at another place.
            reached(Box::leak("T-I1".to_owned().into_boxed_str()));
            reached("T-F1");
        };
        let threads = [thread::spawn(twice), thread::spawn(twice)];
        for ended in threads {
            ended.join().unwrap();
        }
        twice();
        let counts = counts();
        assert_eq!((counts["T-I1"], counts["T-F1"]), (6, 3));
    }

    #[test]
    fn lines_are_appended() {
        let directory = std::env::temp_dir().join(format!("coverage-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        append(&directory, &BTreeMap::from([("T-I2", 2), ("T-F2", 1)]));
        append(&directory, &BTreeMap::from([("T-I2", 3)]));
        let path = directory.join(std::process::id().to_string());
        let text = std::fs::read_to_string(path).unwrap();
        std::fs::remove_dir_all(directory).unwrap();
        assert_eq!(text, "T-F2 1\nT-I2 2\nT-I2 3\n");
    }
}
