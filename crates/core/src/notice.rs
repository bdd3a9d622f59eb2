//! What people and metrics are told, and how a run ends.

use core::time::Duration;

use crate::fault::{Fault, FaultKind, Origin};
use crate::ids::{Attempt, Epoch, EventKey, TableId};
use crate::input::Request;
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
    /// A table left and came back between two listings (T-11): it is copied again, unless policy
    /// `membership_change` is `report`.
    MembershipChanged {
        /// The table.
        table: TableId,
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
    /// A transient failure of the main scope: it is tried again (Y-02).
    MainRetry {
        /// Who failed.
        origin: Origin,
        /// Failures of this origin in a row without durable progress.
        failures: u64,
        /// Delay before the next try.
        retry_in: Duration,
        /// What failed.
        fault: Fault,
    },
    /// The main stream runs again after a failure.
    Reopened {
        /// Where it started.
        from: Position,
    },
    /// A table was set aside because of a destination error on main.
    Quarantined {
        /// The table.
        table: TableId,
    },
    /// Main holds so that a table can hand over (W-13).
    FenceClosed {
        /// The table.
        table: TableId,
        /// Where main holds.
        at: Position,
    },
    /// A fence is over (W-15).
    FenceOpened {
        /// The table.
        table: TableId,
        /// How long main was held.
        held: Duration,
        /// Why it opened.
        why: FenceEnd,
    },
    /// A replaying table has not come closer to main for long (W-18).
    NotConverging {
        /// The table.
        table: TableId,
        /// Bytes of WAL between it and main.
        behind: u64,
    },
    /// Changes of a table that is gone were skipped (T-10).
    TombstoneSkipped {
        /// The table.
        table: TableId,
        /// How many since the last report.
        changes: u64,
    },
    /// A table is adopted as it is; changes at the source in between are not in its rows (K-18).
    AdoptGap {
        /// The table.
        table: TableId,
        /// Exact up to here, if that is known.
        from: Option<Position>,
        /// Changes from here on are delivered.
        to: Position,
    },
    /// The main slot is lost (I-02).
    SlotLost {
        /// How.
        kind: FaultKind,
    },
    /// The main slot is created again and every table copied anew (I-04).
    Recreating {
        /// Its name.
        slot: String,
    },
    /// The source was promoted; the pipeline follows (P-07).
    Promoted {
        /// Timeline before.
        from: u32,
        /// Timeline from here on.
        to: u32,
        /// Where they part.
        fork: Position,
        /// Where streaming goes on.
        checkpoint: Position,
    },
    /// The main slot has the failover property now (M-09).
    FailoverEnabled {
        /// Its name.
        slot: String,
    },
    /// A table has another shape from an event on (D-08).
    SchemaChanged {
        /// The table.
        table: TableId,
        /// Key of that event.
        position: EventKey,
        /// The new shape, for people.
        shape: String,
    },
    /// Rows at the source may differ without any event (D-15).
    SilentRewrite {
        /// The table.
        table: TableId,
        /// The column that may differ.
        column: String,
    },
    /// A table has no usable replica identity any more (D-16).
    IdentityLost {
        /// The table.
        table: TableId,
    },
    /// A schema message was ignored (D-05).
    DdlIgnored {
        /// Why.
        reason: String,
    },
    /// A heartbeat came through.
    HeartbeatSeen {
        /// Time from its writing to its dispatch.
        lag: Duration,
    },
    /// Main holds for a verifier (L-07).
    Held {
        /// Everything below was dispatched, nothing else.
        at: Position,
    },
    /// Everything below the position asked for is durable, nothing else was offered (L-07).
    Advanced {
        /// The position.
        to: Position,
    },
    /// The hold is over (L-07).
    Released {
        /// Whether its time was used up.
        expired: bool,
    },
    /// A request was refused; nothing was changed (Y-09, L-07).
    RequestRefused {
        /// What was asked.
        request: Request,
        /// Why.
        reason: String,
    },
    /// Progress of the running copies (K-22).
    Copying {
        /// The table.
        table: TableId,
        /// Rows read.
        rows: u64,
        /// Bytes read.
        bytes: u64,
        /// WAL that the copy slot keeps: server's end minus cutoff, in bytes.
        wal: u64,
    },
    /// For a minute something was to do and nothing moved (L-02).
    Stalled {
        /// What is waited for.
        cause: String,
    },
    /// Something moves again (L-02).
    Unstalled,
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

/// Why a fence opened (W-15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceEnd {
    /// The table handed over.
    HandedOver,
    /// Its attempt failed, or the table is gone.
    AttemptOver,
    /// The main stream re-opens, the run stops or starts over.
    Interrupted,
    /// Its time is used up.
    Expired,
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
