//! The end of every scenario: faults and load have ended, and everything must converge (O-11).

use core::time::Duration;

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::ids::{Lane, StreamId, TableId};
use walferry_core::record::Phase;

use super::World;
use super::source::table_name;
use super::target::{NamedRows, Target};
use crate::coverage::reached;

/// Virtual time that convergence may take.
const HEAL: Duration = Duration::from_secs(30 * 60);
/// Time between two looks of the operator.
const OPERATOR: Duration = Duration::from_secs(60);
/// Steps that convergence may take, so that a busy loop shows.
const STEPS: u32 = 20_000;

impl World {
    /// Runs on without faults until nothing is left to do, and compares everything.
    ///
    /// # Panics
    /// If that does not happen within half an hour of virtual time, or something differs.
    pub fn heal(&mut self) {
        self.crash_at = None;
        self.heal_surroundings();
        self.in_peace = true;
        self.drain();
        let begun = self.now;
        for _ in 0..STEPS {
            if self.is_quiet() {
                self.compare();
                reached("O-11");
                self.in_peace = false;
                return;
            }
            assert!(self.now.since(begun) <= HEAL, "no convergence (O-11): {}", self.picture());
            self.heal_step();
        }
        panic!("no convergence in {STEPS} steps (O-11): {}", self.picture());
    }

    /// Nothing of the surroundings is broken any more: what runs ends, nobody else holds a slot.
    pub fn heal_surroundings(&mut self) {
        if self.source.is_left_behind() {
            self.reach_old_primary();
        }
        for xid in self.source.running() {
            self.source.commit_open(xid, 1, 1, 100);
        }
        for slot in self.source.slots.values_mut() {
            slot.held_until = None;
        }
        self.source.down_until = None;
        self.source.in_recovery = false;
        if self.source.publication.is_none() {
            self.source.create_publication();
        }
        self.unhang();
    }

    fn heal_step(&mut self) {
        if !self.is_alive() {
            self.answer_refusal();
            if !self.bring_back_tables() {
                self.start();
            }
            return;
        }
        if let Some(op) = self.performable().into_iter().next() {
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
        if self.now >= self.operator_at && self.is_running() && self.bring_back_tables() {
            // A person looks again after a while.
            self.operator_at = self.now.after(OPERATOR);
            return;
        }
        self.jump();
        // A server sends a keepalive by itself now and then.
        if self.streams() && self.may_read(super::MAIN) {
            self.keepalive(super::MAIN, true, false);
        }
    }

    fn is_running(&self) -> bool {
        self.pipeline().is_some_and(|pipeline| pipeline.view().lifecycle == "running")
    }

    fn copy_slots(&self) -> usize {
        self.source.slots.keys().filter(|name| name.starts_with("walferry_copy_")).count()
    }

    /// Whether everything is Ready, saved and confirmed, and nothing is owed.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.unrest().is_none()
    }

    /// The first thing that O-11 wants and that is not so yet.
    fn unrest(&self) -> Option<&'static str> {
        let Some(record) = self.store.persisted() else { return Some("no record is saved") };
        let slot = self.source.slots.get(&record.identity.slot);
        let seen = |(table, stamp): (_, u32)| {
            self.source.tables.get(table).is_some_and(|found| found.member == Some(stamp))
        };
        let stamps = record.tables.iter().map(|(table, entry)| (table, entry.stamp.membership));
        let conditions = [
            (self.is_running() && self.streams(), "the main stream does not run"),
            (self.copy_slots() == 0, "a copy slot is left"),
            (
                record.tables.values().all(|e| matches!(e.phase, Phase::Ready { .. })),
                "a table is not Ready",
            ),
            (
                record.tables.keys().copied().eq(self.source.members()),
                "record and publication differ",
            ),
            (stamps.into_iter().all(seen), "a membership has changed"),
            (self.working().iter().all(|(_, work)| is_side_task(work)), "work is in flight"),
            (
                record.tombstones.values().all(|t| Some(t.absent_at) >= record.checkpoint),
                "a tombstone is below the checkpoint",
            ),
            (self.pipeline().is_none_or(|p| p.view().held_bytes == 0), "memory is still charged"),
            (self.owed().is_none(), "work is still owed"),
            (record.checkpoint >= self.source.last_end(), "a commit is not behind the checkpoint"),
            (
                slot.map(|slot| slot.confirmed) == record.checkpoint,
                "the checkpoint is not confirmed",
            ),
        ];
        conditions.into_iter().find(|(holds, _)| !holds).map(|(_, what)| what)
    }

    /// A lane that owes something to a table that is there.
    fn owed(&self) -> Option<Lane> {
        let members = self.source.members();
        self.destination.owing_knowingly().into_iter().find(|lane| match lane {
            Lane::Main => true,
            Lane::Table(table) => members.contains(table),
        })
    }

    /// The destination equals the source, and nothing is left behind.
    fn compare(&self) {
        self.judge();
        for table in self.source.members() {
            let found = &self.source.tables[&table];
            let entry = self.store.persisted().and_then(|record| record.tables.get(&table));
            let stamp = entry.map(|entry| entry.stamp.membership);
            assert_eq!(stamp, found.member, "stamp of {} (T-11)", table_name(table));
            let Some(target) = self.destination.durable.get(&table) else {
                panic!("table {} has no target", table_name(table));
            };
            let foreign = target.foreign(table, &self.source);
            assert_eq!(foreign, None, "an event of {} from nowhere (O-2, O-6)", table_name(table));
            reached("O-2");
            if self.source.timeline > 1 {
                reached("O-6");
            }
            if !target.adopted && !self.reported.contains(&table) {
                self.compare_rows(table, target);
            }
        }
        assert_eq!(self.copy_slots(), 0, "copy slots are left (K-I4)");
        assert!(self.source.snapshots.is_empty(), "snapshots are left: {}", self.picture());
        let view = self.pipeline().map(|pipeline| pipeline.view());
        let held = view.as_ref().map(|view| view.held_bytes);
        assert_eq!(held, Some(0), "memory is still charged (B-I4)");
        reached("B-I4");
        assert_eq!(view.map(|view| view.lifecycle), Some("running"), "O-11");
        assert!(!self.has_closed_fence(), "a fence is still closed (O-11)");
        assert_eq!(self.owed(), None, "work is still owed (O-11)");
        let ours = self.store.persisted().map(|record| record.identity.slot.clone());
        let main = self.source.slots.keys().filter(|name| Some(*name) == ours.as_ref()).count();
        assert_eq!(main, 1, "main slots of this record (U-I4)");
        reached("U-I4");
    }

    fn compare_rows(&self, table: TableId, target: &Target) {
        let found = &self.source.tables[&table];
        let shape = found.shape();
        let mut wanted = NamedRows::new();
        for (key, cells) in &found.rows {
            let named =
                shape.columns.iter().skip(1).map(|column| {
                    (column.name.clone(), cells.get(&column.number).copied().flatten())
                });
            wanted.insert(*key, named.collect());
        }
        let mut rows = target.rows();
        // What was never given a value is NULL; a column that no row has shown yet may be missing.
        let known: Vec<_> = shape.columns.iter().skip(1).map(|c| c.name.clone()).collect();
        for row in rows.values_mut() {
            for name in &known {
                row.entry(name.clone()).or_insert(None);
            }
        }
        if same_shape(target, found) && !found.is_unclear_since(target.from) {
            assert_eq!(rows, wanted, "table {}", table_name(table));
        } else {
            let keys: Vec<_> = rows.keys().collect();
            assert_eq!(keys, wanted.keys().collect::<Vec<_>>(), "table {}", table_name(table));
        }
        reached("H-I5");
        reached("X-I6");
        reached("D-I3");
    }

    fn picture(&self) -> String {
        let view = self.pipeline().map(|pipeline| pipeline.view());
        let (unrest, working) = (self.unrest(), self.working());
        format!("{unrest:?}, working {working:?}, {view:?}, persisted {:?}", self.store.persisted())
    }
}

/// Work that a quiet pipeline does now and then.
const fn is_side_task(work: &Work<super::row::Row>) -> bool {
    matches!(work, Work::Monitor { .. } | Work::ListPublication | Work::WriteHeartbeat { .. })
}

/// A change of shape that no row has followed is not known yet (D-08).
fn same_shape(target: &Target, found: &super::source::Table) -> bool {
    let names = |schema: &walferry_core::schema::TableSchema| -> Vec<String> {
        schema.columns.iter().map(|column| column.name.clone()).collect()
    };
    names(&target.shape()) == names(&found.shape())
}
