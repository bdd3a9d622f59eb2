//! A world that a scenario plays by hand, one step after the other.

use walferry_core::batch::{Declaration, DeliveryClass, Durability};
use walferry_core::config::{Config, Limits};
use walferry_core::effect::Work;
use walferry_core::ids::{StreamId, TableId};
use walferry_core::lsn::Position;
use walferry_core::schema::SchemaSupport;
use walferry_tests::world::row::Row;
use walferry_tests::world::source::{Edit, Source};
use walferry_tests::world::{MAIN, World};

pub(crate) const A: TableId = TableId(101);
pub(crate) const B: TableId = TableId(102);
pub(crate) const C: TableId = TableId(103);

/// A world, and the text of what happens in it.
pub(crate) struct Stage {
    pub(crate) world: World,
}

impl Stage {
    /// A world with so many tables of two rows each.
    pub(crate) fn new(tables: u32) -> Self {
        Self::with(tables, |_| ())
    }

    pub(crate) fn with(tables: u32, edit: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config {
            publication: "app".to_owned(),
            database: "app".to_owned(),
            destination: Declaration {
                id: "sim:".to_owned(),
                class: DeliveryClass::ExactlyOnce,
                lanes_max: 4,
                copy_in_flight_max: 1,
                wants_messages: false,
                partial_rows: true,
                schema_changes: SchemaSupport::NONE,
            },
            until: None,
            limits: Limits { batch_ms: 0, ..Limits::default() },
        };
        edit(&mut config);
        let mut world = World::new(config, Source::new(tables, 2));
        world.trace.record();
        Self { world }
    }

    /// A comment in the text.
    pub(crate) fn say(&mut self, text: &str) {
        self.world.trace.line(|| format!("# {text}"));
    }

    /// Commits a transaction right behind the head.
    pub(crate) fn commit(&mut self, edits: &[Edit]) {
        self.world.source.commit(edits, 1, 1, 100);
        let commit = self.world.source.wal[self.world.source.wal.len() - 1].commit;
        self.world.trace.line(|| format!("# the source commits at {commit}"));
    }

    /// Completes the oldest work, again and again, until work of a kind is in flight.
    pub(crate) fn until(&mut self, is: impl Fn(&Work<Row>) -> bool) {
        for _ in 0..200 {
            let working = self.world.working();
            if working.iter().any(|(_, work)| is(work)) {
                return;
            }
            let Some((op, _)) = working.into_iter().next() else { break };
            self.world.perform(op, Durability::Durable);
        }
        panic!("never came: {:?}", self.world.working());
    }

    /// Completes the oldest work of a kind.
    pub(crate) fn finish(&mut self, is: impl Fn(&Work<Row>) -> bool) {
        self.world.perform_first(Durability::Durable, is);
    }

    /// Completes everything but work of a kind.
    pub(crate) fn finish_all_but(&mut self, is: impl Fn(&Work<Row>) -> bool) {
        while let Some((op, _)) = self.world.working().into_iter().find(|(_, work)| !is(work)) {
            self.world.perform(op, Durability::Durable);
        }
    }

    /// The persisted write horizon.
    pub(crate) fn horizon(&self) -> Option<Position> {
        self.world.store.persisted().and_then(|record| record.write_horizon)
    }

    /// Completes everything.
    pub(crate) fn settle(&mut self) {
        self.world.settle(Durability::Durable);
    }

    /// A process that streams, with every table Ready; its text is left out.
    pub(crate) fn ready(&mut self) {
        self.world.start();
        self.settle();
        self.world.trace.take();
    }

    pub(crate) fn read_main(&mut self) {
        self.world.deliver(MAIN, 100);
    }

    pub(crate) fn read_copy(&mut self, table: TableId) {
        self.world.deliver(StreamId::Copy(table), 100);
    }

    /// The process dies; nothing that was in doubt is there afterwards.
    pub(crate) fn crash(&mut self) {
        self.world.crash(false, |_| 0);
    }

    pub(crate) fn text(&mut self) -> String {
        self.world.trace.take()
    }
}

pub(crate) fn is_save(work: &Work<Row>) -> bool {
    matches!(work, Work::Save { .. })
}
