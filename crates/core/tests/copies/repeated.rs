//! Batches of rows that fail for a while are sent again as they are (K-28).

use core::time::Duration;
use std::sync::Arc;

use walferry_core::batch::{CopyBatch, Durability};
use walferry_core::effect::Work;
use walferry_core::fault::{DestinationClass, Fault, FaultKind, Origin};
use walferry_core::ids::OpId;
use walferry_core::input::{Answer, Request};
use walferry_core::notice::Notice;
use walferry_core::record::{Phase, Policy};

use crate::script::{Script, T, is_range, is_rows, transient};

const MIB: u64 = 1 << 20;

/// An attempt with two batches in flight.
fn writing() -> Script {
    let mut script = Script::new(|_| ());
    let range = script.until(is_range);
    script.rows(range, 1, 9 * MIB);
    script.rows(range, 2, 9 * MIB);
    assert_eq!(script.find(is_rows).len(), 2);
    script
}

fn batch(script: &Script, op: OpId) -> Arc<CopyBatch<u32>> {
    match script.work(op) {
        Work::WriteRows(batch) => batch,
        other => panic!("{other:?}"),
    }
}

fn is_flush(work: &Work<u32>) -> bool {
    matches!(work, Work::Flush { .. })
}

/// The batch may have been taken all the same: the lane is flushed first (DS-03, DS-F3).
fn flush(script: &mut Script) {
    let flush = script.find(is_flush)[0];
    script.perform(flush);
}

fn delay(script: &mut Script) {
    // Y-08: 5 s, at most a fifth more
    script.advance(Duration::from_secs(3));
    assert!(!script.has(is_rows), "not before the delay");
    script.advance(Duration::from_secs(3));
}

// K-28, K-I2
#[test]
fn a_batch_that_failed_for_a_while_is_sent_again_as_it_was() {
    let mut script = writing();
    let [first, second] = script.find(is_rows)[..] else { panic!("two") };
    let before = batch(&script, first);
    script.fail(first, transient());
    script.perform(second);
    flush(&mut script);
    assert!(script.told(|n| matches!(n, Notice::SideTaskFailed { .. })), "it is told");
    assert_eq!(script.phase(T), Phase::Copying);
    assert!(script.pipeline.view().held_bytes >= before.bytes, "its memory is counted (B-05)");
    script.perform(script.find(is_range)[0]);
    assert!(!script.has(|work| matches!(work, Work::FinishCopy { .. })), "it is still owed");
    delay(&mut script);
    let again = script.find(is_rows)[0];
    assert_ne!(again, first, "a fresh operation (N-12)");
    assert_eq!(batch(&script, again), before, "the same rows");
    script.perform(again);
    assert_eq!(script.pipeline.view().held_bytes, 0, "B-I4");
    script.settle();
    assert!(matches!(script.phase(T), Phase::Ready { .. }));
    walferry_coverage::reached("K-I2");
}

// K-28: at most `main_retries_max` times, then as any other failure
#[test]
fn the_budget_of_a_batch_ends() {
    let mut script = Script::new(|config| config.limits.main_retries_max = 2);
    let range = script.until(is_range);
    script.rows(range, 1, 9 * MIB);
    for failures in 0..3 {
        assert_eq!(script.phase(T), Phase::Copying, "after {failures}");
        if failures > 0 {
            script.pass(20);
        }
        script.fail(script.find(is_rows)[0], transient());
        if failures < 2 {
            flush(&mut script);
        }
    }
    let phase = script.phase(T);
    assert!(matches!(phase, Phase::Errored { policy: Policy::Timed, .. }), "{phase:?}");
}

// Y-08: never before the delay that the destination asks for
#[test]
fn the_destination_may_ask_for_more_time() {
    let mut script = writing();
    let retry_after = Some(Duration::from_secs(60));
    let kind = FaultKind::Destination { class: DestinationClass::Transient { retry_after } };
    for op in script.find(is_rows) {
        script.fail(op, Fault::new(Origin::Destination, kind.clone(), ""));
    }
    flush(&mut script);
    script.advance(Duration::from_secs(59));
    assert!(!script.has(is_rows));
    script.advance(Duration::from_secs(1));
    let sequences: Vec<_> =
        script.find(is_rows).iter().map(|op| batch(&script, *op).sequence).collect();
    assert_eq!(sequences, [1, 2], "in their order");
}

// K-28: anything else fails the attempt
#[test]
fn other_failures_fail_the_attempt_at_once() {
    for (class, policy) in
        [(DestinationClass::Manual, Policy::Manual), (DestinationClass::Permanent, Policy::None)]
    {
        let mut script = writing();
        let kind = FaultKind::Destination { class };
        script.fail(script.find(is_rows)[0], Fault::new(Origin::Destination, kind, ""));
        let phase = script.phase(T);
        assert!(matches!(phase, Phase::Errored { policy: p, .. } if p == policy), "{phase:?}");
    }
}

// DS-02, DS-03: a sink that lost accepted rows fails writes until it has failed a flush
#[test]
fn what_was_accepted_is_flushed_before_anything_is_sent_again() {
    for flush_fails in [true, false] {
        let mut script = writing();
        let [first, second] = script.find(is_rows)[..] else { panic!("two") };
        script.complete(first, Ok(Answer::Written(Durability::Accepted)));
        let range = script.find(is_range)[0];
        script.rows(range, 3, 9 * MIB);
        let third = script.find(is_rows)[1];
        script.fail(second, transient());
        assert!(!script.has(is_flush), "a flush never overlaps a write");
        script.complete(third, Ok(Answer::Written(Durability::Accepted)));
        let flush = script.find(is_flush)[0];
        script.rows(range, 4, 9 * MIB);
        script.advance(Duration::from_secs(20));
        assert!(!script.has(is_rows), "nothing is sent before it is done");
        if flush_fails {
            script.fail(flush, transient());
            assert!(matches!(script.phase(T), Phase::Errored { policy: Policy::Timed, .. }));
        } else {
            script.perform(flush);
            let sequences: Vec<_> =
                script.find(is_rows).iter().map(|op| batch(&script, *op).sequence).collect();
            assert_eq!(sequences, [2, 4]);
            script.settle();
            assert!(matches!(script.phase(T), Phase::Ready { .. }));
        }
    }
}

// Q-01, Y-F3: a stop during the wait ends the attempt, its memory and its timer
#[test]
fn a_stop_does_not_wait_for_a_delayed_batch() {
    let mut script = writing();
    for op in script.find(is_rows) {
        script.fail(op, transient());
    }
    script.input(walferry_core::input::Input::Request(Request::Stop));
    script.settle();
    assert!(script.ended.is_some());
    assert_eq!(script.saved.as_ref().map(|record| record.tables[&T].tries), Some(0));
    walferry_coverage::reached("Y-F3");
}
