//! Which fault points of the crash tables a moment is at: what is in flight, and what is durable. A
//! crash counts for each of them; what counts for other faults stands in `hits`.

use walferry_core::batch::CopyMode;
use walferry_core::effect::Work;
use walferry_core::ids::{Lane, TableId};
use walferry_core::lsn::Position;
use walferry_core::record::{Phase, Record};

use super::positions::Step;
use crate::world::World;
use crate::world::row::Row;
use crate::world::target::Target;

/// Fault points of the crash tables that the world is at. A crash whose save in flight took effect is
/// one right behind it.
#[must_use]
pub fn crash_points(world: &World, save: bool) -> Vec<&'static str> {
    let mut points = Vec::new();
    let working = world.working();
    let persisted = world.store.persisted();
    for (_, work) in &working {
        of_work(work, persisted, save, &mut points);
    }
    if world.is_alive() {
        of_record(world, persisted, &working, &mut points);
        of_run(world, &working, &mut points);
    }
    if !world.destination.owing().is_empty() {
        points.push("C-F12");
        if world.destination.owes(Lane::Main) {
            points.push("X-F3");
        }
    }
    points.sort_unstable();
    points.dedup();
    points
}

fn of_work(
    work: &Work<Row>,
    persisted: Option<&Record>,
    save: bool,
    points: &mut Vec<&'static str>,
) {
    match work {
        Work::Save { record, .. } => of_save(record, persisted, save, points),
        Work::CreateSlot { .. } => {
            points.push(if is_recreating(persisted) { "I-F3" } else { "U-F2" });
        }
        Work::DropSlot { slot } if slot.starts_with("walferry_copy_") => points.push("U-F8"),
        Work::DropSlot { .. } => {
            points.push(if is_recreating(persisted) { "I-F2" } else { "U-F3" });
        }
        Work::ListSlots { .. } => points.push("U-F8"),
        Work::EnableFailover { .. } => points.push("U-F9"),
        Work::OpenStream { stream: walferry_core::ids::StreamId::Main, .. } => points.push("U-F5"),
        Work::OpenStream { .. } => points.push("W-F1"),
        Work::Startup { .. } => points.push("U-F6"),
        Work::OpenSnapshot { .. } => points.extend(["K-F1", "U-F10"]),
        Work::OpenReader { .. } => points.push("K-F2"),
        Work::ReadSchema { .. } => points.push("K-F3"),
        Work::BeginCopy(start) => {
            points.push("K-F4");
            if start.mode != CopyMode::Fresh {
                points.push("Y-F5");
            }
        }
        Work::ReadRange { .. } => points.push("K-F5"),
        Work::WriteRows(_) => points.push("K-F6"),
        Work::FinishCopy { .. } => points.push("K-F7"),
        Work::CloseReaders { .. } => points.push("K-F9"),
        Work::WriteChanges(batch) if batch.lane == Lane::Main => points.push("X-F2"),
        Work::WriteChanges(_) => points.push("W-F3"),
        Work::Flush { lane: Lane::Main } => points.push("C-F12"),
        Work::CloseCopy { .. } => points.push("W-F5"),
        Work::Flush { .. }
        | Work::Shutdown
        | Work::CheckOwner
        | Work::Identify
        | Work::ListPublication
        | Work::InspectSlot { .. }
        | Work::ReadTimelineHistory { .. }
        | Work::ReadBlockers { .. }
        | Work::ReadWalPosition
        | Work::DescribeTable { .. }
        | Work::WriteHeartbeat { .. }
        | Work::Monitor { .. }
        | Work::CloseStream { .. } => (),
    }
}

fn is_recreating(persisted: Option<&Record>) -> bool {
    persisted.is_some_and(|record| record.recreate)
}

/// A save in flight: which one it is.
fn of_save(
    record: &Record,
    persisted: Option<&Record>,
    save: bool,
    points: &mut Vec<&'static str>,
) {
    let Some(before) = persisted else {
        points.extend(["U-F1", "U-F11"]);
        return;
    };
    if record.initial_lsn.is_some() && before.initial_lsn.is_none() {
        points.extend(["U-F3", "U-F11"]);
    } else if before.tables.is_empty() && !record.tables.is_empty() {
        points.extend(["U-F4", "U-F11"]);
    }
    if record.identity.timeline != before.identity.timeline {
        points.extend(["P-F1", "P-F2"]);
    }
    match (before.recreate, record.recreate) {
        (false, true) => points.push("I-F1"),
        (true, false) => points.push("I-F4"),
        (true, true) | (false, false) => (),
    }
    if record.write_horizon > before.write_horizon {
        points.push("X-F1");
    }
    if record.checkpoint > before.checkpoint {
        points.extend(if save { ["C-F11", "X-F5"] } else { ["C-F10", "X-F4"] });
    }
    for (table, entry) in &*record.tables {
        match before.tables.get(table) {
            Some(old) => of_transition(&old.phase, &entry.phase, points),
            None => points.push("T-F1"),
        }
    }
}

fn of_transition(old: &Phase, new: &Phase, points: &mut Vec<&'static str>) {
    match (old, new) {
        (Phase::Copying, Phase::Catchup { .. } | Phase::Ready { .. }) => {
            points.push("W-F4");
        }
        (Phase::Catchup { .. } | Phase::Ready { .. }, Phase::Errored { .. }) => {
            points.push("X-F9");
        }
        (
            Phase::Pending
            | Phase::Copying
            | Phase::Catchup { .. }
            | Phase::Ready { .. }
            | Phase::Errored { .. },
            _,
        ) => (),
    }
}

/// What is durable and what is not yet known to the server or the record.
fn of_record(
    world: &World,
    persisted: Option<&Record>,
    working: &[(walferry_core::ids::OpId, Work<Row>)],
    points: &mut Vec<&'static str>,
) {
    let Some(record) = persisted else { return };
    let confirmed = world.source.slots.get(&record.identity.slot).map(|slot| slot.confirmed);
    if confirmed.is_some() && confirmed < record.checkpoint {
        points.extend(["C-F11", "X-F5"]);
    }
    let timed = |phase: &Phase| {
        matches!(phase, Phase::Errored { policy: walferry_core::record::Policy::Timed, .. })
    };
    if record.tables.values().any(|entry| timed(&entry.phase)) {
        points.push("Y-F1");
    }
    // H-F2: main wrote changes of a table whose handover is not saved
    let unsaved = |table: TableId| {
        record.tables.get(&table).is_some_and(|entry| entry.phase == Phase::Copying)
    };
    let wrote = working.iter().any(|(_, work)| {
        matches!(work, Work::WriteChanges(batch) if batch.lane == Lane::Main
            && batch.tables.iter().any(|entry| unsaved(entry.table)))
    });
    if wrote {
        points.push("H-F2");
    }
    if let Some(checkpoint) = record.checkpoint {
        of_history(world, record, checkpoint, points);
    }
}

/// What the checkpoint has not passed yet.
fn of_history(
    world: &World,
    record: &Record,
    checkpoint: Position,
    points: &mut Vec<&'static str>,
) {
    let changed = |table: &TableId| {
        let target = world.destination.durable.get(table);
        let at = target.and_then(Target::changed_at);
        at.is_some_and(|key| !checkpoint.covers(key.commit))
    };
    if record.tables.keys().any(changed) {
        points.push("D-F1");
    }
    let unread = |id: TableId| world.source.history_from(id, checkpoint).next().is_some();
    if world.source.tables.iter().any(|(&id, table)| table.dropped && unread(id)) {
        points.push("T-F8");
    }
}

/// Where the run stands.
fn of_run(
    world: &World,
    working: &[(walferry_core::ids::OpId, Work<Row>)],
    points: &mut Vec<&'static str>,
) {
    if world.has_closed_fence() {
        points.push("W-F9");
    }
    points.extend(match world.last_step() {
        Step::CreatedAgain => Some("I-F5"),
        Step::Followed => Some("P-F3"),
        Step::Flushed => Some("F-F4"),
        Step::Other => None,
    });
    let Some(view) = world.pipeline().map(walferry_core::Pipeline::view) else { return };
    if view.lifecycle == "stopping" {
        points.push("Q-F5");
    }
    if view.lifecycle == "recovering" && world.timeline() != world.source.timeline {
        points.push("P-F4");
    }
    let untouched = |record: &Record| {
        !record.tables.is_empty()
            && record.tables.values().all(|entry| entry.phase == Phase::Pending)
    };
    if world.destination.is_started() && world.store.persisted().is_some_and(untouched) {
        points.push("U-F7");
    }
    let partly = world.source.transaction_around(view.positions.dispatched).map(|t| t.commit);
    let offered = working.iter().any(|(_, work)| {
        matches!(work, Work::WriteChanges(batch) if batch.lane == Lane::Main
            && batch.transactions.last().map(|part| part.commit) == partly)
    });
    if partly.is_some() && (offered || world.destination.owes(Lane::Main)) {
        points.push("B-F1");
    }
}
