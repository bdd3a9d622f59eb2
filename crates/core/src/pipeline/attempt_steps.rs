//! The steps of one copy attempt, and the operations that take it from one to the next.
//!
//! Owns the vocabulary; what each step does stands in the file of its rule.

use crate::ledger::Version;

/// What an operation of an attempt does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptOp {
    /// K-05: is there a slot of the table's name already?
    InspectSlot,
    RemoveSlot,
    OpenSnapshot,
    OpenReader {
        reader: u32,
    },
    ReadSchema,
    /// K-18.
    DescribeAdopted,
    BeginCopy,
    ReadRange,
    WriteRows,
    FlushRows,
    FinishCopy,
    FlushCopy,
    CloseReaders,
    OpenStream,
    /// The catalog explains the shape of a row (D-08).
    Describe,
    WriteChanges,
    FlushChanges,
    CloseCopy,
    /// K-05: behind `CloseCopy`.
    DropSlot,
}

impl AttemptOp {
    /// Calls of the destination take turns and are never cancelled: they end by themselves.
    pub(super) const fn is_destination(self) -> bool {
        match self {
            Self::BeginCopy
            | Self::WriteRows
            | Self::FlushRows
            | Self::FinishCopy
            | Self::FlushCopy
            | Self::WriteChanges
            | Self::FlushChanges => true,
            Self::InspectSlot
            | Self::RemoveSlot
            | Self::OpenSnapshot
            | Self::OpenReader { .. }
            | Self::ReadSchema
            | Self::DescribeAdopted
            | Self::ReadRange
            | Self::CloseReaders
            | Self::OpenStream
            | Self::Describe
            | Self::CloseCopy
            | Self::DropSlot => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Copying is being saved (K-I1).
    AwaitSave(Version),
    /// The table's slot of an earlier attempt is still held (K-07).
    SlotBusy,
    /// A source operation is outstanding.
    Preparing,
    /// `begin_copy` waits for its turn, and for a main write of the table (K-16).
    BeginDue,
    Beginning,
    Reading,
    FinishDue,
    Finishing,
    FlushDue,
    Flushing,
    ClosingReaders,
    /// W.
    Replaying,
    /// H-02: the handover is being saved.
    HandedOver(Version),
    /// Failed or cancelled: what runs is waited for, then everything is closed.
    Ending,
    Closing,
    /// K-05: everything is closed but the slot is still held.
    SlotLeft,
    DroppingSlot,
}
