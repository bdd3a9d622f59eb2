//! A source that was promoted (group P), and the write horizon that decides whether the pipeline may
//! follow.

use core::time::Duration;

use walferry_core::config::Config;
use walferry_core::effect::Work;
use walferry_core::fault::FaultKind;
use walferry_core::ids::{Lane, StreamId};
use walferry_core::input::{Answer, Input, Request};
use walferry_core::notice::Notice;
use walferry_core::policies::PromotionLoss;
use walferry_core::record::{Phase, Record};
use walferry_core::source::TimelineSwitch;
use walferry_coverage::reached;

use crate::script::{Script, T, U, at, is_save, source_fault, transaction, transient};

fn failover(config: &mut Config) {
    config.limits.policies.slot_failover = true;
}

fn is_write(work: &Work<u32>) -> bool {
    matches!(work, Work::WriteChanges(_))
}

fn is_snapshot(work: &Work<u32>) -> bool {
    matches!(work, Work::OpenSnapshot { .. })
}

fn is_change(work: &Work<u32>) -> bool {
    is_save(work) || matches!(work, Work::DropSlot { .. } | Work::CreateSlot { .. })
}

/// A pipeline that has streamed up to 202, stopped in order.
fn stopped() -> Record {
    let mut script = Script::new(failover);
    script.settle();
    script.head = 250;
    script.deliver(StreamId::Main, transaction(200, T));
    script.settle();
    script.input(Input::Request(Request::Stop));
    script.settle();
    let record = script.record().clone();
    assert_eq!((record.checkpoint, record.write_horizon), (Some(at(202)), Some(at(202))), "X-05");
    record
}

/// The next start, on a timeline that parted there.
fn promoted(record: Record, fork: u64, edit: impl FnOnce(&mut Config)) -> Script {
    let mut script = Script::resumed(Some(record), edit);
    script.timeline = 2;
    script.history = vec![TimelineSwitch { parent: 1, at: at(fork) }];
    script.head = 900;
    script
}

// P-02, P-04, P-06, P-07, P-I2, P-F6: one save takes the pipeline to the new timeline; equality is
// safe
#[test]
fn a_promotion_is_followed_by_one_save() {
    let before = stopped();
    let mut script = promoted(before.clone(), 202, failover);
    let save = script.until(is_save);
    assert!(script.asked(|work| matches!(work, Work::ReadTimelineHistory { timeline: 2 })));
    assert!(script.asked(|work| matches!(work, Work::InspectSlot { .. })), "P-04 comes before");
    script.perform(save);
    let after = script.record().clone();
    assert_eq!(after.identity.timeline, 2);
    assert_eq!((after.checkpoint, after.write_horizon), (before.checkpoint, before.write_horizon));
    assert_eq!(after.tables[&T].phase, before.tables[&T].phase, "keeps its handover");
    script.settle();
    let told =
        |n: &Notice| matches!(n, Notice::Promoted { from: 1, to: 2, fork, .. } if *fork == at(202));
    assert!(script.told(told));
    assert!(script.asked(|work| matches!(work, Work::Startup { .. })));
    assert!(!script.asked(|work| matches!(work, Work::BeginCopy(_))), "nothing is copied again");
    reached("P-I2");
}

// P-06, P-I4, P-F6, P-F12: the sink may hold what this timeline does not have
#[test]
fn a_horizon_beyond_the_fork_is_refused_without_a_change() {
    let mut unknown = stopped();
    unknown.write_horizon = None;
    for (record, fork) in [(stopped(), 201), (unknown, 800)] {
        let mut script = promoted(record, fork, failover);
        script.settle();
        let failed = script.failed();
        assert!(matches!(failed, Some(FaultKind::HorizonBeyondFork { .. })), "{failed:?}");
        assert!(!script.asked(is_change));
    }
    reached("P-I4");
    reached("P-F6");
    reached("P-F12");
}

// P-09: with resync the first save of the re-creation carries the new timeline
#[test]
fn a_horizon_beyond_the_fork_may_be_resynced() {
    let mut script = promoted(stopped(), 201, |config| {
        failover(config);
        config.limits.policies.promotion_loss = PromotionLoss::Resync;
    });
    let save = script.until(is_save);
    script.perform(save);
    assert_eq!((script.record().recreate, script.record().identity.timeline), (true, 2));
    script.settle();
    assert_eq!(script.phase(T), Phase::Ready { handover: at(900) });
    assert!(!script.record().recreate);
}

// P-02, P-F10: another timeline that does not descend from the recorded one is another source
#[test]
fn a_timeline_that_is_no_descendant_is_refused() {
    for history in [Vec::new(), vec![TimelineSwitch { parent: 3, at: at(500) }]] {
        let mut script = promoted(stopped(), 500, failover);
        script.history = history;
        script.settle();
        let failed = script.failed();
        assert!(
            matches!(failed, Some(FaultKind::IdentityMismatch { field: "timeline", .. })),
            "{failed:?}"
        );
        assert!(!script.asked(is_change));
    }
}

// P-04, P-F7: a slot that did not come along is never replaced silently
#[test]
fn a_slot_that_was_not_synchronised_is_refused() {
    let mut script = promoted(stopped(), 300, failover);
    script.slots.clear();
    script.settle();
    let failed = script.failed();
    assert!(matches!(failed, Some(FaultKind::SlotMissing { .. })), "{failed:?}");
    assert!(!script.asked(is_change));
    // One without the failover property would not survive the next one.
    let mut script = promoted(stopped(), 300, failover);
    script.slots.values_mut().for_each(|slot| slot.failover = false);
    script.settle();
    let failed = script.failed();
    assert!(matches!(failed, Some(FaultKind::SlotForeign { .. })), "{failed:?}");
    reached("P-F7");
}

/// T streams and owes 202, a copy of U begins, and the source is on another timeline.
fn promoted_while_streaming() -> Script {
    let mut script = Script::new(|config| {
        failover(config);
        // Nothing but the promotion makes it flush.
        config.limits.flush_ms = 60_000;
    });
    script.settle();
    script.tables.push(U);
    script.head = 250;
    script.pass(10);
    script.until(is_snapshot);
    script.deliver(StreamId::Main, transaction(200, T));
    script.perform(script.find(is_save)[0]);
    let write = script.find(is_write)[0];
    let accepted = walferry_core::batch::Durability::Accepted;
    script.complete(write, Ok(Answer::Written(accepted)));
    script.started.clear();
    script.timeline = 2;
    script.history = vec![TimelineSwitch { parent: 1, at: at(300) }];
    script
}

fn follows_without_a_second_startup(script: &mut Script) {
    script.settle();
    assert_eq!(script.record().identity.timeline, 2);
    assert!(!script.asked(|work| matches!(work, Work::Startup { .. })), "U-00");
    assert_eq!(script.pipeline.view().lifecycle, "running");
}

// S-07, P-11: seen by a copy: what is owed is flushed and saved with the exact horizon before start-up
// is entered again, the try is given back, and the destination stays
#[test]
fn a_promotion_seen_while_streaming_starts_over_behind_a_flush() {
    let mut script = promoted_while_streaming();
    script.perform(script.find(is_snapshot)[0]);
    let flush = script.until(|work| matches!(work, Work::Flush { lane: Lane::Main }));
    script.perform(flush);
    script.until(|work| matches!(work, Work::ReadTimelineHistory { timeline: 2 }));
    let record = script.record().clone();
    assert_eq!(record.identity.timeline, 1, "nothing of the new timeline yet");
    assert_eq!((record.checkpoint, record.write_horizon), (Some(at(202)), Some(at(202))), "X-05");
    assert_eq!((&record.tables[&U].phase, record.tables[&U].tries), (&Phase::Pending, 0), "Y-10");
    follows_without_a_second_startup(&mut script);
}

// X-13, P-11: seen while the main stream is opened again: what was owed counts for no position any
// more, and for the horizon all the same
#[test]
fn a_promotion_seen_by_a_re_opening_keeps_the_horizon_of_what_was_offered() {
    let mut script = promoted_while_streaming();
    script.end_stream(StreamId::Main, source_fault(FaultKind::Transport));
    script.advance(Duration::from_secs(7));
    let flush = script.until(|work| matches!(work, Work::Flush { lane: Lane::Main }));
    script.perform(flush);
    script.until(|work| matches!(work, Work::ReadTimelineHistory { timeline: 2 }));
    let record = script.record().clone();
    assert_eq!((record.checkpoint, record.write_horizon), (Some(at(100)), Some(at(202))), "X-05");
    follows_without_a_second_startup(&mut script);
}

// X-04, X-I1: nothing is offered before a horizon at or past it is saved; X-05: exact once idle
#[test]
fn the_horizon_is_saved_before_a_batch_is_offered() {
    let mut script = Script::new(|config| {
        failover(config);
        config.limits.horizon_step_bytes = 4_096;
    });
    script.settle();
    assert_eq!(script.record().write_horizon, Some(at(100)));
    script.deliver(StreamId::Main, transaction(200, T));
    assert!(!script.has(is_write), "not before the save");
    let save = script.find(is_save)[0];
    script.perform(save);
    assert_eq!(script.record().write_horizon, Some(at(4_096)), "reserved up to the step");
    script.deliver(StreamId::Main, transaction(300, T));
    script.settle();
    assert_eq!(script.record().write_horizon, Some(at(302)), "exact, with nothing in flight");
    reached("X-I1");
}

// X-I2: without failover no save is made for it
#[test]
fn without_failover_there_is_no_horizon() {
    let mut script = Script::new(|_| ());
    script.settle();
    script.started.clear();
    script.deliver(StreamId::Main, transaction(200, T));
    assert!(script.has(is_write) && !script.asked(is_save));
    assert_eq!(script.record().write_horizon, None);
    reached("X-I2");
}

// P-11, P-F4: what was accepted could neither be kept nor be judged: the run ends, nothing is changed
#[test]
fn a_flush_that_fails_on_the_way_back_ends_the_run() {
    let mut script = promoted_while_streaming();
    script.perform(script.find(is_snapshot)[0]);
    let flush = script.until(|work| matches!(work, Work::Flush { lane: Lane::Main }));
    script.fail(flush, transient());
    script.settle();
    assert!(matches!(script.failed(), Some(FaultKind::FlushFailed { .. })));
    let record = script.record();
    assert_eq!((record.identity.timeline, record.checkpoint), (1, Some(at(100))));
    assert!(!script.asked(|work| matches!(work, Work::Shutdown)), "Q-06");
}
