//! A main slot that is lost (group I): refused, or created again with every table copied anew.

use core::time::Duration;

use walferry_core::config::Config;
use walferry_core::effect::Work;
use walferry_core::fault::FaultKind;
use walferry_core::ids::{Lane, StreamId};
use walferry_core::input::{Answer, Input, Request};
use walferry_core::notice::Notice;
use walferry_core::policies::SlotLoss;
use walferry_core::record::{Phase, Record};
use walferry_coverage::reached;

use crate::script::{Script, T, at, is_save, transaction};

fn recreating(config: &mut Config) {
    config.limits.policies.slot_loss = SlotLoss::Recreate;
}

fn is_drop(work: &Work<u32>) -> bool {
    matches!(work, Work::DropSlot { .. })
}

fn is_create(work: &Work<u32>) -> bool {
    matches!(work, Work::CreateSlot { .. })
}

fn is_startup(work: &Work<u32>) -> bool {
    matches!(work, Work::Startup { .. })
}

fn is_destination_data(work: &Work<u32>) -> bool {
    matches!(
        work,
        Work::BeginCopy(_) | Work::WriteRows(_) | Work::WriteChanges(_) | Work::Flush { .. }
    )
}

fn streaming() -> Record {
    let mut script = Script::new(|_| ());
    script.settle();
    script.record().clone()
}

fn lose(script: &mut Script) {
    let name = script.main_slot();
    if let Some(slot) = script.slots.get_mut(&name) {
        slot.wal_status = Some("lost".to_owned());
    }
}

fn steps(script: &Script) -> Vec<&'static str> {
    let step = |work: &Work<u32>| match work {
        Work::Save { record, .. } if record.recreate => Some("R1"),
        Work::Save { .. } => Some("save"),
        Work::CheckOwner => Some("check"),
        Work::DropSlot { .. } => Some("drop"),
        Work::CreateSlot { .. } => Some("create"),
        Work::OpenStream { stream: StreamId::Main, .. } => Some("open"),
        Work::BeginCopy(_) => Some("begin"),
        _ => None,
    };
    script.started.iter().filter_map(step).collect()
}

// I-01, I-02, I-I3, U-08, U-F12: with reject the two kinds are named and nothing is touched
#[test]
fn a_lost_slot_is_refused_by_default() {
    for missing in [true, false] {
        let mut script = Script::resumed(Some(streaming()), |_| ());
        lose(&mut script);
        if missing {
            script.slots.clear();
        }
        script.settle();
        match script.failed() {
            Some(FaultKind::SlotMissing { .. }) => assert!(missing),
            Some(FaultKind::SlotInvalidated { reason, .. }) => {
                assert!(!missing);
                assert_eq!(reason, "wal_removed");
            }
            other => panic!("{other:?}"),
        }
        assert!(!script.asked(|w| is_save(w) || is_drop(w) || is_create(w) || is_startup(w)));
    }
    reached("I-I3");
    reached("U-F12");
}

// I-06, I-07, V-09, I-I2, I-I4: R1, drop, create, R2, save C, stream, copies; in this order
#[test]
fn a_lost_slot_is_created_again() {
    let before = streaming();
    let mut script = Script::resumed(Some(before.clone()), recreating);
    lose(&mut script);
    script.head = 900;
    let create = script.until(is_create);
    assert!(script.record().recreate);
    assert_eq!(script.record().checkpoint, before.checkpoint, "R1 changes no position");
    assert!(!script.asked(is_destination_data), "I-07");
    script.perform(create);
    let save = script.until(|work| matches!(work, Work::Save { record, .. } if !record.recreate));
    script.perform(save);
    let record = script.record().clone();
    assert_eq!((record.initial_lsn, record.checkpoint), (Some(at(900)), Some(at(900))));
    assert_eq!(record.tables[&T].phase, Phase::Pending);
    assert_eq!(record.identity.slot, before.identity.slot, "of the same name");
    script.settle();
    let steps = steps(&script);
    let expected =
        ["R1", "check", "drop", "check", "create", "save", "save", "open", "save", "begin"];
    assert_eq!(steps.get(..expected.len()), Some(&expected[..]), "{steps:?}");
    assert_eq!(script.phase(T), Phase::Ready { handover: at(900) });
    assert!(script.told(|notice| matches!(notice, Notice::Recreating { .. })), "I-04");
    reached("I-I1");
    reached("I-I2");
    reached("I-I4");
}

// I-F2, I-F6, U-07: a re-creation that was begun is a person's decision once the policy is reject
#[test]
fn a_begun_recreation_is_pending_under_reject() {
    let mut record = streaming();
    record.recreate = true;
    let mut script = Script::resumed(Some(record), |_| ());
    script.settle();
    assert_eq!(script.failed(), Some(&FaultKind::RecreationPending));
    assert!(!script.asked(|work| is_save(work) || is_drop(work) || is_create(work)));
    reached("I-F6");
}

// I-F3, I-F4: it goes on where it was, without another R1; a slot of the name is dropped first
#[test]
fn a_begun_recreation_goes_on() {
    for present in [true, false] {
        let mut record = streaming();
        record.recreate = true;
        let mut script = Script::resumed(Some(record), recreating);
        if !present {
            script.slots.clear();
        }
        script.head = 900;
        script.settle();
        let steps = steps(&script);
        let expected: &[_] = if present {
            &["check", "drop", "check", "create", "save"]
        } else {
            &["check", "create", "save"]
        };
        assert_eq!(steps.get(..expected.len()), Some(expected), "{steps:?}");
        assert_eq!(script.phase(T), Phase::Ready { handover: at(900) });
    }
    reached("I-F2");
    reached("I-F3");
    reached("I-F4");
}

/// Main has written something that the destination only accepted; the monitor finds the slot lost.
fn lost_while_streaming(edit: impl FnOnce(&mut Config)) -> Script {
    let mut script = Script::new(edit);
    script.settle();
    script.head = 250;
    script.deliver(StreamId::Main, transaction(200, T));
    let write = script.until(|work| matches!(work, Work::WriteChanges(_)));
    let accepted = walferry_core::batch::Durability::Accepted;
    script.complete(write, Ok(Answer::Written(accepted)));
    script.started.clear();
    lose(&mut script);
    script.head = 900;
    script.advance(Duration::from_millis(10));
    let monitor = Answer::Monitored(walferry_core::source::MonitorFacts {
        wal_end: walferry_core::lsn::Lsn(900),
        slot: script.slots.get(&script.main_slot()).cloned(),
    });
    script.advance(Duration::from_secs(10));
    script.deliver(StreamId::Main, Vec::new());
    let look = script.find(|work| matches!(work, Work::Monitor { .. }))[0];
    script.complete(look, Ok(monitor));
    script
}

// I-03: what was accepted is made durable and saved before start-up is entered again, and the
// destination stays
#[test]
fn a_slot_lost_while_streaming_is_created_again() {
    let mut script = lost_while_streaming(|config| {
        recreating(config);
        // Nothing but the loss makes it flush.
        config.limits.flush_ms = 60_000;
    });
    let flush = script.until(|work| matches!(work, Work::Flush { lane: Lane::Main }));
    assert!(!script.asked(|work| matches!(work, Work::Identify)));
    script.perform(flush);
    let identify = script.until(|work| matches!(work, Work::Identify));
    assert_eq!(script.record().checkpoint, Some(at(202)), "saved before U-02");
    assert!(!script.record().recreate);
    script.perform(identify);
    script.settle();
    assert!(!script.asked(is_startup), "U-00: the started destination survives");
    assert_eq!(script.phase(T), Phase::Ready { handover: at(900) });
    assert!(script.told(|notice| matches!(notice, Notice::SlotLost { .. })));
}

// I-01, I-03: with reject the run ends as failed, so nothing is flushed
#[test]
fn a_slot_lost_while_streaming_ends_the_run_by_default() {
    let script = lost_while_streaming(|config| config.limits.flush_ms = 60_000);
    assert!(matches!(script.failed(), Some(FaultKind::SlotInvalidated { .. })));
    assert!(!script.asked(|work| matches!(work, Work::Flush { .. } | Work::Shutdown)));
}

// I-01, L-01: the operator's command does the same once, whatever the policy
#[test]
fn a_person_may_ask_for_it() {
    let mut script = Script::new(|_| ());
    script.settle();
    script.head = 900;
    script.input(Input::Request(Request::Recreate));
    script.settle();
    assert_eq!(script.phase(T), Phase::Ready { handover: at(900) });
    assert_eq!(script.record().initial_lsn, Some(at(900)));
}
