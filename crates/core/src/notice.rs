//! What people and metrics are told, and how a run ends.

use core::time::Duration;

use crate::fault::Fault;
use crate::ids::{Attempt, Epoch, TableId};
use crate::lsn::Position;
use crate::record::Policy;
use crate::source::{Blocker, MonitorFacts, SlotHolder};

/// A report: no change of behaviour. No row values, no secrets.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// The source was identified.
    SourceIdentified {
        /// `server_version_num`.
        version: u32,
        /// Timeline.
        timeline: u32,
    },
    /// The server has settings that may end a copy slot (K-29).
    CopySlotAtRisk {
        /// The settings, as `name = value`.
        settings: Vec<String>,
    },
    /// The publication leaves out some actions (T-01).
    ActionsMissing {
        /// Of insert, update, delete, truncate.
        actions: Vec<&'static str>,
    },
    /// Slot creation waits for running transactions (M-06).
    SlotCreationWaits {
        /// The slot under creation.
        slot: String,
        /// Whom it waits for.
        blockers: Vec<Blocker>,
    },
    /// The slot is still held by another session (M-01).
    SlotBusy {
        /// The slot.
        slot: String,
        /// Who holds it.
        holder: SlotHolder,
    },
    /// The main slot was created.
    MainSlotCreated {
        /// Its name.
        slot: String,
        /// Its consistent point.
        initial: Position,
    },
    /// A slot that looks like one of ours is not, and was left alone (K-07).
    ForeignSlotLeft {
        /// Its name.
        slot: String,
    },
    /// The main stream runs.
    Streaming {
        /// Ownership of the record.
        epoch: Epoch,
        /// Where it started.
        from: Position,
    },
    /// A table was seen for the first time, or came back.
    TableAdded {
        /// The table.
        table: TableId,
        /// Its name.
        name: String,
    },
    /// A table is not in the publication any more (T-09).
    TableGone {
        /// The table.
        table: TableId,
        /// Its name.
        name: String,
    },
    /// A table left and came back between two listings (T-11): it is copied again.
    MembershipChanged {
        /// The table.
        table: TableId,
    },
    /// Changes of a table that is not in the record are skipped; the next start lists it.
    UnknownTable {
        /// The table.
        table: TableId,
        /// Its name, if RELATION gave it.
        name: Option<String>,
    },
    /// An attempt began.
    CopyStarted {
        /// The table.
        table: TableId,
        /// The attempt.
        attempt: Attempt,
    },
    /// The snapshot's rows are durable.
    CopyRowsDone {
        /// The table.
        table: TableId,
        /// The attempt.
        attempt: Attempt,
        /// Rows delivered.
        rows: u64,
        /// Where the snapshot stands.
        cutoff: Position,
    },
    /// The rewrite guard ended an attempt without blame (K-27).
    RewriteGuard {
        /// The table.
        table: TableId,
        /// How often in a row.
        repeats: u32,
    },
    /// Main owns the table from `handover` on.
    HandedOver {
        /// The table.
        table: TableId,
        /// The attempt.
        attempt: Attempt,
        /// The position.
        handover: Position,
        /// Whether it is Ready at once.
        ready: bool,
    },
    /// Main has reached the handover.
    TableReady {
        /// The table.
        table: TableId,
    },
    /// A table stopped; its changes are dropped.
    TableErrored {
        /// The table.
        table: TableId,
        /// Why.
        reason: String,
        /// Who may bring it back.
        policy: Policy,
        /// After what time it is tried again by itself.
        retry_in: Option<Duration>,
        /// The failure, if there was one.
        fault: Option<Fault>,
    },
    /// The process died in an attempt of the table before (Y-10).
    DiedCopying {
        /// The table.
        table: TableId,
        /// How often in a row.
        deaths: u32,
    },
    /// The monitor's picture of the source (G-06).
    Monitored(MonitorFacts),
    /// A side task failed; nothing else is affected (G-06, T-07).
    SideTaskFailed {
        /// Which.
        task: &'static str,
        /// Why.
        fault: Fault,
    },
    /// All tables stream; the run ends when the checkpoint reaches `target` (L-08).
    UntilTarget {
        /// The position.
        target: Position,
    },
    /// The stop began.
    Stopping {
        /// How long it may take.
        budget: Duration,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Stopped in order: everything dispatched is durable, saved and confirmed.
    Stopped {
        /// Tables that need a person.
        errored: usize,
        /// Whether the run ended by itself (L-08).
        until_reached: bool,
    },
    /// Failed, or cut short.
    Failed {
        /// What was attempted, for people.
        action: &'static str,
        /// Why.
        fault: Fault,
    },
}
