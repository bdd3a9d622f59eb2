//! One short scenario, two tables and three transactions of which one truncates a table, repeated
//! with a crash after every effect, with each outcome of what is in doubt then.

use std::panic::{AssertUnwindSafe, catch_unwind};

use walferry_core::batch::{Declaration, DeliveryClass, Durability};
use walferry_core::config::{Config, Limits};
use walferry_core::ids::TableId;
use walferry_core::schema::SchemaSupport;
use walferry_tests::world::dice::Dice;
use walferry_tests::world::source::{Edit, Source};
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

fn crash_after(effect: u64, order: u64, save: bool, survives: bool) {
    let mut world = world();
    world.trace.record();
    let run = catch_unwind(AssertUnwindSafe(|| {
        world.crash_before_effect(effect);
        scenario(&mut world, order);
        world.crash(save, |accepted| if survives { accepted } else { 0 });
        world.heal();
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
