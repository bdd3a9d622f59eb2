//! The persistent copy slot of a table with slot failover (K-05, K-07, N-05).

use core::time::Duration;

use walferry_core::config::Config;
use walferry_core::effect::Work;
use walferry_core::fault::{FaultKind, SqlState};
use walferry_core::input::{Input, Request};
use walferry_core::names;
use walferry_core::notice::Notice;
use walferry_core::record::{Phase, Policy};
use walferry_core::source::SlotHolder;
use walferry_coverage::reached;

use crate::script::{Script, T, is_range, slot, source_fault};

fn failover(config: &mut Config) {
    config.limits.policies.slot_failover = true;
}

fn copy_slot(script: &Script) -> String {
    let record = script.saved.as_ref().expect("saved");
    names::failover_copy_slot(&record.identity.slot, T)
}

fn is_snapshot(work: &Work<u32>) -> bool {
    matches!(work, Work::OpenSnapshot { .. })
}

fn is_drop(work: &Work<u32>) -> bool {
    matches!(work, Work::DropSlot { .. })
}

fn is_close(work: &Work<u32>) -> bool {
    matches!(work, Work::CloseCopy { .. })
}

fn active() -> walferry_core::fault::Fault {
    source_fault(FaultKind::Server { code: SqlState(*b"55006") })
}

/// A script that is about to look at the table's slot.
fn looking(edit: impl FnOnce(&mut walferry_core::source::SlotFacts)) -> Script {
    let mut script = Script::new(failover);
    script.until(|work| matches!(work, Work::BeginCopy(_)) || is_copying_save(work));
    let name = copy_slot(&script);
    let mut facts = slot(&name);
    edit(&mut facts);
    script.slots.insert(name, facts);
    script
}

fn is_copying_save(work: &Work<u32>) -> bool {
    matches!(work, Work::Save { record, .. }
        if record.tables.get(&T).is_some_and(|entry| entry.phase == Phase::Copying))
}

// K-05: made with failover under the table's name, removed after every connection has ended
#[test]
fn the_slot_goes_when_the_table_is_handed_over() {
    let mut script = Script::new(failover);
    let open = script.until(is_snapshot);
    let name = copy_slot(&script);
    let Work::OpenSnapshot { slot, failover, .. } = script.work(open) else { panic!("snapshot") };
    assert_eq!((slot.as_str(), failover), (name.as_str(), true));
    let close = script.until(is_close);
    assert!(matches!(script.phase(T), Phase::Ready { .. }));
    assert!(!script.has(is_drop) && script.slots.contains_key(&name));
    script.perform(close);
    script.perform(script.find(is_drop)[0]);
    assert!(!script.slots.contains_key(&name));
    script.settle();
    assert!(script.pipeline.view().tables[0].copy.is_none());
}

// N-04: without failover nothing is looked at or removed
#[test]
fn without_failover_the_slot_goes_with_its_session() {
    let mut script = Script::new(|_| ());
    let open = script.until(is_snapshot);
    let Work::OpenSnapshot { slot, failover, .. } = script.work(open) else { panic!("snapshot") };
    assert!(slot.ends_with("_1") && !failover);
    let close = script.until(is_close);
    script.perform(close);
    assert!(!script.has(is_drop));
}

// K-05, K-07: a left-over slot of ours is removed first
#[test]
fn a_slot_that_is_there_is_removed_first() {
    let mut script = looking(|_| ());
    let name = copy_slot(&script);
    let drop = script.until(is_drop);
    assert!(!script.has(is_snapshot));
    assert!(matches!(script.work(drop), Work::DropSlot { slot } if slot == name));
    script.perform(drop);
    assert!(script.has(is_snapshot));
    script.settle();
    assert!(matches!(script.phase(T), Phase::Ready { .. }));
    reached("K-F13");
}

// K-07, K-F13: foreign is reported and left
#[test]
fn a_foreign_slot_of_the_name_is_left_and_the_table_stops() {
    let mut script = looking(|slot| slot.plugin = "wal2json".to_owned());
    script.settle();
    let name = copy_slot(&script);
    assert!(script.told(|n| matches!(n, Notice::ForeignSlotLeft { slot } if *slot == name)));
    let phase = script.phase(T);
    assert!(matches!(phase, Phase::Errored { policy: Policy::Manual, .. }), "{phase:?}");
    assert!(script.slots.contains_key(&name), "never dropped");
    reached("K-F13");
}

// K-07, K-F13: one that is held is waited for, within its budget
#[test]
fn a_held_slot_is_waited_for() {
    let hold = |slot: &mut walferry_core::source::SlotFacts| {
        slot.active = Some(SlotHolder { pid: 7, application: "walferry:copy:101".to_owned() });
    };
    let mut script = looking(hold);
    let name = copy_slot(&script);
    for _ in 0..10 {
        script.settle();
        assert_eq!(script.phase(T), Phase::Copying);
        script.advance(Duration::from_millis(20));
    }
    let told = |n: &&Notice| matches!(n, Notice::SlotBusy { .. });
    assert_eq!(script.notices.iter().filter(told).count(), 1, "told once");
    if let Some(slot) = script.slots.get_mut(&name) {
        slot.active = None;
    }
    script.settle();
    script.advance(Duration::from_millis(20));
    script.settle();
    assert!(matches!(script.phase(T), Phase::Ready { .. }));
    // It never goes.
    let mut script = looking(hold);
    script.settle();
    script.pass(90);
    script.settle();
    let phase = script.phase(T);
    assert!(matches!(phase, Phase::Errored { policy: Policy::Timed, .. }), "{phase:?}");
    reached("K-F13");
}

// K-05: on every exit, also a failure and a stop
#[test]
fn the_slot_goes_on_every_exit() {
    let mut script = Script::new(failover);
    let open = script.until(is_snapshot);
    script.fail(open, source_fault(FaultKind::Transport));
    let close = script.until(is_close);
    script.perform(close);
    assert!(script.has(is_drop), "the creation may have taken effect");
    let mut script = Script::new(failover);
    script.until(is_range);
    let name = copy_slot(&script);
    script.input(Input::Request(Request::Stop));
    script.settle();
    assert!(script.ended.is_some());
    assert!(!script.slots.contains_key(&name));
    reached("K-F12");
}

// K-05, K-F16: a removal that fails is told and left to the next start; one that comes too early
// is repeated
#[test]
fn a_removal_that_fails_is_left_to_the_next_start() {
    let mut script = Script::new(failover);
    let close = script.until(is_close);
    script.perform(close);
    script.fail(script.find(is_drop)[0], active());
    assert!(!script.has(is_drop));
    script.advance(Duration::from_millis(20));
    let drop = script.find(is_drop)[0];
    script.fail(drop, source_fault(FaultKind::Transport));
    let told =
        |n: &Notice| matches!(n, Notice::SideTaskFailed { task: "removing a copy slot", .. });
    assert!(script.told(told));
    script.settle();
    assert!(matches!(script.phase(T), Phase::Ready { .. }), "the table is not affected");
    assert!(script.pipeline.view().tables[0].copy.is_none());
    // U-09: the next start removes it by its prefix.
    let name = copy_slot(&script);
    let record = script.saved.clone();
    let mut script = Script::resumed(record, failover);
    script.slots.insert(name.clone(), slot(&name));
    script.settle();
    assert!(!script.slots.contains_key(&name));
    reached("K-F16");
}

// K-05, G-06: a slot that could not be removed keeps WAL, so it is tried again with each look
#[test]
fn a_removal_that_fails_is_made_again_by_the_monitor() {
    let mut script = Script::new(failover);
    let close = script.until(is_close);
    script.perform(close);
    let name = copy_slot(&script);
    script.fail(script.find(is_drop)[0], source_fault(FaultKind::Transport));
    script.settle();
    assert!(!script.has(is_drop) && script.slots.contains_key(&name));
    script.pass(10);
    let drop = script.find(is_drop)[0];
    assert!(matches!(script.work(drop), Work::DropSlot { slot } if slot == name));
    script.fail(drop, source_fault(FaultKind::Transport));
    script.settle();
    script.pass(10);
    script.perform(script.find(is_drop)[0]);
    assert!(!script.slots.contains_key(&name));
    script.settle();
    script.pass(20);
    assert!(!script.has(is_drop), "it is gone");
    reached("K-F16");
}
