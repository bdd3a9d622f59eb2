//! Everything that can happen to a pipeline between two of its effects.

use core::time::Duration;

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::fault::{Blame, DestinationClass, Fault, FaultKind, Origin};
use walferry_core::ids::OpId;
use walferry_core::input::Request;
use walferry_tests::world::row::Row;
use walferry_tests::world::{MAIN, World};

/// More than every budget.
const LONG: Duration = Duration::from_secs(4_000);
/// Steps within which a stop must have ended.
const STEPS: u32 = 2_000;

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blow {
    /// The process dies; what becomes of the save in flight and of accepted work.
    Crash { save: bool, survives: bool },
    /// Somebody asks for a stop.
    Stop,
    /// Somebody asks for a stop and then again.
    StopTwice,
    /// The operation that began last fails without an effect.
    Fail(DestinationClass),
    /// The same, and the destination blames the first table of the batch.
    Blame,
    /// It takes effect and reports failure.
    Doubt,
    /// Time jumps past every budget.
    Jump,
    /// The main stream is lost.
    LoseMain,
    /// A private stream is lost, or the connection that exports a snapshot.
    LoseCopy,
    /// The server dies for a moment.
    ServerDies,
}

/// Each outcome of what is in doubt when a process dies.
pub(crate) const CRASHES: [Blow; 4] = [
    Blow::Crash { save: false, survives: false },
    Blow::Crash { save: false, survives: true },
    Blow::Crash { save: true, survives: false },
    Blow::Crash { save: true, survives: true },
];

/// Everything else.
pub(crate) const OTHERS: [Blow; 11] = [
    Blow::Stop,
    Blow::StopTwice,
    Blow::Fail(DestinationClass::Transient { retry_after: None }),
    Blow::Fail(DestinationClass::Manual),
    Blow::Fail(DestinationClass::Permanent),
    Blow::Blame,
    Blow::Doubt,
    Blow::Jump,
    Blow::LoseMain,
    Blow::LoseCopy,
    Blow::ServerDies,
];

impl Blow {
    /// Falls before the effect that is due; everything else goes on.
    pub(crate) fn fall(self, world: &mut World) {
        if let Self::Crash { save, survives } = self {
            world.crash(save, |accepted| if survives { accepted } else { 0 });
            return;
        }
        world.spare();
        match self {
            Self::Crash { .. } => (),
            Self::Stop => stop(world, &[Request::Stop]),
            Self::StopTwice => stop(world, &[Request::Stop, Request::StopNow]),
            Self::Fail(class) => {
                if let Some((op, kind)) = newest(world, class) {
                    world.refuse(op, kind);
                }
            }
            Self::Blame => blame(world),
            Self::Doubt => match world.working().pop() {
                Some((op, Work::Save { .. })) => world.save_in_doubt(op),
                Some((op, work)) if is_call(&work) => {
                    world.perform_in_doubt(op, Durability::Accepted);
                }
                Some(_) | None => (),
            },
            Self::Jump => world.advance(LONG),
            Self::LoseMain => {
                let fault = Fault::new(Origin::Source, FaultKind::Transport, "reset");
                world.end_stream(MAIN, fault);
            }
            Self::LoseCopy => {
                let first = world.source.snapshots.keys().next().copied();
                if let Some((table, attempt)) = first {
                    world.lose_exporter(table, attempt);
                }
            }
            Self::ServerDies => world.crash_server(Duration::from_millis(1)),
        }
    }
}

/// The operation that began last, and how it fails.
fn newest(world: &World, class: DestinationClass) -> Option<(OpId, FaultKind)> {
    let (op, work) = world.working().pop()?;
    let of_store = matches!(work, Work::Save { .. } | Work::CheckOwner);
    let of_sink = is_call(&work) || matches!(work, Work::Startup { .. } | Work::Shutdown);
    // The driver lets go of connections in any case.
    let fails = !matches!(work, Work::CloseCopy { .. } | Work::CloseStream { .. });
    let kind = match (of_store, of_sink) {
        (true, _) => FaultKind::StoreFailed,
        (false, true) => FaultKind::Destination { class },
        (false, false) => FaultKind::Transport,
    };
    fails.then_some((op, kind))
}

fn blame(world: &mut World) {
    let Some((op, Work::WriteChanges(batch))) = world.working().pop() else { return };
    let tables: Vec<_> = batch.tables.iter().take(1).map(|entry| entry.table).collect();
    let kind = FaultKind::Destination { class: DestinationClass::Manual };
    world.refuse_blaming(op, kind, Blame::Tables { tables, no_effect_on_others: true });
}

const fn is_call(work: &Work<Row>) -> bool {
    matches!(
        work,
        Work::BeginCopy(_)
            | Work::WriteRows(_)
            | Work::FinishCopy { .. }
            | Work::WriteChanges(_)
            | Work::Flush { .. }
    )
}

/// Asks, and lets everything answer until the run has ended (L-I3).
fn stop(world: &mut World, requests: &[Request]) {
    for &request in requests {
        world.request(request);
    }
    for _ in 0..STEPS {
        if !world.is_alive() {
            return;
        }
        match world.performable().first() {
            Some(&op) => world.perform(op, Durability::Accepted),
            None => world.jump(),
        }
    }
    panic!("the stop does not end: {:?}", world.working());
}
