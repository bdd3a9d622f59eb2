//! The end of every scenario: faults and load have ended, and everything must converge (O-11).

use core::time::Duration;

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::ids::StreamId;
use walferry_core::record::Phase;

use super::World;
use super::source::table_name;

/// Virtual time that convergence may take.
const HEAL: Duration = Duration::from_secs(30 * 60);
/// Steps that convergence may take, so that a busy loop shows.
const STEPS: u32 = 20_000;

impl World {
    /// Runs on without faults until nothing is left to do, and compares everything.
    ///
    /// # Panics
    /// If that does not happen within half an hour of virtual time, or something differs.
    pub fn heal(&mut self) {
        self.crash_at = None;
        self.drain();
        let begun = self.now;
        for _ in 0..STEPS {
            if self.is_quiet() {
                self.compare();
                return;
            }
            assert!(self.now.since(begun) <= HEAL, "no convergence (O-11): {}", self.picture());
            self.heal_step();
        }
        panic!("no convergence in {STEPS} steps (O-11): {}", self.picture());
    }

    fn heal_step(&mut self) {
        if !self.is_alive() {
            self.start();
            return;
        }
        if let Some((op, _)) = self.working().into_iter().next() {
            self.perform(op, Durability::Accepted);
            return;
        }
        let streams: Vec<StreamId> = self.source.senders.keys().copied().collect();
        for stream in streams {
            if self.source.has_unread(stream) && self.may_read(stream) {
                self.deliver(stream, 1_000);
                return;
            }
            let asked = self.source.senders.get(&stream).is_some_and(|sender| sender.reply_due);
            if asked && self.may_read(stream) {
                self.keepalive(stream, true, false);
                return;
            }
        }
        self.jump();
    }

    /// Whether everything is Ready, saved and confirmed, and nothing is owed.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let Some(record) = self.store.persisted() else { return false };
        let last = self.source.wal.last().map(|transaction| transaction.end);
        let ready = record.tables.values().all(|e| matches!(e.phase, Phase::Ready { .. }));
        let all = record.tables.len() == self.source.tables.len();
        let confirmed = self.source.slots.get(&record.identity.slot).map(|slot| slot.confirmed);
        let idle = self.working().iter().all(|(_, work)| matches!(work, Work::Monitor { .. }));
        self.is_alive()
            && self.streams()
            && ready
            && all
            && idle
            && record.checkpoint >= last
            && confirmed == record.checkpoint
    }

    /// The destination equals the source, and nothing is left behind.
    fn compare(&self) {
        self.judge();
        for (&table, found) in &self.source.tables {
            let entry = self.store.persisted().and_then(|record| record.tables.get(&table));
            let stamp = entry.map(|entry| entry.stamp.membership);
            assert_eq!(stamp, Some(found.membership), "stamp of {} (T-11)", table_name(table));
            let target = self.destination.durable.get(&table).map(|target| target.rows());
            assert_eq!(target.as_ref(), Some(&found.rows), "table {}", table_name(table));
        }
        let copies = self.source.slots.values().filter(|slot| slot.temporary).count();
        assert_eq!(copies, 0, "copy slots are left (K-I4)");
        assert!(self.source.snapshots.is_empty(), "snapshots are left");
        let views = self.pipeline().map(|pipeline| pipeline.view().held_bytes);
        assert_eq!(views, Some(0), "memory is still charged (B-I4)");
    }

    fn picture(&self) -> String {
        let view = self.pipeline().map(|pipeline| pipeline.view());
        format!("{view:#?}, working {:?}, persisted {:?}", self.working(), self.store.persisted())
    }
}
