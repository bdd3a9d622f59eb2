//! The destination contract of walferry and its destinations.
//!
//! | module | owns |
//! |---|---|
//! | `contract` | the trait and its error |
//! | `sqlite` | a SQLite file, exactly once |
//! | `jsonl` | JSON lines in a file or on standard output, at least once |
//! | `null` | counts and forgets |
//! | `any` | the destination that a URL names |
//! | `kit` | the contract tests, for every destination, ours or not |
//!
//! **Invariant:** nothing here decides what an error leads to; a class is all that is said.

pub mod any;
pub mod contract;
pub mod jsonl;
pub mod kit;
pub mod null;
pub mod sqlite;
mod values;
mod worker;

pub use any::{AnyDestination, DestinationUrlError};
pub use contract::{Destination, DestinationError};
pub use jsonl::JsonlDestination;
pub use null::{Counts, NullCounts, NullDestination};
pub use sqlite::SqliteDestination;
