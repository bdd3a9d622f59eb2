//! What happens to the servers around a process, and what of it the process is told at once.

use core::time::Duration;

use walferry_core::effect::Work;
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::ids::{Attempt, OpId, StreamId, TableId};

use super::World;
use crate::coverage::reached;

impl World {
    /// Ends every stream and every operation of the source, as a lost server does.
    fn drop_connections(&mut self) {
        let streams: Vec<(StreamId, _)> =
            self.source.senders.iter().map(|(&id, sender)| (id, sender.session)).collect();
        self.source.disconnect_all();
        for (stream, session) in streams {
            let fault = Fault::new(Origin::Source, FaultKind::Transport, "");
            let input = walferry_core::input::Input::StreamEnded { stream, session, fault };
            self.handle(input);
        }
        for op in self.asking_source() {
            self.refuse(op, FaultKind::Transport);
        }
    }

    fn asking_source(&self) -> Vec<OpId> {
        let asks = |work: &Work<_>| {
            !matches!(
                work,
                Work::Save { .. }
                    | Work::CheckOwner
                    | Work::Startup { .. }
                    | Work::Shutdown
                    | Work::BeginCopy(_)
                    | Work::WriteRows(_)
                    | Work::FinishCopy { .. }
                    | Work::WriteChanges(_)
                    | Work::Flush { .. }
                    | Work::CloseCopy { .. }
                    | Work::CloseStream { .. }
            )
        };
        self.working().into_iter().filter(|(_, work)| asks(work)).map(|(op, _)| op).collect()
    }

    /// The server dies and comes back (PG-07).
    pub fn crash_server(&mut self, down: Duration) {
        self.trace.line(|| "--- the server crashes".to_owned());
        let streams = self.source.senders.clone();
        let replays = streams.keys().any(|stream| *stream != super::MAIN);
        self.source.crash(down);
        self.source.senders = streams;
        self.drop_connections();
        reached("PG-07");
        self.hit(["A-F2"]);
        self.hit(replays.then_some("W-F7"));
    }

    /// The standby takes over (P).
    pub fn promote(&mut self) {
        let streams = self.source.senders.clone();
        let Some(fork) = self.source.promote() else { return };
        self.trace.line(|| format!("--- the standby takes over at {fork}"));
        self.destination.forget_beyond(fork);
        let points = self.promotion_points(fork);
        self.source.senders = streams;
        self.drop_connections();
        self.hit(points);
    }

    /// Connections reach the primary from before the promotion (P-F10), until they do not.
    pub fn reach_old_primary(&mut self) -> bool {
        let streams = self.source.senders.clone();
        if !self.source.visit_old_primary() {
            return false;
        }
        self.trace.line(|| "--- connections reach another primary".to_owned());
        self.source.senders = streams;
        self.drop_connections();
        self.hit(["P-F10"]);
        true
    }

    /// A slot can no longer be used; its stream ends.
    pub fn invalidate(&mut self, slot: &str, reason: &'static str) {
        self.trace.line(|| format!("--- the slot is lost: {reason}"));
        let streams = self.source.senders.iter().filter(|(_, sender)| sender.slot == slot);
        let streams: Vec<StreamId> = streams.map(|(&id, _)| id).collect();
        let senders = self.source.senders.clone();
        let points = self.slot_points(slot, reason);
        self.source.checkpoint(Some((slot, reason)));
        self.source.senders = senders;
        for stream in streams {
            let fault = Fault::new(Origin::Source, super::source::server_error(*b"57P01"), "");
            self.end_stream(stream, fault);
        }
        self.hit(points);
    }

    /// The exporting connection of an attempt is lost.
    pub fn lose_exporter(&mut self, table: TableId, attempt: Attempt) {
        let stream = StreamId::Copy(table);
        if self.source.senders.contains_key(&stream) {
            self.end_stream(stream, Fault::new(Origin::Source, FaultKind::Transport, ""));
        }
        self.source.lose_exporter(table, attempt);
        self.hit(["K-F10"]);
    }

    /// The connection of a reader is lost.
    pub fn lose_reader(&mut self, table: TableId, attempt: Attempt, reader: u32) {
        if self.source.lose_reader(table, attempt, reader) {
            self.hit(["K-F11"]);
        }
    }

    /// Of what the sink has accepted a suffix of each lane is lost (DS-03).
    pub fn lose_accepted(&mut self, keeps: impl FnMut(usize) -> usize) {
        let source = self.source.on_timeline(self.timeline()).unwrap_or(&self.source);
        self.destination.lose_accepted(source, keeps);
    }

    /// A call that was given up arrives after all (DS-12).
    pub fn late_call(&mut self) {
        let source = self.source.on_timeline(self.timeline()).unwrap_or(&self.source);
        self.destination.comes_late(source);
    }

    /// Lets time pass while the source is down and no process lives; whether it was down.
    pub fn wait_for_source(&mut self) -> bool {
        let Some(until) = self.source.down_until.filter(|until| self.now < *until) else {
            return false;
        };
        let by = until.since(self.now);
        self.advance(by);
        true
    }
}
