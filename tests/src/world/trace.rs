//! Scenarios as text: one line for each input and effect.

use core::fmt::Write as _;

use walferry_core::batch::{Batch, ChangeBody, CopyMode, Durability};
use walferry_core::effect::{Effect, Work};
use walferry_core::event::{Event, RowKind};
use walferry_core::ids::{Lane, StreamId, TableId};
use walferry_core::input::{Answer, Input, Request};
use walferry_core::notice::{Notice, Outcome};
use walferry_core::record::{Phase, Record};

use super::row::Row;
use super::source::table_name;

/// Lines kept while nothing but the end matters.
const TAIL: usize = 80;

/// What happened, if somebody wants to know.
#[derive(Debug, Default)]
pub struct Trace {
    on: bool,
    lines: Vec<String>,
}

impl Trace {
    /// Starts to record.
    pub const fn record(&mut self) {
        self.on = true;
    }

    /// Everything since the last call.
    pub fn take(&mut self) -> String {
        let mut text = core::mem::take(&mut self.lines).join("\n");
        text.push('\n');
        text
    }

    /// The last lines.
    #[must_use]
    pub fn tail(&self) -> String {
        self.lines[self.lines.len().saturating_sub(TAIL)..].join("\n")
    }

    /// Adds a line that is only made if it is wanted.
    pub fn line(&mut self, text: impl FnOnce() -> String) {
        if self.on {
            self.lines.push(text());
        }
    }

    pub(super) fn input(&mut self, input: &Input<Row>) {
        self.line(|| format!("> {}", show_input(input)));
    }

    pub(super) fn effect(&mut self, effect: &Effect<Row>) {
        if !matches!(effect, Effect::Report(Notice::Monitored(_))) {
            self.line(|| format!("    < {}", show_effect(effect)));
        }
    }
}

fn show_input(input: &Input<Row>) -> String {
    match input {
        Input::Completed { op, result: Ok(answer) } => format!("{op} {}", show_answer(answer)),
        Input::Completed { op, result: Err(fault) } => format!("{op} failed: {fault}"),
        Input::Stream { stream, events, .. } => {
            let events: Vec<_> = events.iter().map(show_event).collect();
            format!("{} [{}]", show_stream(*stream), events.join("; "))
        }
        Input::StreamEnded { stream, fault, .. } => {
            format!("{} ended: {fault}", show_stream(*stream))
        }
        Input::CopyRows { op, rows, .. } => format!("{op} {rows} rows"),
        Input::Request(Request::Stop) => "stop".to_owned(),
        Input::Request(Request::StopNow) => "stop now".to_owned(),
        Input::Request(Request::Retry(table)) => format!("retry {}", table_name(*table)),
        Input::Request(Request::Resync(table)) => format!("resync {}", table_name(*table)),
        Input::Request(Request::Recreate) => "recreate".to_owned(),
        Input::Request(Request::Hold) => "hold".to_owned(),
        Input::Request(Request::Advance(to)) => format!("advance to {to}"),
        Input::Request(Request::Release) => "release".to_owned(),
    }
}

fn show_answer(answer: &Answer) -> String {
    match answer {
        Answer::Written(Durability::Accepted) => "accepted".to_owned(),
        Answer::Written(Durability::Durable) => "durable".to_owned(),
        Answer::Created(created) => format!("created at {}", created.consistent),
        Answer::Snapshot(facts) => format!("snapshot, cutoff {}", facts.slot.consistent),
        Answer::RangeRead(facts) => format!("read {} rows", facts.rows),
        Answer::WalPosition(lsn) => format!("the server is at {lsn}"),
        Answer::Slot(report) => match &report.slot {
            Some(slot) => format!("slot at {:?}", slot.confirmed_flush_lsn.unwrap_or_default()),
            None => "no slot".to_owned(),
        },
        Answer::Reader(facts) => {
            let same = facts.heaps.iter().all(|h| h.filenode_in_snapshot == h.filenode_now);
            format!("locked, {}", if same { "not rewritten" } else { "rewritten" })
        }
        Answer::History(switches) => {
            let parts = switches.iter().map(|s| format!("{} ended at {}", s.parent, s.at));
            format!("history: {}", parts.collect::<Vec<_>>().join(", "))
        }
        Answer::Described(None) => "no such table".to_owned(),
        Answer::Described(Some(facts)) => format!("described: {}", facts.schema.shape()),
        Answer::Done
        | Answer::Identified(_)
        | Answer::Publication(_)
        | Answer::Slots(_)
        | Answer::Blockers(_)
        | Answer::Monitored(_)
        | Answer::Opened(_)
        | Answer::Schema(_) => "done".to_owned(),
    }
}

fn show_event(event: &Event<Row>) -> String {
    match event {
        Event::Begin { commit, .. } => format!("begin {commit}"),
        Event::Relation(relation) => format!("relation {}", relation.name),
        Event::Row { table, kind, .. } => show_change(*table, *kind),
        Event::Truncate { tables, .. } => {
            let names: Vec<_> = tables.iter().map(|&table| table_name(table)).collect();
            format!("truncate {}", names.join(" "))
        }
        Event::Message { prefix, .. } => format!("message {prefix}"),
        Event::Ddl(Ok(message)) => format!("schema message: {}", message.schema.shape()),
        Event::Ddl(Err(reason)) => format!("schema message ignored: {reason}"),
        Event::Commit { end, .. } => format!("commit, end {end}"),
        Event::Keepalive { wal_end, reply } => {
            format!("keepalive {wal_end}{}", if *reply { ", reply" } else { "" })
        }
    }
}

fn show_change(table: TableId, kind: RowKind) -> String {
    let sign = match kind {
        RowKind::Insert => '+',
        RowKind::Update => '~',
        RowKind::Delete => '-',
    };
    format!("{}{sign}", table_name(table))
}

fn show_stream(stream: StreamId) -> String {
    match stream {
        StreamId::Main => "main".to_owned(),
        StreamId::Copy(table) => format!("copy {}", table_name(table)),
    }
}

fn show_lane(lane: Lane) -> String {
    match lane {
        Lane::Main => "main".to_owned(),
        Lane::Table(table) => format!("lane {}", table_name(table)),
    }
}

fn show_effect(effect: &Effect<Row>) -> String {
    match effect {
        Effect::Start { op, work, .. } => format!("{op} {}", show_work(work)),
        Effect::Cancel { op } => format!("cancel {op}"),
        Effect::Confirm { stream, position, ask_reply, .. } => {
            let ask = if *ask_reply { ", asks for a reply" } else { "" };
            format!("confirm {} {position}{ask}", show_stream(*stream))
        }
        Effect::Report(notice) => format!("report {}", show_notice(notice)),
        Effect::Ended(Outcome::Stopped { errored, until_reached }) => {
            let by = if *until_reached { " by itself" } else { "" };
            format!("ended in order{by}, {errored} errored")
        }
        Effect::Ended(Outcome::Failed { action, fault }) => format!("failed {action}: {fault}"),
    }
}

fn show_work(work: &Work<Row>) -> String {
    match work {
        Work::Save { record, .. } => format!("save {}", show_record(record)),
        Work::Identify => "identify".to_owned(),
        Work::ListPublication => "list the publication".to_owned(),
        Work::InspectSlot { .. } => "inspect the main slot".to_owned(),
        Work::ListSlots { .. } => "list copy slots".to_owned(),
        Work::CreateSlot { .. } => "create the main slot".to_owned(),
        Work::DropSlot { .. } => "drop a slot".to_owned(),
        Work::CheckOwner => "check ownership".to_owned(),
        Work::ReadTimelineHistory { timeline } => format!("read history of timeline {timeline}"),
        Work::EnableFailover { .. } => "enable failover of the main slot".to_owned(),
        Work::DescribeTable { table } => format!("describe {}", table_name(*table)),
        Work::WriteHeartbeat { .. } => "write a heartbeat".to_owned(),
        Work::ReadBlockers { .. } => "read blockers".to_owned(),
        Work::ReadWalPosition => "read the server's position".to_owned(),
        Work::Monitor { .. } => "monitor".to_owned(),
        Work::OpenStream { stream, from, .. } => {
            format!("open {} from {from}", show_stream(*stream))
        }
        Work::CloseStream { stream } => format!("close {}", show_stream(*stream)),
        Work::OpenSnapshot { table, attempt, .. } => {
            format!("open snapshot of {} #{attempt}", table_name(*table))
        }
        Work::OpenReader { table, .. } => format!("open reader of {}", table_name(*table)),
        Work::ReadSchema { table, .. } => format!("read schema of {}", table_name(*table)),
        Work::ReadRange { table, .. } => format!("read rows of {}", table_name(*table)),
        Work::CloseReaders { table, .. } => format!("close readers of {}", table_name(*table)),
        Work::CloseCopy { table, attempt } => {
            format!("close copy of {} #{attempt}", table_name(*table))
        }
        Work::BeginCopy(start) => {
            let mode = match start.mode {
                CopyMode::Fresh => "fresh".to_owned(),
                CopyMode::Recopy { previous } => format!("recopy of #{previous}"),
                CopyMode::Adopt { previous: None } => "adopt".to_owned(),
                CopyMode::Adopt { previous: Some(previous) } => format!("adopt of #{previous}"),
            };
            format!("begin copy of {} #{}, {mode}", table_name(start.table), start.attempt)
        }
        Work::WriteRows(batch) => format!(
            "write rows of {}, sequence {}, {} rows",
            table_name(batch.table),
            batch.sequence,
            batch.rows
        ),
        Work::FinishCopy { table, sequences, .. } => {
            format!("finish copy of {}, {sequences} sequences", table_name(*table))
        }
        Work::WriteChanges(batch) => show_batch(batch),
        Work::Flush { lane } => format!("flush {}", show_lane(*lane)),
        Work::Startup { epoch, .. } => format!("start destination, epoch {epoch}"),
        Work::Shutdown => "shut destination down".to_owned(),
    }
}

fn show_batch(batch: &Batch<Row>) -> String {
    let mut text = format!("write {}:", show_lane(batch.lane));
    let mut current = None;
    let name = |index: u32| batch.tables[index as usize].table;
    for change in &batch.changes {
        if current.replace(change.transaction) != Some(change.transaction) {
            let part = &batch.transactions[change.transaction as usize];
            // Writing to a String cannot fail.
            let _ = write!(text, " [{}]", part.commit);
        }
        let shown = match &change.body {
            ChangeBody::Row { table, kind, .. } => show_change(name(*table), *kind),
            ChangeBody::Truncate { table, .. } => format!("truncate {}", table_name(name(*table))),
            ChangeBody::Message { prefix, .. } => format!("message {prefix}"),
            ChangeBody::Schema { change, .. } => {
                let (name, shape) = (table_name(change.schema.table), change.schema.shape());
                format!("schema of {name} {shape} by {:?}", change.steps)
            }
        };
        let _ = write!(text, " {}:{shown}", change.ordinal);
    }
    text
}

fn show_record(record: &Record) -> String {
    let checkpoint = record.checkpoint.map_or("intent".to_owned(), |at| format!("at {at}"));
    let mut text = format!("epoch {} {checkpoint}", record.epoch);
    for (&table, entry) in &*record.tables {
        let _ = write!(text, ", {} {}", table_name(table), entry.phase.word());
        if let Some(handover) = entry.phase.handover() {
            let _ = write!(text, " {handover}");
        }
        if entry.phase == Phase::Copying
            && let Some(attempt) = entry.attempt
        {
            let _ = write!(text, " #{attempt}");
        }
        if entry.tries + entry.deaths > 0 {
            let _ = write!(text, " (tries {}, deaths {})", entry.tries, entry.deaths);
        }
    }
    text
}

fn show_notice(notice: &Notice) -> String {
    match notice {
        Notice::HandedOver { table, handover, ready, .. } => {
            let phase = if *ready { "ready" } else { "catchup" };
            format!("{} handed over at {handover}, {phase}", table_name(*table))
        }
        Notice::TableReady { table } => format!("{} ready", table_name(*table)),
        Notice::TableAdded { table, .. } => format!("{} added", table_name(*table)),
        Notice::TableErrored { table, reason, .. } => {
            format!("{} errored: {reason}", table_name(*table))
        }
        Notice::DiedCopying { table, deaths } => {
            format!("{} died copying, {deaths} deaths", table_name(*table))
        }
        Notice::CopyStarted { table, attempt } => {
            format!("{} copy #{attempt} begins", table_name(*table))
        }
        Notice::CopyRowsDone { table, rows, .. } => {
            format!("{} {rows} rows are durable", table_name(*table))
        }
        Notice::RewriteGuard { table, repeats } => {
            format!("{} was rewritten, {repeats} in a row", table_name(*table))
        }
        Notice::Streaming { epoch, from } => format!("streaming from {from}, epoch {epoch}"),
        Notice::UntilTarget { target } => format!("the run ends at {target}"),
        Notice::MainSlotCreated { initial, .. } => format!("main slot created at {initial}"),
        Notice::MembershipChanged { table } => format!("{} joined anew", table_name(*table)),
        Notice::TableGone { table, .. } => format!("{} gone", table_name(*table)),
        Notice::SourceIdentified { .. } => "source identified".to_owned(),
        Notice::Stopping { .. } => "stopping".to_owned(),
        Notice::CopySlotAtRisk { .. }
        | Notice::ActionsMissing { .. }
        | Notice::SlotCreationWaits { .. }
        | Notice::SlotBusy { .. }
        | Notice::ForeignSlotLeft { .. }
        | Notice::Monitored(_)
        | Notice::MainRetry { .. }
        | Notice::Reopened { .. }
        | Notice::Quarantined { .. }
        | Notice::FenceClosed { .. }
        | Notice::FenceOpened { .. }
        | Notice::NotConverging { .. }
        | Notice::TombstoneSkipped { .. }
        | Notice::AdoptGap { .. }
        | Notice::SlotLost { .. }
        | Notice::Recreating { .. }
        | Notice::Promoted { .. }
        | Notice::FailoverEnabled { .. }
        | Notice::SchemaChanged { .. }
        | Notice::SilentRewrite { .. }
        | Notice::IdentityLost { .. }
        | Notice::DdlIgnored { .. }
        | Notice::HeartbeatSeen { .. }
        | Notice::Held { .. }
        | Notice::Advanced { .. }
        | Notice::Released { .. }
        | Notice::RequestRefused { .. }
        | Notice::Copying { .. }
        | Notice::Stalled { .. }
        | Notice::Unstalled
        | Notice::SideTaskFailed { .. } => format!("{notice:?}"),
    }
}
