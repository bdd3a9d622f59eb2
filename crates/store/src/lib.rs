//! Keeps the durable record of a pipeline (spec groups R and V).
//!
//! Owns the byte form of the record and the ownership of the place where it lies. Calls
//! block; the runtime makes them on a thread of their own. Decides nothing about the pipeline.

mod classify;
mod codec;
mod contract;
mod error;
mod file;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod journal;
mod memory;
mod read;
#[cfg(test)]
mod testing;
mod url;

pub use contract::{Owned, OwnerToken, Store};
pub use error::StoreError;
pub use file::{FileStore, OwnedFile};
pub use memory::{MemoryStore, OwnedMemory};
pub use url::{StoreUrl, StoreUrlError};
