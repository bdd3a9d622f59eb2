//! What every store promises (V-03), as a trait; the common suite that proves it (V-I4).

use core::fmt;

use walferry_core::effect::Changed;
use walferry_core::record::Record;

use crate::error::StoreError;

/// A place that keeps exactly one record.
pub trait Store {
    /// The place while it is owned.
    type Owned: Owned;

    /// Takes the place, creating it if needed. Never waits for another owner.
    ///
    /// # Errors
    /// `Locked` if another owner, in any process, has it; otherwise what is wrong with the place.
    fn acquire(&self, token: OwnerToken) -> Result<Self::Owned, StoreError>;

    /// Reads one whole saved value without owning the place; `None` if there is none.
    ///
    /// # Errors
    /// The place cannot be read, or what it holds is not a record of this version.
    fn observe(&self) -> Result<Option<Record>, StoreError>;
}

/// An owned place. Dropping it gives it up as well, as the end of the process does.
pub trait Owned {
    /// The last saved record; `None` if there is none.
    ///
    /// # Errors
    /// What is stored cannot be read, is damaged, invalid, or of a newer walferry.
    fn load(&mut self) -> Result<Option<Record>, StoreError>;

    /// Replaces the record; returns once it is on stable storage. After an error the result is
    /// unknown and every later call fails.
    ///
    /// # Errors
    /// `Fenced` if the place belongs to a newer owner, `Invalid` for a record that contradicts
    /// itself, otherwise what the storage said.
    fn save(&mut self, record: &Record, changed: &Changed) -> Result<(), StoreError>;

    /// Whether ownership still holds (V-09).
    ///
    /// # Errors
    /// `Fenced` if it does not.
    fn check(&mut self) -> Result<(), StoreError>;

    /// Gives the place up for the next owner.
    ///
    /// # Errors
    /// What the storage said; the place is given up all the same.
    fn release(self) -> Result<(), StoreError>;
}

/// Who owns the place: random bytes, made for each acquisition (V-03).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OwnerToken(pub [u8; 16]);

impl fmt::Display for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The suite. Each store calls it with a way to open the same, at first empty, place again.
#[cfg(test)]
pub(crate) mod suite {
    use std::sync::Arc;

    use walferry_core::ids::Epoch;
    use walferry_core::lsn::{Lsn, Position};

    use super::*;
    use crate::testing::{record, tables};

    const ALL: Changed = Changed { head: true, checkpoint: true, tables: true };
    const CHECKPOINT: Changed = Changed { head: false, checkpoint: true, tables: false };
    const ONE: OwnerToken = OwnerToken([1; 16]);
    const TWO: OwnerToken = OwnerToken([2; 16]);

    pub(crate) fn run<S: Store>(open: impl Fn() -> S) {
        an_empty_place_has_no_record(&open());
        what_was_saved_is_loaded(&open);
        only_one_owner(&open());
        older_epochs_are_fenced(&open());
        invalid_records_poison(&open());
        every_size_moves_its_checkpoint(&open);
    }

    fn an_empty_place_has_no_record(store: &impl Store) {
        let mut owned = store.acquire(ONE).unwrap();
        assert_eq!(owned.load().unwrap(), None);
        assert_eq!(store.observe().unwrap(), None);
        owned.check().unwrap();
        owned.release().unwrap();
    }

    // V-I3, R-10
    fn what_was_saved_is_loaded<S: Store>(open: &impl Fn() -> S) {
        let mut owned = open().acquire(ONE).unwrap();
        for epoch in 1..4 {
            let value = record(epoch, 10 + epoch, tables(2));
            owned.save(&value, &ALL).unwrap();
            assert_eq!(owned.load().unwrap(), Some(value.clone()));
            assert_eq!(open().observe().unwrap(), Some(value));
        }
        owned.release().unwrap();
        let mut next = open().acquire(TWO).unwrap();
        assert_eq!(next.load().unwrap(), Some(record(3, 13, tables(2))));
        walferry_coverage::reached("V-I3");
    }

    // V-I1, V-04, V-F4
    fn only_one_owner(store: &impl Store) {
        let mut first = store.acquire(ONE).unwrap();
        assert!(matches!(store.acquire(TWO), Err(StoreError::Locked { .. })));
        first.check().unwrap();
        first.release().unwrap();
        drop(store.acquire(TWO).unwrap());
        store.acquire(ONE).unwrap().release().unwrap();
        walferry_coverage::reached("V-I1");
    }

    // V-03, V-I4
    fn older_epochs_are_fenced(store: &impl Store) {
        let mut owned = store.acquire(ONE).unwrap();
        let stored = owned.load().unwrap().unwrap();
        let older = record(stored.epoch.0 - 1, 99, tables(2));
        assert!(matches!(owned.save(&older, &ALL), Err(StoreError::Fenced { .. })));
        assert!(matches!(owned.check(), Err(StoreError::Poisoned { .. })));
        assert!(matches!(owned.load(), Err(StoreError::Poisoned { .. })));
        assert!(matches!(owned.save(&stored, &ALL), Err(StoreError::Poisoned { .. })));
        drop(owned);
        assert_eq!(store.observe().unwrap(), Some(stored));
        walferry_coverage::reached("V-I4");
    }

    // V-I4
    fn invalid_records_poison(store: &impl Store) {
        let mut owned = store.acquire(ONE).unwrap();
        let stored = owned.load().unwrap().unwrap();
        let mut invalid = stored.clone();
        invalid.destination_id.clear();
        let error = owned.save(&invalid, &ALL).unwrap_err();
        assert!(
            matches!(&error, StoreError::Invalid { field, .. } if field.contains("destination_id"))
        );
        assert!(matches!(owned.save(&stored, &ALL), Err(StoreError::Poisoned { .. })));
        drop(owned);
        assert_eq!(store.observe().unwrap(), Some(stored));
        walferry_coverage::reached("V-I4");
    }

    // V-05: below and from the size on at which parts are written by themselves
    fn every_size_moves_its_checkpoint<S: Store>(open: &impl Fn() -> S) {
        for count in [0, 99, 100, 250] {
            let mut owned = open().acquire(ONE).unwrap();
            let mut value = owned.load().unwrap().unwrap();
            value.epoch = Epoch(value.epoch.0 + 1);
            value.tables = tables(count);
            owned.save(&value, &ALL).unwrap();
            for _ in 0..5 {
                let next = value.checkpoint.unwrap().0.0 + 1;
                value.checkpoint = Some(Position(Lsn(next)));
                owned.save(&value, &CHECKPOINT).unwrap();
                assert_eq!(open().observe().unwrap().as_ref(), Some(&value));
            }
            Arc::make_mut(&mut value.tables).retain(|table, _| table.0 % 2 == 0);
            owned.save(&value, &ALL).unwrap();
            assert_eq!(owned.load().unwrap().as_ref(), Some(&value));
            drop(owned);
            let mut next = open().acquire(TWO).unwrap();
            assert_eq!(next.load().unwrap(), Some(value));
            next.release().unwrap();
        }
    }
}
