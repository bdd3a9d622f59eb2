//! Short scenes, each repeated with everything that can go wrong (`blows`) before each of its
//! effects. The table of a scene says which fault points it reaches, and a scene that does not reach
//! them fails; where the others are reached stands in `directed`.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use walferry_core::batch::{Declaration, DeliveryClass, Durability};
use walferry_core::config::{Config, Limits};
use walferry_core::effect::Work;
use walferry_core::ids::TableId;
use walferry_core::policies::{PromotionLoss, SlotLoss};
use walferry_core::schema::SchemaSupport;
use walferry_tests::coverage::reached;
use walferry_tests::world::dice::Dice;
use walferry_tests::world::source::{Alter, Edit, Filled, Source};
use walferry_tests::world::{MAIN, World};

use super::blows::{Blow, CRASHES, OTHERS};
use super::message;

pub(crate) const A: TableId = TableId(101);
pub(crate) const B: TableId = TableId(102);

/// A story of two tables.
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    /// Orders in which the world answers.
    orders: u64,
    steps: u32,
    config: fn(&mut Config),
    /// What happens, at which step at the earliest.
    events: &'static [(u32, Event)],
    blows: &'static [&'static [Blow]],
    /// Fault points that it reaches.
    pub(crate) reaches: &'static [&'static str],
}

/// Something that happens in a story, as soon as no lock is in its way; whether it did.
type Event = fn(&mut World) -> bool;

fn commit(world: &mut World, edits: &[Edit], gap: u64) -> bool {
    let free = edits.iter().all(|edit| world.source.may_run(edit, None));
    if free {
        world.source.commit(edits, gap, 2, 100);
    }
    free
}

fn first(world: &mut World) -> bool {
    commit(world, &[Edit::Put(A, 1), Edit::Put(B, 1), Edit::Put(A, 3)], 1)
}

/// Its commit record touches the one before.
fn truncate(world: &mut World) -> bool {
    let edits = [Edit::Put(B, 4), Edit::Truncate(vec![B]), Edit::Put(A, 1), Edit::Put(B, 1)];
    commit(world, &edits, 0)
}

fn last(world: &mut World) -> bool {
    commit(world, &[Edit::Delete(A, 3), Edit::Put(B, 1), Edit::Put(A, 2)], 1)
}

fn add_column(world: &mut World) -> bool {
    let add = Edit::Alter(A, Alter::Add(Filled::Constant));
    commit(world, &[Edit::Put(A, 1), add, Edit::Put(A, 4)], 1)
}

fn leave(world: &mut World) -> bool {
    world.source.leave(B);
    true
}

fn join(world: &mut World) -> bool {
    world.source.join(B);
    true
}

fn leave_and_join(world: &mut World) -> bool {
    world.source.leave(A);
    world.source.join(A);
    true
}

fn drop_table(world: &mut World) -> bool {
    commit(world, &[Edit::Put(B, 1), Edit::Put(B, 2)], 1) && commit(world, &[Edit::Drop(B)], 1)
}

fn list(world: &mut World) -> bool {
    world.advance(core::time::Duration::from_secs(10));
    true
}

fn replicate(world: &mut World) -> bool {
    world.source.replicate(true);
    true
}

fn promote(world: &mut World) -> bool {
    let ready = world.streams();
    if ready {
        world.source.replicate(true);
        world.promote();
    }
    ready
}

fn lose_slot(world: &mut World) -> bool {
    let slot = world.store.persisted().map(|record| record.identity.slot.clone());
    if let Some(slot) = slot.filter(|_| world.streams()) {
        world.invalidate(&slot, "idle_timeout");
        return true;
    }
    false
}

fn fail_copy(world: &mut World) -> bool {
    let reads = |work: &Work<_>| matches!(work, Work::ReadRange { .. });
    let found = world.working().into_iter().find(|(_, work)| reads(work));
    if let Some((op, _)) = found {
        world.refuse(op, walferry_core::fault::FaultKind::Transport);
        return true;
    }
    false
}

fn stop(world: &mut World) -> bool {
    world.stop();
    true
}

const ORDINARY: [(u32, Event); 3] = [(30, first), (50, truncate), (70, last)];

/// The table: which scene reaches which fault point.
pub(crate) const SCENES: &[Scene] = &[
    Scene {
        name: "first start, two copies, three transactions",
        orders: 5,
        steps: 110,
        config: |_| (),
        events: &ORDINARY,
        blows: &[&CRASHES],
        reaches: &[
            "U-F1", "U-F2", "U-F3", "U-F4", "U-F5", "U-F6", "U-F7", "U-F10", "U-F11", "T-F1",
            "C-F10", "C-F11", "C-F12", "K-F1", "K-F2", "K-F3", "K-F4", "K-F5", "K-F6", "K-F7",
            "K-F9", "W-F3", "W-F4", "W-F5", "H-F2", "X-F2", "X-F3", "X-F4", "X-F5", "B-F1", "B-F2",
            "F-F4",
        ],
    },
    Scene {
        name: "the same, with everything but a crash",
        orders: 2,
        steps: 110,
        config: |_| (),
        events: &ORDINARY,
        blows: &[&OTHERS],
        reaches: &[
            "A-F1", "A-F2", "A-F5", "DS-F1", "DS-F2", "DS-F3", "F-F1", "F-F2", "F-F3", "F-F5",
            "H-F1", "K-F8", "K-F10", "K-F12", "L-F1", "M-F1", "Q-F2", "Q-F4", "R-F9", "R-F10",
            "U-F14", "W-F1", "W-F6", "W-F7", "X-F7", "X-F8",
        ],
    },
    Scene {
        name: "a column is added",
        orders: 2,
        steps: 110,
        config: |config| config.destination.schema_changes = SchemaSupport::ALL,
        events: &[(30, first), (50, add_column), (70, last), (80, add_column)],
        blows: &[&CRASHES, &OTHERS],
        reaches: &["D-F1", "D-F2"],
    },
    Scene {
        name: "tables leave, join and are dropped",
        orders: 1,
        steps: 130,
        config: |_| (),
        events: &[
            (40, leave),
            (41, list),
            (60, join),
            (61, list),
            (75, leave_and_join),
            (76, list),
            (90, drop_table),
            (91, list),
        ],
        blows: &[&CRASHES],
        reaches: &["T-F1", "T-F8"],
    },
    Scene {
        name: "an attempt fails",
        orders: 1,
        steps: 90,
        config: |_| (),
        events: &[(15, fail_copy), (30, first)],
        blows: &[&CRASHES, &OTHERS],
        reaches: &["Y-F1", "Y-F3", "K-F17"],
    },
    Scene {
        name: "the run stops",
        orders: 1,
        steps: 120,
        config: |_| (),
        events: &[(30, first), (50, truncate), (60, last), (70, stop)],
        blows: &[&CRASHES, &OTHERS],
        reaches: &["Q-F1", "Q-F5"],
    },
    Scene {
        name: "the source is promoted",
        orders: 1,
        steps: 130,
        config: |config| {
            config.limits.policies.slot_failover = true;
            config.limits.policies.promotion_loss = PromotionLoss::Resync;
            config.limits.horizon_step_bytes = 4_096;
        },
        events: &[(30, first), (45, replicate), (50, last), (60, promote), (80, first)],
        blows: &[&CRASHES, &OTHERS],
        reaches: &["P-F1", "P-F2", "P-F3", "P-F4", "Q-F3", "X-F1", "X-F6"],
    },
    Scene {
        name: "the main slot is lost",
        orders: 1,
        steps: 150,
        config: |config| config.limits.policies.slot_loss = SlotLoss::Recreate,
        events: &[(30, first), (50, last), (60, lose_slot), (110, first)],
        blows: &[&CRASHES, &OTHERS],
        reaches: &["I-F1", "I-F2", "I-F3", "I-F4", "I-F5", "I-F11", "Q-F3"],
    },
];

fn new_world(scene: &Scene) -> World {
    let mut config = Config {
        publication: "app".to_owned(),
        database: "app".to_owned(),
        destination: Declaration {
            id: "sim:".to_owned(),
            class: DeliveryClass::ExactlyOnce,
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
            ..Limits::default()
        },
    };
    (scene.config)(&mut config);
    let mut world = World::new(config, Source::new(2, 2));
    world.keep_budgets();
    world
}

/// Plays the story until its end, or until the effect before which a blow falls.
fn story(scene: &Scene, world: &mut World, order: u64) {
    let mut dice = Dice::new(order);
    let mut events = scene.events.iter().peekable();
    world.start();
    for step in 0..scene.steps {
        if world.is_doomed() || !world.is_alive() {
            return;
        }
        if let Some((_, event)) = events.peek().filter(|(at, _)| *at <= step)
            && event(world)
        {
            events.next();
            continue;
        }
        let working = world.performable();
        let streams: Vec<_> = world.source.senders.keys().copied().collect();
        match dice.below(10) {
            0..=5 if !working.is_empty() => {
                if let Some(op) = dice.pick(&working) {
                    let durable = dice.chance(30);
                    let answer = if durable { Durability::Durable } else { Durability::Accepted };
                    world.perform(*op, answer);
                }
            }
            6..=7 => {
                let stream = dice.pick(&streams).copied().unwrap_or(MAIN);
                world.deliver(stream, 3);
            }
            8 => {
                let stream = dice.pick(&streams).copied().unwrap_or(MAIN);
                world.keepalive(stream, true, false);
            }
            _ => world.jump(),
        }
    }
}

/// Effects of an undisturbed story.
fn effects(scene: &Scene, order: u64) -> u64 {
    let mut world = new_world(scene);
    story(scene, &mut world, order);
    let effects = world.effects();
    world.heal();
    effects
}

/// Plays it with a blow; what a judge said, if one said something.
fn disturb(
    world: &mut World,
    scene: &Scene,
    order: u64,
    effect: u64,
    blow: Blow,
) -> Option<String> {
    let run = catch_unwind(AssertUnwindSafe(|| {
        world.crash_before_effect(effect);
        story(scene, world, order);
        if world.is_alive() {
            blow.fall(world);
        }
        world.heal();
    }));
    run.err().map(|panic| message(panic.as_ref()))
}

/// Fault points that were hit on the way.
fn disturbed(scene: &Scene, order: u64, effect: u64, blow: Blow) -> BTreeSet<&'static str> {
    let mut world = new_world(scene);
    if disturb(&mut world, scene, order, effect, blow).is_some() {
        // Once more, for the story of it.
        let mut world = new_world(scene);
        world.trace.record();
        let said = disturb(&mut world, scene, order, effect, blow).unwrap_or_default();
        panic!(
            "{}: {blow:?} before effect {effect} of order {order}: {said}\n{}",
            scene.name,
            world.trace.tail()
        );
    }
    world.hits().collect()
}

fn play(name: &str) {
    let Some(scene) = SCENES.iter().find(|scene| scene.name == name) else { panic!("{name}") };
    let mut hits = BTreeSet::new();
    for order in 0..scene.orders {
        for effect in 0..effects(scene, order) {
            for blow in scene.blows.iter().copied().flatten() {
                hits.extend(disturbed(scene, order, effect, *blow));
            }
        }
    }
    let missed: Vec<_> = scene.reaches.iter().filter(|point| !hits.contains(*point)).collect();
    assert!(missed.is_empty(), "{name} does not reach {missed:?}, but {hits:?}");
}

macro_rules! scenes {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                play($name);
            }
        )*

        #[test]
        fn every_scene_is_played() {
            let played = [$($name),*];
            let all: Vec<_> = SCENES.iter().map(|scene| scene.name).collect();
            assert_eq!(all, played);
        }
    };
}

scenes! {
    crashes: "first start, two copies, three transactions",
    failures: "the same, with everything but a crash",
    schema: "a column is added",
    members: "tables leave, join and are dropped",
    attempts: "an attempt fails",
    stops: "the run stops",
    promotions: "the source is promoted",
    recreations: "the main slot is lost",
}

/// The record of a run that is about to start its destination, without what a crash may change.
fn started(world: &mut World) -> walferry_core::record::Record {
    let starts = |work: &Work<_>| matches!(work, Work::Startup { .. });
    while !world.working().iter().any(|(_, work)| starts(work)) {
        match world.performable().first() {
            Some(&op) => world.perform(op, Durability::Durable),
            None => world.jump(),
        }
    }
    let Some(record) = world.store.persisted() else { panic!("no record at startup (U-17)") };
    let mut record = record.clone();
    record.epoch = walferry_core::ids::Epoch(0);
    record.identity.slot.clear();
    (record.initial_lsn, record.checkpoint) = (None, None);
    record
}

// U-I2: but for the epoch, the place of the slot and its name, which is made before save A
#[test]
fn a_crash_in_start_up_leads_to_the_same_record() {
    let scene = &SCENES[0];
    let mut whole = new_world(scene);
    whole.start();
    let wanted = started(&mut whole);
    for effect in 0..whole.effects() {
        for blow in CRASHES {
            let mut world = new_world(scene);
            world.crash_before_effect(effect);
            world.start();
            while !world.is_doomed() {
                let Some(&op) = world.performable().first() else { break };
                world.perform(op, Durability::Durable);
            }
            blow.fall(&mut world);
            world.start();
            assert_eq!(started(&mut world), wanted, "{blow:?} before effect {effect} (U-I2)");
            reached("U-I2");
        }
    }
}
