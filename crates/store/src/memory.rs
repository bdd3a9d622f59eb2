//! A store that lives as long as the process: for tests, and the proof that the contract is small.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use walferry_core::effect::Changed;
use walferry_core::record::Record;

use crate::codec;
use crate::contract::{Owned, OwnerToken, Store};
use crate::error::StoreError;

/// A place in memory; its clones are the same place.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    place: Arc<Mutex<Place>>,
}

/// An owned place in memory.
#[derive(Debug)]
pub struct OwnedMemory {
    place: Arc<Mutex<Place>>,
    token: OwnerToken,
    poisoned: bool,
}

#[derive(Debug, Default)]
struct Place {
    owner: Option<OwnerToken>,
    record: Option<Record>,
}

impl Store for MemoryStore {
    type Owned = OwnedMemory;

    fn acquire(&self, token: OwnerToken) -> Result<OwnedMemory, StoreError> {
        let mut place = locked(&self.place);
        if let Some(owner) = place.owner {
            return Err(StoreError::Locked { path: path(), holder: format!("owner {owner}") });
        }
        place.owner = Some(token);
        Ok(OwnedMemory { place: Arc::clone(&self.place), token, poisoned: false })
    }

    fn observe(&self) -> Result<Option<Record>, StoreError> {
        Ok(locked(&self.place).record.clone())
    }
}

impl OwnedMemory {
    fn owned(&self) -> Result<MutexGuard<'_, Place>, StoreError> {
        if self.poisoned {
            return Err(StoreError::Poisoned { path: path() });
        }
        let place = locked(&self.place);
        if place.owner == Some(self.token) {
            return Ok(place);
        }
        Err(fenced("owner", &self.token, &format!("{:?}", place.owner)))
    }

    fn replace(&self, record: &Record) -> Result<(), StoreError> {
        codec::validate(record, &path())?;
        let mut place = self.owned()?;
        if let Some(stored) = place.record.as_ref().map(|r| r.epoch).filter(|e| *e > record.epoch) {
            return Err(fenced("epoch", &record.epoch, &stored));
        }
        place.record = Some(record.clone());
        Ok(())
    }
}

impl Owned for OwnedMemory {
    fn load(&mut self) -> Result<Option<Record>, StoreError> {
        Ok(self.owned()?.record.clone())
    }

    fn save(&mut self, record: &Record, _changed: &Changed) -> Result<(), StoreError> {
        drop(self.owned()?);
        let saved = self.replace(record);
        self.poisoned = saved.is_err();
        saved
    }

    fn check(&mut self) -> Result<(), StoreError> {
        self.owned().map(drop)
    }

    fn release(self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        let mut place = locked(&self.place);
        if place.owner == Some(self.token) {
            place.owner = None;
        }
    }
}

fn locked(place: &Mutex<Place>) -> MutexGuard<'_, Place> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

fn path() -> PathBuf {
    PathBuf::from("memory")
}

fn fenced(what: &'static str, expected: &dyn ToString, found: &dyn ToString) -> StoreError {
    StoreError::Fenced {
        path: path(),
        what,
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::suite;

    #[test]
    fn keeps_the_contract() {
        let store = MemoryStore::default();
        suite::run(|| store.clone());
    }
}
