//! One short scenario, two tables and three transactions of which one truncates a table, repeated
//! with a crash after every effect, with each outcome of what is in doubt then.

use std::panic::{AssertUnwindSafe, catch_unwind};

use walferry_core::batch::{Declaration, DeliveryClass, Durability};
use walferry_core::config::{Config, Limits};
use walferry_core::effect::Work;
use walferry_core::ids::{Lane, OpId, TableId};
use walferry_core::record::{Phase, Record};
use walferry_core::schema::SchemaSupport;
use walferry_tests::coverage::reached;
use walferry_tests::world::dice::Dice;
use walferry_tests::world::row::Row;
use walferry_tests::world::source::{Edit, Source};
use walferry_tests::world::target::Target;
use walferry_tests::world::{MAIN, World};

use super::message;

const A: TableId = TableId(101);
const B: TableId = TableId(102);
const STEPS: u32 = 110;
/// Orders in which the world answers.
const ORDERS: u64 = 5;

fn world() -> World {
    let config = Config {
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
    World::new(config, Source::new(2, 2))
}

fn transaction(number: usize) -> Vec<Edit> {
    match number {
        0 => vec![Edit::Put(A, 1), Edit::Put(B, 1), Edit::Put(A, 3)],
        1 => vec![Edit::Put(B, 4), Edit::Truncate(vec![B]), Edit::Put(A, 1), Edit::Put(B, 1)],
        _ => vec![Edit::Delete(A, 3), Edit::Put(B, 1), Edit::Put(A, 2)],
    }
}

/// Plays the scenario until its end, or until the effect before which the process dies.
fn scenario(world: &mut World, order: u64) {
    let mut dice = Dice::new(order);
    let mut committed = 0;
    world.start();
    for step in 0..STEPS {
        if world.is_doomed() {
            return;
        }
        let due = step >= 30 + 20 * u32::try_from(committed).unwrap_or(u32::MAX);
        if committed < 3 && due && world.source.tables[&B].locked_by.is_none() {
            // The commit record of the second one touches the first.
            world.source.commit(&transaction(committed), u64::from(committed != 1), 2, 100);
            committed += 1;
            continue;
        }
        let working = world.working();
        let streams: Vec<_> = world.source.senders.keys().copied().collect();
        match dice.below(10) {
            0..=5 if !working.is_empty() => {
                if let Some((op, _)) = dice.pick(&working) {
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

fn effects(order: u64) -> u64 {
    let mut world = world();
    scenario(&mut world, order);
    let effects = world.effects();
    world.heal();
    effects
}

/// The fault points at which the process stands, as far as they show from outside of it; `save` says
/// whether the save in flight takes effect, which is as good as a crash right behind it.
fn points(world: &World, save: bool) -> Vec<&'static str> {
    let working = world.working();
    let mut points = start_up_points(world, &working);
    let Some(record) = world.store.persisted() else { return points };
    let checkpoint = record.checkpoint;
    for (_, work) in &working {
        if let Work::Save { record: saving, .. } = work {
            if saving.checkpoint > checkpoint {
                points.extend(if save { ["C-F11", "X-F5"] } else { ["C-F10", "X-F4"] });
            }
            points.extend(handover_points(world, record, saving));
        }
        if let Work::CloseCopy { table, .. } = work
            && record.tables.get(table).is_some_and(|entry| entry.phase.handover().is_some())
        {
            points.push("W-F5");
        }
        let simple: [(&[&'static str], bool); 5] = [
            (&["X-F2"], matches!(work, Work::WriteChanges(batch) if batch.lane == Lane::Main)),
            (&["K-F2"], matches!(work, Work::OpenReader { .. })),
            (&["K-F4", "U-F10"], matches!(work, Work::BeginCopy(_))),
            (&["K-F6"], matches!(work, Work::WriteRows(_))),
            (&["K-F7"], matches!(work, Work::FinishCopy { .. })),
        ];
        points.extend(simple.iter().filter(|(_, at)| *at).flat_map(|(ids, _)| ids.iter()));
    }
    if world.destination.owes(Lane::Main) {
        points.extend(["C-F12", "X-F3"]);
    }
    points
}

fn start_up_points(world: &World, working: &[(OpId, Work<Row>)]) -> Vec<&'static str> {
    let mut points = Vec::new();
    let saving = working.iter().any(|(_, work)| matches!(work, Work::Save { .. }));
    let starting = working.iter().any(|(_, work)| matches!(work, Work::Startup { .. }));
    let begun = match world.store.persisted() {
        None => {
            points.push("U-F1");
            false
        }
        Some(record) if record.initial_lsn.is_none() => {
            points.push(if world.source.slots.is_empty() { "U-F2" } else { "U-F3" });
            false
        }
        Some(record) if record.tables.is_empty() => {
            points.push("U-F4");
            false
        }
        Some(record) => {
            if record.tables.values().all(|entry| entry.phase == Phase::Pending) {
                points.push(match (world.streams(), starting) {
                    (false, _) => "U-F5",
                    (true, true) => "U-F6",
                    (true, false) => "U-F7",
                });
            }
            true
        }
    };
    if saving && !begun {
        points.push("U-F11");
    }
    points
}

/// A save in flight that hands a table over.
fn handover_points(world: &World, record: &Record, saving: &Record) -> Vec<&'static str> {
    let mut points = Vec::new();
    for (table, entry) in &*saving.tables {
        let before = record.tables.get(table).and_then(|entry| entry.phase.handover());
        let (Some(handover), None) = (entry.phase.handover(), before) else { continue };
        points.push("W-F4");
        let target = world.destination.durable.get(table);
        let by_main = |target: &Target| target.keys().any(|key| !handover.covers(key.commit));
        if target.is_some_and(by_main) {
            points.push("H-F2");
        }
    }
    points
}

fn crash_after(effect: u64, order: u64, save: bool, survives: bool) {
    let mut world = world();
    world.trace.record();
    let run = catch_unwind(AssertUnwindSafe(|| {
        world.crash_before_effect(effect);
        scenario(&mut world, order);
        let points = points(&world, save);
        world.crash(save, |accepted| if survives { accepted } else { 0 });
        world.heal();
        points.into_iter().for_each(reached);
    }));
    if let Err(panic) = run {
        panic!(
            "crash before effect {effect} of order {order}, save {save}, survives {survives}: \
             {}\n{}",
            message(panic.as_ref()),
            world.trace.tail()
        );
    }
}

// U-F1..U-F7, U-F10, U-F11, C-F10..C-F12, K-F, W-F4, W-F5, H-F2, X-F2..X-F5: every one of them
#[test]
fn a_crash_after_every_effect_leaves_nothing_lost_and_nothing_doubled() {
    for order in 0..ORDERS {
        for effect in 0..effects(order) {
            for (save, survives) in [(false, false), (false, true), (true, false), (true, true)] {
                crash_after(effect, order, save, survives);
            }
        }
    }
}
