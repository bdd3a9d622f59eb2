//! Requests about tables while no run owns the record (L-06): acquire, load, the core's pure
//! function, one save, release.

use thiserror::Error;
use walferry_core::effect::Changed;
use walferry_core::requests::{self, Refusal, TableRequest};
use walferry_store::{FileStore, Owned, OwnerToken, Store, StoreError};

use crate::builder::{StartError, random};

/// Why the request was not done. Nothing was changed, unless the save itself failed.
#[derive(Debug, Error)]
pub enum RequestError {
    /// The state is in use, damaged, or cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The core refuses it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is no record: no run has come so far.
    #[error("there is no state")]
    NoState,
    /// This machine lacks something.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Applies a request to the record of a store; the names of the tables it concerned.
///
/// # Errors
/// A state that a run holds, a table for which it is refused, a store that fails.
pub fn request_tables(
    store: &FileStore,
    request: TableRequest,
    names: &[String],
) -> Result<Vec<String>, RequestError> {
    if store.observe()?.is_none() {
        return Err(RequestError::NoState);
    }
    let mut owned = store.acquire(OwnerToken(random(getrandom::fill)?))?;
    let record = owned.load()?.ok_or(RequestError::NoState)?;
    let (record, done) = requests::apply(&record, request, names)?;
    if !done.is_empty() {
        owned.save(&record, &Changed { head: true, checkpoint: false, tables: true })?;
    }
    owned.release()?;
    Ok(done)
}
