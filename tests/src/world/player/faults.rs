//! What goes wrong in a game: with operations, connections, servers, sinks and people.

use core::time::Duration;

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::fault::{Blame, DestinationClass, Fault, FaultKind, Origin};
use walferry_core::ids::{OpId, TableId};
use walferry_core::input::Request;
use walferry_core::notice::Outcome;

use super::Player;
use crate::coverage::reached;
use crate::world::features::BUILT;
use crate::world::row::Row;
use crate::world::source::server_error;

/// Table that no destination was ever told of.
const NOBODY: TableId = TableId(9_999);

impl Player {
    /// Throws one fault, if it makes sense now.
    pub(super) fn throw_fault(&mut self) -> bool {
        let faults = self.faults;
        match self.dice.below(24) {
            0 if faults.stop > 0 => {
                self.world.stop();
                true
            }
            1..=3 if faults.stream > 0 => self.lose_stream(),
            4..=10 if faults.operation > 0 => self.fail_something(),
            11..=13 if faults.crash > 0 => {
                self.crash();
                true
            }
            14 if faults.more > 0 => self.break_server(),
            15 if faults.more > 0 => self.lose_copy_connection(),
            16 if faults.more > 0 => self.hang_something(),
            17 if faults.more > 0 => self.take_slot_away(),
            18..=20 if faults.more > 0 => self.promote(),
            21..=23 if faults.more > 0 => self.ask_something(),
            _ => false,
        }
    }

    fn lose_stream(&mut self) -> bool {
        let streams = self.streams();
        let Some(&stream) = self.dice.pick(&streams) else { return false };
        let kind = match self.dice.below(4) {
            0 => server_error(*b"57P01"),
            1 => server_error(*b"57P02"),
            _ => FaultKind::Transport,
        };
        self.world.end_stream(stream, Fault::new(Origin::Source, kind, ""));
        true
    }

    fn fail_something(&mut self) -> bool {
        let working = self.world.working();
        let Some((op, work)) = self.dice.pick(&working).cloned() else { return false };
        self.fail(op, &work);
        true
    }

    fn fail(&mut self, op: OpId, work: &Work<Row>) {
        match work {
            Work::Save { .. } if self.dice.chance(50) => self.world.save_in_doubt(op),
            Work::Save { .. } | Work::CheckOwner => self.world.refuse(op, FaultKind::StoreFailed),
            Work::BeginCopy(_)
            | Work::WriteRows(_)
            | Work::FinishCopy { .. }
            | Work::WriteChanges(_)
            | Work::Flush { .. } => self.fail_call(op, work),
            Work::Startup { .. } | Work::Shutdown => {
                self.world.refuse(op, crate::world::TRANSIENT);
            }
            Work::CloseCopy { .. } | Work::CloseStream { .. } => self.perform(op),
            Work::CreateSlot { .. } | Work::OpenSnapshot { .. } if self.dice.chance(20) => {
                // No free slot at the server.
                self.world.refuse(op, server_error(*b"53400"));
                reached("M-F4");
            }
            Work::Identify
            | Work::ListPublication
            | Work::InspectSlot { .. }
            | Work::ListSlots { .. }
            | Work::CreateSlot { .. }
            | Work::DropSlot { .. }
            | Work::ReadBlockers { .. }
            | Work::ReadTimelineHistory { .. }
            | Work::EnableFailover { .. }
            | Work::DescribeTable { .. }
            | Work::WriteHeartbeat { .. }
            | Work::ReadWalPosition
            | Work::Monitor { .. }
            | Work::OpenStream { .. }
            | Work::OpenSnapshot { .. }
            | Work::OpenReader { .. }
            | Work::ReadSchema { .. }
            | Work::ReadRange { .. }
            | Work::CloseReaders { .. } => self.world.refuse(op, FaultKind::Transport),
        }
    }

    /// A call of the destination fails, in one of the ways that DS-03, DS-10 and DS-F3 name.
    fn fail_call(&mut self, op: OpId, work: &Work<Row>) {
        if self.dice.chance(25) {
            self.world.perform_in_doubt(op, Durability::Accepted);
            return;
        }
        let class = match self.dice.below(6) {
            0 => DestinationClass::Manual,
            1 => DestinationClass::Permanent,
            _ => DestinationClass::Transient { retry_after: self.delay() },
        };
        let kind = FaultKind::Destination { class };
        let blamed = self.blamed(work);
        if let (Some(tables), true) = (blamed, self.uses.quarantine) {
            let blame = Blame::Tables { tables, no_effect_on_others: true };
            self.world.refuse_blaming(op, kind, blame);
            return;
        }
        let lost = matches!(work, Work::WriteChanges(_) | Work::Flush { .. } | Work::WriteRows(_));
        if lost && self.dice.chance(40) {
            let dice = &mut self.dice;
            self.world
                .lose_accepted(|calls| usize::try_from(dice.below(calls as u64 + 1)).unwrap_or(0));
        }
        let blame = if self.dice.chance(10) { Blame::Sink } else { Blame::Unstated };
        self.world.refuse_blaming(op, kind, blame);
    }

    fn delay(&mut self) -> Option<Duration> {
        self.dice.chance(30).then(|| Duration::from_millis(self.dice.between(1, 20_000)))
    }

    fn blamed(&mut self, work: &Work<Row>) -> Option<Vec<TableId>> {
        let Work::WriteChanges(batch) = work else { return None };
        let tables: Vec<_> = batch.tables.iter().map(|entry| entry.table).collect();
        let table = self.dice.pick(&tables).copied()?;
        Some(if self.dice.chance(10) { vec![NOBODY, table] } else { vec![table] })
    }

    fn hang_something(&mut self) -> bool {
        if self.dice.chance(20) {
            self.jump();
            return true;
        }
        let working = self.world.working();
        let Some(&(op, _)) = self.dice.pick(&working) else { return false };
        self.world.hang(op);
        true
    }

    /// Time jumps past most of the budgets (Y-F2).
    fn jump(&mut self) {
        let by = Duration::from_secs(self.dice.between(60, 7_200));
        self.world.trace.line(|| format!("--- {} s pass", by.as_secs()));
        self.world.advance(by);
        reached("Y-F2");
    }

    /// The server dies, or refuses for a while.
    fn break_server(&mut self) -> bool {
        let down = Duration::from_millis(self.dice.between(1, 30_000));
        self.world.crash_server(down);
        true
    }

    fn lose_copy_connection(&mut self) -> bool {
        let snapshots: Vec<_> = self.world.source.snapshots.keys().copied().collect();
        let Some(&(table, attempt)) = self.dice.pick(&snapshots) else { return false };
        let slot = self.world.source.snapshots[&(table, attempt)].slot.clone();
        if self.dice.chance(20) {
            self.world.invalidate(&slot, "wal_removed");
        } else if self.dice.chance(50) {
            self.world.lose_exporter(table, attempt);
        } else {
            let reader = u32::try_from(self.dice.below(3)).unwrap_or(0);
            self.world.lose_reader(table, attempt, reader);
        }
        true
    }

    /// The main slot is busy, lost or dropped; or the publication is.
    fn take_slot_away(&mut self) -> bool {
        let slot = self.world.store.persisted().map(|record| record.identity.slot.clone());
        let Some(slot) = slot else { return false };
        if self.dice.chance(40) || !self.uses.recreation {
            let until = self.world.now().after(Duration::from_secs(self.dice.between(1, 60)));
            let alive = self.world.streams();
            if let Some(found) = self.world.source.slots.get_mut(&slot).filter(|_| !alive) {
                found.held_until = Some(until);
                return true;
            }
            return false;
        }
        self.taken_away = true;
        match self.dice.below(4) {
            0 => self.world.invalidate(&slot, "idle_timeout"),
            1 => self.world.invalidate(&slot, "wal_removed"),
            2 => {
                self.world.invalidate(&slot, "rows_removed");
                self.world.source.slots.remove(&slot);
                reached("U-F12");
            }
            _ => {
                reached("T-F7");
                self.world.source.drop_publication();
                if self.dice.chance(50) {
                    self.world.source.create_publication();
                }
            }
        }
        true
    }

    fn promote(&mut self) -> bool {
        if !self.uses.promotion {
            return false;
        }
        if self.dice.chance(20) && self.promoted {
            return self.world.reach_old_primary();
        }
        if self.world.source.is_left_behind() || !self.world.source.has_standby() {
            return false;
        }
        self.promoted = true;
        self.world.promote();
        true
    }

    /// A person asks for something (L-01).
    fn ask_something(&mut self) -> bool {
        let tables = self.world.source.members();
        let Some(&table) = self.dice.pick(&tables) else { return false };
        let request = match self.dice.below(7) {
            0 if self.dice.chance(30) => Request::StopNow,
            1..=2 if BUILT.requests => Request::Resync(table),
            3 if BUILT.requests => Request::Retry(table),
            4 if BUILT.hold => Request::Hold,
            5 if BUILT.hold => Request::Advance(self.world.source.head),
            6 if BUILT.hold => Request::Release,
            _ if self.uses.recreation && self.dice.chance(20) => {
                // It drops the slot; a crash before the new one leaves its flag (I-F2).
                self.taken_away = true;
                Request::Recreate
            }
            _ => return false,
        };
        reached("L-01");
        self.world.request(request);
        true
    }

    /// The process dies, with everything in doubt decided by the dice.
    pub(super) fn crash(&mut self) {
        let save = self.dice.chance(50);
        let dice = &mut self.dice;
        self.world
            .crash(save, |accepted| usize::try_from(dice.below(accepted as u64 + 1)).unwrap_or(0));
    }

    /// A run may end by what was thrown at it, and by nothing else.
    pub(super) fn judge_outcome(&mut self) {
        let Some(Outcome::Failed { action, fault }) = self.world.take_outcome() else { return };
        let thrown = match &fault.kind {
            FaultKind::Transport
            | FaultKind::Timeout { .. }
            | FaultKind::StoreFailed
            | FaultKind::StopTimeout
            | FaultKind::Destination { .. }
            | FaultKind::FlushFailed { .. }
            | FaultKind::Server { .. } => true,
            FaultKind::SlotMissing { .. }
            | FaultKind::SlotInvalidated { .. }
            | FaultKind::RecreationPending
            | FaultKind::PublicationMissing { .. } => self.taken_away || self.promoted,
            FaultKind::HorizonBeyondFork { .. }
            | FaultKind::IdentityMismatch { field: "timeline", .. } => self.promoted,
            FaultKind::Stopped
            | FaultKind::StoreFenced
            | FaultKind::StoreLocked { .. }
            | FaultKind::TimelineChanged { .. }
            | FaultKind::SlotAhead { .. }
            | FaultKind::SlotForeign { .. }
            | FaultKind::CheckpointAhead { .. }
            | FaultKind::IdentityMismatch { .. }
            | FaultKind::PublicationEmpty { .. }
            | FaultKind::RecordCorrupt
            | FaultKind::RecordInvalid { .. }
            | FaultKind::RecordTooNew { .. }
            | FaultKind::Authentication
            | FaultKind::Configuration { .. }
            | FaultKind::EntropyUnavailable
            | FaultKind::Protocol
            | FaultKind::Conversion
            | FaultKind::Limit { .. }
            | FaultKind::Violation => false,
        };
        assert!(thrown, "the run failed {action}: {fault} (O-7)");
        reached("O-7");
    }
}
