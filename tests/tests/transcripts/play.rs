//! How a scene goes on by itself, and what became of it.

use walferry_core::effect::Work;
use walferry_core::fault::FaultKind;
use walferry_core::ids::OpId;
use walferry_core::notice::Outcome;
use walferry_core::record::{Phase, Record};
use walferry_tests::world::row::Row;
use walferry_tests::world::source::Slot;

use crate::stage::Stage;

/// Steps that anything may take.
const STEPS: u32 = 1_000;

/// Everything answers and time passes until the run streams with nothing in flight, or has ended.
pub(crate) fn go_on(stage: &mut Stage) {
    for _ in 0..STEPS {
        stage.settle();
        if !stage.world.is_alive() || (is_running(stage) && stage.world.streams()) {
            return;
        }
        stage.world.jump();
    }
    panic!("it never streams: {:?}", stage.world.pipeline().map(|pipeline| pipeline.view()));
}

/// Everything answers and time passes until work of a kind is in flight.
pub(crate) fn wait(stage: &mut Stage, is: impl Fn(&Work<Row>) -> bool) {
    for _ in 0..STEPS {
        if stage.world.working().iter().any(|(_, work)| is(work)) {
            return;
        }
        match stage.world.performable().first() {
            Some(&op) => stage.world.perform(op, walferry_core::batch::Durability::Durable),
            None => stage.world.jump(),
        }
    }
    panic!("never came: {:?}", stage.world.working());
}

pub(crate) fn is_running(stage: &Stage) -> bool {
    stage.world.pipeline().is_some_and(|pipeline| pipeline.view().lifecycle == "running")
}

/// The oldest work of a kind.
pub(crate) fn find(stage: &Stage, is: impl Fn(&Work<Row>) -> bool) -> OpId {
    let found = stage.world.working().into_iter().find(|(_, work)| is(work));
    let Some((op, _)) = found else { panic!("no such work: {:?}", stage.world.working()) };
    op
}

pub(crate) fn refuse(stage: &mut Stage, kind: FaultKind, is: impl Fn(&Work<Row>) -> bool) {
    let op = find(stage, is);
    stage.world.refuse(op, kind);
}

/// With what the run has failed.
#[track_caller]
pub(crate) fn failed(stage: &mut Stage) -> FaultKind {
    match stage.world.take_outcome() {
        Some(Outcome::Failed { fault, .. }) => fault.kind,
        outcome => panic!("{outcome:?}"),
    }
}

pub(crate) fn record(stage: &Stage) -> Record {
    let Some(record) = stage.world.store.persisted() else { panic!("no record") };
    record.clone()
}

pub(crate) fn phase(stage: &Stage, table: walferry_core::ids::TableId) -> Phase {
    record(stage).tables[&table].phase.clone()
}

/// The main slot at the server.
pub(crate) fn main_slot(stage: &mut Stage) -> &mut Slot {
    let name = record(stage).identity.slot;
    let Some(slot) = stage.world.source.slots.get_mut(&name) else { panic!("no slot {name}") };
    slot
}

/// The scene has hit a fault point.
#[track_caller]
pub(crate) fn has_hit(stage: &Stage, point: &str) {
    let hits: Vec<_> = stage.world.hits().collect();
    assert!(hits.contains(&point), "{point} is not hit, but {hits:?}");
}
