//! Small identities: which table, which attempt, which operation. Plain numbers that do not mix.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::lsn::CommitLsn;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// OID of a table at the source.
    TableId(u32)
}
number! {
    /// Number of one copy attempt; never repeats within a record (N-10).
    Attempt(u64)
}
number! {
    /// Number of the ownership of the record; raised by the first save of each run.
    Epoch(u64)
}
number! {
    /// Identity of one effect that completes (N-12).
    OpId(u64)
}
number! {
    /// Number of one opening of a stream (N-11).
    Session(u64)
}

/// A stream of WAL: the whole publication for the life of the pipeline, or one table's private one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamId {
    /// The main stream, from the main slot.
    Main,
    /// The private stream of the running attempt of a table; also its snapshot read.
    Copy(TableId),
}

/// An ordered sequence of destination operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// What the main stream delivers.
    Main,
    /// One copying table: its snapshot rows and its private replay.
    Table(TableId),
}

/// Key of an event: unique per table, and the same whichever stream or session delivered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventKey {
    /// Orders transactions.
    pub commit: CommitLsn,
    /// Number of the event inside its source transaction, from 0, over all published tables.
    pub ordinal: u64,
}
