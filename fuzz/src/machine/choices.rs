//! The bytes as a source of decisions, and the failures that may be chosen.

use core::time::Duration;

use walferry_core::effect::Work;
use walferry_core::fault::{Blame, DestinationClass, Fault, FaultKind, Origin, SqlState};
use walferry_core::ids::TableId;

/// Bytes not used yet. At their end every decision is the first choice.
pub(super) struct Choices<'a>(core::slice::Iter<'a, u8>);

impl<'a> Choices<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self(data.iter())
    }

    pub(super) fn next(&mut self) -> Option<u8> {
        self.0.next().copied()
    }

    /// A number in `0..end`, which is at most 256.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        u64::from(self.next().unwrap_or(0)) % end.max(1)
    }

    /// An index into so many things.
    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::from(self.next().unwrap_or(0)) % length.max(1)
    }
}

enum Party {
    Source,
    Destination,
    Store,
}

const fn party(work: &Work<u32>) -> Party {
    match work {
        Work::Save { .. } | Work::CheckOwner => Party::Store,
        Work::Startup { .. }
        | Work::BeginCopy(_)
        | Work::WriteRows(_)
        | Work::FinishCopy { .. }
        | Work::WriteChanges(_)
        | Work::Flush { .. }
        | Work::Shutdown => Party::Destination,
        Work::Identify
        | Work::ListPublication
        | Work::InspectSlot { .. }
        | Work::ListSlots { .. }
        | Work::ReadTimelineHistory { .. }
        | Work::CreateSlot { .. }
        | Work::EnableFailover { .. }
        | Work::DropSlot { .. }
        | Work::ReadBlockers { .. }
        | Work::ReadWalPosition
        | Work::DescribeTable { .. }
        | Work::WriteHeartbeat { .. }
        | Work::Monitor { .. }
        | Work::OpenStream { .. }
        | Work::CloseStream { .. }
        | Work::OpenSnapshot { .. }
        | Work::OpenReader { .. }
        | Work::ReadSchema { .. }
        | Work::ReadRange { .. }
        | Work::CloseReaders { .. }
        | Work::CloseCopy { .. } => Party::Source,
    }
}

/// What whoever does this work may report.
pub(super) fn failure(work: &Work<u32>, choices: &mut Choices<'_>) -> Fault {
    let timeout = FaultKind::Timeout { budget: Duration::from_secs(1) };
    match party(work) {
        Party::Store => {
            let kinds = [FaultKind::StoreFailed, FaultKind::StoreFenced, timeout];
            Fault::new(Origin::Store, kinds[choices.index(3)].clone(), "")
        }
        Party::Source => {
            let server = |code| FaultKind::Server { code: SqlState(code) };
            let kinds = [
                FaultKind::Transport,
                timeout,
                server(*b"57P01"),
                server(*b"55006"),
                server(*b"42501"),
                FaultKind::Protocol,
            ];
            Fault::new(Origin::Source, kinds[choices.index(kinds.len())].clone(), "")
        }
        Party::Destination => {
            let retry_after = [None, Some(Duration::from_secs(2))][choices.index(2)];
            let kinds = [
                DestinationClass::Transient { retry_after },
                DestinationClass::Manual,
                DestinationClass::Permanent,
                DestinationClass::Fenced,
            ];
            let class = kinds[choices.index(kinds.len())];
            let mut fault = Fault::new(Origin::Destination, FaultKind::Destination { class }, "");
            fault.blame = match choices.below(4) {
                0 => Blame::Sink,
                1 => Blame::Unstated,
                more => Blame::Tables {
                    tables: vec![TableId(1 + choices.index(3) as u32)],
                    no_effect_on_others: more == 2,
                },
            };
            fault
        }
    }
}
