//! Which fault points something hits that is no crash: an operation that fails, a connection that is
//! lost, a stop, a server that changes. The point is counted when the core has taken the news.

use walferry_core::effect::Work;
use walferry_core::fault::{DestinationClass, FaultKind};
use walferry_core::ids::{Lane, StreamId};
use walferry_core::lsn::Position;
use walferry_core::record::{Phase, Policy, Record};
use walferry_core::view::View;

use super::fault_points::crash_points;
use super::next;
use super::positions::Step;
use crate::coverage::reached;
use crate::world::row::Row;
use crate::world::{MAIN, World};

impl World {
    /// Fault points that were hit: they are counted, and remembered for directed tests.
    pub(in crate::world) fn hit(&mut self, points: impl IntoIterator<Item = &'static str>) {
        for point in points {
            reached(point);
            self.hits.insert(point);
        }
    }

    /// Fault points that were hit in this world.
    pub fn hits(&self) -> impl Iterator<Item = &'static str> {
        self.hits.iter().copied()
    }

    pub(super) fn last_step(&self) -> Step {
        self.process.as_ref().map(|process| process.watch.last_step).unwrap_or_default()
    }

    fn view(&self) -> Option<View> {
        self.pipeline().map(walferry_core::Pipeline::view)
    }

    fn lifecycle(&self) -> &'static str {
        self.view().map_or("", |view| view.lifecycle)
    }

    /// Fault points of an operation that fails.
    pub(in crate::world) fn failure_points(
        &self,
        work: &Work<Row>,
        kind: &FaultKind,
    ) -> Vec<&'static str> {
        let mut points = Vec::new();
        let lifecycle = self.lifecycle();
        let stopping = lifecycle == "stopping";
        match work {
            Work::Save { record, .. } => self.of_failed_save(record, stopping, &mut points),
            Work::WriteChanges(batch) if batch.lane == Lane::Main => points.push("X-F8"),
            Work::Flush { lane: Lane::Main } => {
                points.push("F-F1");
                points.extend(stopping.then_some("Q-F1"));
                let lost = self.process.as_ref().is_some_and(|process| process.watch.slot_lost);
                points.extend((lost && lifecycle == "recovering").then_some("I-F9"));
            }
            Work::Flush { lane: Lane::Table(_) } => points.push("W-F6"),
            Work::Shutdown => points.push("Q-F1"),
            Work::BeginCopy(_) => points.push("K-F4"),
            Work::WriteRows(_) => points.push("K-F6"),
            Work::FinishCopy { .. } => points.push("K-F8"),
            Work::OpenSnapshot { .. } => points.push("K-F1"),
            Work::OpenReader { reader, .. } => {
                points.push("K-F2");
                points.extend((*reader > 0).then_some("K-F11"));
            }
            Work::ReadSchema { .. } => points.push("K-F3"),
            Work::ReadRange { reader, .. } => {
                points.push("K-F5");
                points.extend((*reader > 0).then_some("K-F11"));
            }
            Work::CloseReaders { .. } => points.push("K-F9"),
            Work::OpenStream { stream: StreamId::Copy(_), .. } => points.push("W-F1"),
            Work::DropSlot { slot } if slot.starts_with("walferry_copy_") => {
                points.push(if lifecycle == "running" { "K-F16" } else { "U-F8" });
            }
            Work::ListSlots { .. } => points.push("U-F8"),
            Work::EnableFailover { .. } => points.push("U-F9"),
            Work::DescribeTable { .. } => points.push("D-F2"),
            Work::ListPublication if lifecycle == "running" => points.push("T-F2"),
            Work::WriteChanges(_)
            | Work::CheckOwner
            | Work::Identify
            | Work::ListPublication
            | Work::InspectSlot { .. }
            | Work::ReadTimelineHistory { .. }
            | Work::CreateSlot { .. }
            | Work::DropSlot { .. }
            | Work::ReadBlockers { .. }
            | Work::ReadWalPosition
            | Work::WriteHeartbeat { .. }
            | Work::Monitor { .. }
            | Work::OpenStream { stream: StreamId::Main, .. }
            | Work::CloseStream { .. }
            | Work::CloseCopy { .. }
            | Work::Startup { .. } => (),
        }
        let starting = matches!(lifecycle, "initializing" | "recovering");
        if starting && *kind == FaultKind::Transport && asks_source_in_startup(work) {
            points.push("U-F14");
        }
        if let FaultKind::Destination { class: DestinationClass::Transient { .. } } = kind {
            points.push("DS-F1");
        }
        points
    }

    fn of_failed_save(&self, record: &Record, stopping: bool, points: &mut Vec<&'static str>) {
        points.extend(stopping.then_some("Q-F1"));
        let Some(before) = self.store.persisted() else { return };
        if record.write_horizon > before.write_horizon {
            points.push("X-F6");
        }
        if record.checkpoint > before.checkpoint {
            points.extend(["X-F7", "A-F5"]);
            points.extend((self.last_step() == Step::Flushed).then_some("F-F3"));
        }
        for (table, entry) in &*record.tables {
            let Some(old) = before.tables.get(table) else { continue };
            if old.phase == Phase::Copying && entry.phase.handover().is_some() {
                points.push("H-F1");
            }
            if old.phase == Phase::Copying && matches!(entry.phase, Phase::Errored { .. }) {
                points.push("K-F17");
            }
        }
    }

    /// Fault points of a stream that is lost.
    pub(in crate::world) fn loss_points(&self, stream: StreamId) -> Vec<&'static str> {
        let Some(sender) = self.source.senders.get(&stream) else { return Vec::new() };
        if stream == MAIN {
            return vec!["A-F1"];
        }
        let mut points = vec![if sender.is_inside() { "W-F2" } else { "W-F1" }];
        points.extend(self.has_closed_fence().then_some("W-F9"));
        points
    }

    /// Fault points of a stop that is asked for now.
    pub(in crate::world) fn stop_points(&self) -> Vec<&'static str> {
        let Some(view) = self.view() else { return Vec::new() };
        if view.lifecycle == "stopping" {
            return vec!["Q-F4"];
        }
        let mut points = vec!["L-F1"];
        let partly = self.source.transaction_around(view.positions.dispatched).is_some();
        let copies = view.tables.iter().any(|table| table.copy.is_some());
        if view.lifecycle == "running" && (partly || copies || self.has_closed_fence()) {
            points.push("Q-F2");
        }
        points.extend((view.lifecycle == "recovering").then_some("Q-F3"));
        points.extend(self.has_closed_fence().then_some("W-F9"));
        points.extend((copies && is_in_copy(&crash_points(self, false))).then_some("K-F12"));
        let timed = |phase: &Phase| matches!(phase, Phase::Errored { policy: Policy::Timed, .. });
        let retrying = self.process.as_ref().is_some_and(|process| process.watch.retrying);
        let waits = retrying || view.tables.iter().any(|table| timed(&table.phase));
        points.extend(waits.then_some("Y-F3"));
        points
    }

    /// Fault points of a slot that can no longer be used.
    pub(in crate::world) fn slot_points(&self, slot: &str, reason: &str) -> Vec<&'static str> {
        if slot.starts_with("walferry_copy_") {
            return vec!["I-F10"];
        }
        let copies =
            self.view().is_some_and(|view| view.tables.iter().any(|table| table.copy.is_some()));
        let again = self.created_again && copies;
        let points = [(copies, "I-F8"), (again, "I-F7"), (reason == "idle_timeout", "I-F11")];
        points.into_iter().filter(|(hit, _)| *hit).map(|(_, point)| point).collect()
    }

    /// Fault points of a promotion that has happened, `fork` being where the timelines part.
    pub(in crate::world) fn promotion_points(&self, fork: Position) -> Vec<&'static str> {
        let Some(record) = self.store.persisted() else { return Vec::new() };
        let failover = self.config.limits.policies.slot_failover;
        let slot = self.source.slots.get(&record.identity.slot);
        let horizon = record.write_horizon;
        let at_once = horizon.is_some_and(|at| at == fork || at == next(fork));
        let lowered = record.checkpoint > Some(fork) && horizon.is_some_and(|at| at <= fork);
        let points = [
            (self.is_busy(), "P-F9"),
            (self.source.timeline > 2, "P-F5"),
            (at_once || lowered, "P-F6"),
            (slot.is_none(), "P-F7"),
            (slot.is_some_and(|slot| record.checkpoint < Some(slot.confirmed)), "P-F8"),
            (!failover, "P-F11"),
            (failover && record.initial_lsn.is_some() && horizon.is_none(), "P-F12"),
        ];
        points.into_iter().filter(|(hit, _)| *hit).map(|(_, point)| point).collect()
    }

    /// Whether a promotion finds the run in one of the places that P-F9 names.
    fn is_busy(&self) -> bool {
        let Some(view) = self.view() else { return false };
        let copies = view.tables.iter().any(|table| table.copy.is_some());
        let flushes = self.working().iter().any(|(_, work)| matches!(work, Work::Flush { .. }));
        let partly = self.source.transaction_around(view.positions.dispatched).is_some();
        copies || flushes || partly || self.has_closed_fence()
    }
}

fn is_in_copy(points: &[&str]) -> bool {
    points.iter().any(|point| point.starts_with("K-F"))
}

const fn asks_source_in_startup(work: &Work<Row>) -> bool {
    matches!(
        work,
        Work::Identify
            | Work::InspectSlot { .. }
            | Work::ListSlots { .. }
            | Work::ListPublication
            | Work::CreateSlot { .. }
            | Work::DropSlot { .. }
            | Work::EnableFailover { .. }
            | Work::ReadTimelineHistory { .. }
            | Work::OpenStream { stream: StreamId::Main, .. }
    )
}
