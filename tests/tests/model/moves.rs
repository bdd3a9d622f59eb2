//! Moves that shrink: a reference that knows nothing but rows says which moves are legal, both it and
//! the world make them, and at the end they must agree.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::collection::vec;
use proptest::prelude::*;
use walferry_core::batch::{Declaration, DeliveryClass, Durability};
use walferry_core::config::{Config, Limits};
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::ids::{StreamId, TableId};
use walferry_core::schema::SchemaSupport;
use walferry_tests::world::World;
use walferry_tests::world::source::{Edit, Source};

use super::message;

const TABLES: [TableId; 2] = [TableId(101), TableId(102)];
const ROWS: u32 = 2;
const KEYS: u32 = 3;

/// Something that may happen.
#[derive(Clone, Debug)]
enum Move {
    Commit(Vec<Edit>),
    /// The n-th work in flight ends well.
    Finish(usize, Durability),
    /// The n-th work in flight fails.
    Fail(usize),
    Deliver(StreamId, usize),
    Keepalive(StreamId),
    Lose(StreamId),
    Crash {
        save: bool,
        survives: bool,
    },
    Start,
    Stop,
    Wait,
}

/// What the tables must hold, by the plainest means.
#[derive(Debug)]
struct Reference {
    rows: BTreeMap<TableId, BTreeMap<u32, u32>>,
    last_value: u32,
}

impl Reference {
    fn new() -> Self {
        let mut reference = Self { rows: BTreeMap::new(), last_value: 0 };
        for table in TABLES {
            for key in 1..=ROWS {
                reference.put(table, key);
            }
        }
        reference
    }

    fn put(&mut self, table: TableId, key: u32) {
        self.last_value += 1;
        self.rows.entry(table).or_default().insert(key, self.last_value);
    }

    /// Everything that may happen now.
    fn legal(world: &mut World) -> Vec<Move> {
        if !world.is_alive() {
            return vec![Move::Start];
        }
        let mut moves = vec![Move::Wait, Move::Stop];
        for (index, _) in world.performable().iter().enumerate() {
            moves.push(Move::Finish(index, Durability::Durable));
            moves.push(Move::Finish(index, Durability::Accepted));
            moves.push(Move::Fail(index));
        }
        for &stream in world.source.senders.keys() {
            if world.source.has_unread(stream) {
                moves.extend([Move::Deliver(stream, 1), Move::Deliver(stream, 100)]);
            }
            moves.extend([Move::Keepalive(stream), Move::Lose(stream)]);
        }
        for key in 1..=KEYS {
            moves.push(Move::Commit(vec![Edit::Put(TABLES[0], key), Edit::Put(TABLES[1], key)]));
            moves.push(Move::Commit(vec![Edit::Delete(TABLES[1], key), Edit::Put(TABLES[1], 1)]));
        }
        let all = Edit::Truncate(TABLES.to_vec());
        if world.source.may_run(&all, None) {
            moves.push(Move::Commit(vec![Edit::Put(TABLES[0], 1), all, Edit::Put(TABLES[1], 2)]));
        }
        for (save, survives) in [(false, false), (true, true), (false, true), (true, false)] {
            moves.push(Move::Crash { save, survives });
        }
        moves
    }

    fn apply(&mut self, made: &Move) {
        let Move::Commit(edits) = made else { return };
        for edit in edits {
            match edit {
                Edit::Put(table, key) => self.put(*table, *key),
                Edit::Delete(table, key) => {
                    self.rows.entry(*table).or_default().remove(key);
                }
                Edit::Truncate(tables) => {
                    for table in tables {
                        self.rows.entry(*table).or_default().clear();
                    }
                }
                Edit::Alter(..) | Edit::Drop(_) | Edit::Message(_) => (),
            }
        }
    }
}

fn make(world: &mut World, made: &Move) {
    world.trace.line(|| format!("# {made:?}"));
    match made {
        Move::Commit(edits) => world.source.commit(edits, 0, 1, 100),
        Move::Finish(index, durability) => {
            if let Some(&op) = world.performable().get(*index) {
                world.perform(op, *durability);
            }
        }
        Move::Fail(index) => {
            if let Some(&op) = world.performable().get(*index) {
                world.refuse(op, FaultKind::Transport);
            }
        }
        Move::Deliver(stream, most) => world.deliver(*stream, *most),
        Move::Keepalive(stream) => world.keepalive(*stream, true, false),
        Move::Lose(stream) => {
            world.end_stream(*stream, Fault::new(Origin::Source, FaultKind::Transport, ""));
        }
        Move::Crash { save, survives } => {
            world.crash(*save, |accepted| if *survives { accepted } else { 0 });
        }
        Move::Start => world.start(),
        Move::Stop => world.stop(),
        Move::Wait => world.jump(),
    }
}

fn world(class: DeliveryClass) -> World {
    let config = Config {
        publication: "app".to_owned(),
        database: "app".to_owned(),
        destination: Declaration {
            id: "sim:".to_owned(),
            class,
            lanes_max: 2,
            copy_in_flight_max: 1,
            wants_messages: false,
            partial_rows: true,
            schema_changes: SchemaSupport::NONE,
        },
        until: None,
        limits: Limits {
            batch_events: 2,
            flush_batches: 2,
            idle_checkpoint_ms: 1,
            retries_max: 1_000,
            ..Limits::default()
        },
    };
    World::new(config, Source::new(2, ROWS))
}

/// Makes a legal move for each throw; most throws go to work that ends, so that things get done.
fn run(throws: &[(bool, u16)], class: DeliveryClass) -> Result<(), String> {
    let mut world = world(class);
    world.trace.record();
    let mut reference = Reference::new();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for (work, throw) in throws {
            let mut moves = Reference::legal(&mut world);
            if *work {
                moves.retain(|m| {
                    !matches!(m, Move::Crash { .. } | Move::Lose(_) | Move::Fail(_) | Move::Stop)
                });
            }
            let made = moves[usize::from(*throw) % moves.len()].clone();
            reference.apply(&made);
            make(&mut world, &made);
        }
        world.heal();
        for table in TABLES {
            let found = world.destination.durable[&table].rows();
            let found: BTreeMap<u32, Option<u32>> =
                found.into_iter().map(|(key, row)| (key, row["value"])).collect();
            let wanted: BTreeMap<u32, Option<u32>> =
                reference.rows[&table].iter().map(|(&key, &value)| (key, Some(value))).collect();
            assert_eq!(found, wanted, "table {table} (O-11)");
        }
    }));
    outcome.map_err(|panic| format!("{}\n{}", message(panic.as_ref()), world.trace.tail()))
}

// H-I5, O-1, O-3, O-11: the smallest set of moves that breaks it is what is shown
proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn legal_moves_lead_to_what_the_reference_holds(
        throws in vec((prop::bool::weighted(0.9), any::<u16>()), 0..120),
        class in prop::sample::select(vec![
            DeliveryClass::ExactlyOnce, DeliveryClass::Idempotent, DeliveryClass::Append,
        ]),
    ) {
        let outcome = run(&throws, class);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}
