//! Interleavings one by one: two tables and three transactions, one of them in fragments, around a
//! handover and its saves. Breadth first, so that the first story that breaks is the shortest; a
//! state that was seen is not looked at again.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use walferry_core::batch::{Declaration, DeliveryClass, Durability};
use walferry_core::config::{Config, Limits};
use walferry_core::effect::Work;
use walferry_core::ids::{OpId, StreamId, TableId};
use walferry_core::schema::SchemaSupport;
use walferry_tests::world::source::{Edit, Source};
use walferry_tests::world::{MAIN, World};

use super::message;

const A: TableId = TableId(101);
const B: TableId = TableId(102);
/// States of an ordinary run; `WALFERRY_SIM_STATES` looks at more.
const STATES: usize = 2_500;
/// One of so many states is run on to its end, to see that it converges.
const HEALED: u64 = 5;

/// One decision of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Commit,
    Finish(OpId, Durability),
    /// One event of a stream.
    Read(StreamId),
    Keepalive(StreamId),
    /// The process dies, and what was in doubt is there or not.
    Crash(bool),
}

fn config() -> Config {
    Config {
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
            copy_concurrency: 1,
            batch_ms: 0,
            batch_events: 3,
            flush_batches: 1,
            idle_checkpoint_ms: 1,
            retries_max: 1_000,
            ..Limits::default()
        },
    }
}

/// Table a is Ready, and the snapshot of b is about to be made: everything behind it is chosen.
fn stage() -> World {
    let mut world = World::new(config(), Source::new(2, 1));
    world.start();
    for _ in 0..100 {
        let working = world.working();
        let due = |work: &Work<_>| matches!(work, Work::OpenSnapshot { table, .. } if *table == B);
        if working.iter().any(|(_, work)| due(work)) {
            return world;
        }
        if let Some((op, _)) = working.into_iter().next() {
            world.perform(op, Durability::Durable);
        }
    }
    panic!("the copy of b never began");
}

fn transaction(number: usize) -> Vec<Edit> {
    match number {
        0 => vec![Edit::Put(B, 1)],
        // In fragments: more events than a batch takes.
        1 => vec![Edit::Put(B, 2), Edit::Put(A, 1), Edit::Put(B, 1), Edit::Put(B, 3)],
        _ => vec![Edit::Delete(B, 2), Edit::Put(A, 2)],
    }
}

fn choices(world: &mut World, committed: usize, crashes: usize) -> Vec<Choice> {
    let mut choices = Vec::new();
    if !world.is_alive() {
        return choices;
    }
    let working = world.working();
    for op in world.performable() {
        choices.push(Choice::Finish(op, Durability::Durable));
        let promises = working.iter().any(|(other, work)| {
            *other == op && matches!(work, Work::WriteChanges(_) | Work::FinishCopy { .. })
        });
        if promises {
            choices.push(Choice::Finish(op, Durability::Accepted));
        }
    }
    if committed < 3 {
        choices.push(Choice::Commit);
    }
    let streams: Vec<_> = world.source.senders.keys().copied().collect();
    for stream in streams {
        if world.source.has_unread(stream) && world.may_read(stream) {
            choices.push(Choice::Read(stream));
        } else if committed > 0 {
            choices.push(Choice::Keepalive(stream));
        }
    }
    if crashes == 0 && committed > 0 {
        choices.extend([Choice::Crash(false), Choice::Crash(true)]);
    }
    choices
}

fn choose(world: &mut World, choice: Choice, committed: &mut usize, crashes: &mut usize) {
    match choice {
        Choice::Commit => {
            // The second touches the first: the end of one is the commit of the next.
            world.source.commit(&transaction(*committed), u64::from(*committed != 1), 1, 100);
            *committed += 1;
        }
        Choice::Finish(op, durability) => world.perform(op, durability),
        Choice::Read(stream) => world.deliver(stream, 1),
        Choice::Keepalive(stream) => world.keepalive(stream, true, false),
        Choice::Crash(survives) => {
            *crashes += 1;
            world.crash(survives, |accepted| if survives { accepted } else { 0 });
            world.start();
        }
    }
}

/// A world that has made these choices, with what it may choose next and its fingerprint.
fn replay(path: &[Choice]) -> (World, Vec<Choice>, u64) {
    let mut world = stage();
    let (mut committed, mut crashes) = (0, 0);
    for &choice in path {
        choose(&mut world, choice, &mut committed, &mut crashes);
    }
    let next = choices(&mut world, committed, crashes);
    let mut hasher = DefaultHasher::new();
    format!("{:?}{:?}", world.pipeline(), world.working()).hash(&mut hasher);
    format!("{:?}{:?}{:?}", world.source, world.destination, world.store).hash(&mut hasher);
    let fingerprint = hasher.finish();
    (world, next, fingerprint)
}

// H-I5, C-I3, R-I6, O-1: handover and saves in every order, with one crash
#[test]
fn every_order_around_a_handover_is_whole() {
    let limit = std::env::var("WALFERRY_SIM_STATES").ok().and_then(|text| text.parse().ok());
    let limit: usize = limit.unwrap_or(STATES);
    let mut seen = BTreeSet::new();
    let mut queue = VecDeque::from([Vec::new()]);
    while let Some(path) = queue.pop_front() {
        let run = catch_unwind(AssertUnwindSafe(|| {
            let (mut world, next, fingerprint) = replay(&path);
            if fingerprint % HEALED == 0 && !seen.contains(&fingerprint) {
                world.heal();
            }
            (next, fingerprint)
        }));
        let (next, fingerprint) = match run {
            Ok(found) => found,
            Err(panic) => panic!("{path:?}: {}", message(panic.as_ref())),
        };
        if !seen.insert(fingerprint) || seen.len() >= limit {
            continue;
        }
        queue.extend(next.into_iter().map(|choice| [path.as_slice(), &[choice]].concat()));
    }
    assert!(seen.len() >= limit.min(STATES), "only {} states", seen.len());
    assert!(seen.len() > 1_000, "{MAIN:?} does not move: only {} states", seen.len());
}
