//! Which rules a simulation has really exercised: each counts when its premise held.
//!
//! Owns the counts of this thread. Knows nothing of what the identifiers mean.

use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    static COUNTS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Counts that the premise of a rule, or a fault point, was reached.
pub fn reached(id: &'static str) {
    COUNTS.with_borrow_mut(|counts| *counts.entry(id).or_default() += 1);
}

/// How often each was reached on this thread.
#[must_use]
pub fn counts() -> BTreeMap<&'static str, u64> {
    COUNTS.with_borrow(Clone::clone)
}
