//! The source turns out to be another one than that of the record (S).

use walferry_core::effect::Work;
use walferry_core::fault::{Fault, FaultKind};
use walferry_core::input::{Answer, Input};
use walferry_core::notice::Outcome;
use walferry_core::source::{ReaderFacts, SlotReport, SourceSeen};
use walferry_tests::coverage::reached;
use walferry_tests::world::row::Row;

use crate::stage::{A, Stage, is_save};

fn another_cluster(stage: &Stage) -> SourceSeen {
    SourceSeen { system_id: "8".to_owned(), ..stage.world.source.seen() }
}

/// Answers the oldest work of a kind by hand.
fn answer(stage: &mut Stage, is: impl Fn(&Work<Row>) -> bool, answer: Answer) {
    let found = stage.world.working().into_iter().find(|(_, work)| is(work));
    let Some((op, _)) = found else { panic!("no such work: {:?}", stage.world.working()) };
    stage.world.handle(Input::Completed { op, result: Ok(answer) });
}

#[track_caller]
fn ended_by_the_identity(stage: &mut Stage) {
    // nothing but the last save is waited for.
    while stage.world.is_alive() {
        stage.finish(is_save);
    }
    let outcome = stage.world.take_outcome();
    let Some(Outcome::Failed { fault: Fault { kind, .. }, .. }) = &outcome else {
        panic!("{outcome:?}");
    };
    let FaultKind::IdentityMismatch { expected, found, .. } = kind else { panic!("{kind}") };
    assert!(expected.contains('7') && found.contains('8'), "{kind}");
}

// S-F1, S-I1, S-06: the record and the destination stay as they were
#[test]
fn the_source_is_replaced_between_two_connections_of_a_start() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.crash();
    let before = stage.world.store.persisted().cloned();
    stage.world.start();
    stage.until(|work| matches!(work, Work::InspectSlot { .. }));
    let seen = another_cluster(&stage);
    let report = SlotReport { seen, ..stage.world.source.report("") };
    answer(&mut stage, |work| matches!(work, Work::InspectSlot { .. }), Answer::Slot(report));
    ended_by_the_identity(&mut stage);
    assert_eq!(stage.world.store.persisted(), before.as_ref());
    let text = stage.text();
    assert!(!text.contains("start destination"), "{text}");
    reached("S-F1");
    reached("S-I1");
}

// S-F2, S-06, K-23
#[test]
fn the_source_is_replaced_between_the_snapshot_and_its_reader() {
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::OpenReader { .. }));
    let seen = another_cluster(&stage);
    let facts = ReaderFacts { seen, published: true, filter: None, heaps: Vec::new() };
    answer(&mut stage, |work| matches!(work, Work::OpenReader { .. }), Answer::Reader(facts));
    ended_by_the_identity(&mut stage);
    assert!(!stage.world.destination.durable.contains_key(&A), "nothing of it was written");
    reached("S-F2");
}
