//! The main slot is lost, or somebody touched it (I, U-08, A-04).

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::fault::{DestinationClass, FaultKind};
use walferry_core::ids::Lane;
use walferry_core::policies::SlotLoss;
use walferry_core::record::{Phase, Policy};
use walferry_tests::coverage::reached;
use walferry_tests::world::source::Edit;

use crate::play::{failed, go_on, has_hit, main_slot, phase, record, refuse, wait};
use crate::stage::{A, Stage};

fn recreating() -> Stage {
    Stage::with(1, |config| config.limits.policies.slot_loss = SlotLoss::Recreate)
}

fn lose(stage: &mut Stage) {
    let slot = record(stage).identity.slot;
    stage.world.invalidate(&slot, "wal_removed");
}

// I-03, I-06, I-F7, I-F8: lost, and lost again while the copies of the first time run
#[test]
fn the_slot_is_lost_twice() {
    let mut stage = recreating();
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    lose(&mut stage);
    wait(&mut stage, |work| matches!(work, Work::ReadRange { .. }));
    insta::assert_snapshot!(stage.text());
    lose(&mut stage);
    has_hit(&stage, "I-F7");
    has_hit(&stage, "I-F8");
    go_on(&mut stage);
    stage.world.heal();
}

// I-F6, U-07: the flag is set, and the policy forbids to go on
#[test]
fn the_policy_is_changed_while_a_re_creation_is_under_way() {
    let mut stage = recreating();
    stage.ready();
    lose(&mut stage);
    wait(&mut stage, |work| matches!(work, Work::DropSlot { .. }));
    stage.crash();
    stage.world.config.limits.policies.slot_loss = SlotLoss::Reject;
    stage.world.start();
    go_on(&mut stage);
    assert_eq!(failed(&mut stage), FaultKind::RecreationPending);
    has_hit(&stage, "I-F6");
    stage.say("the operator allows it again");
    stage.world.config.limits.policies.slot_loss = SlotLoss::Recreate;
    stage.world.start();
    stage.world.heal();
}

// I-F9, F-04: nothing of the shared work is known to be durable, so the run ends
#[test]
fn the_flush_before_a_re_creation_fails() {
    let mut stage = recreating();
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    let is_write = |work: &Work<_>| matches!(work, Work::WriteChanges(_));
    stage.world.perform_first(Durability::Accepted, is_write);
    lose(&mut stage);
    let is_flush = |work: &Work<_>| matches!(work, Work::Flush { lane: Lane::Main });
    wait(&mut stage, is_flush);
    let class = DestinationClass::Transient { retry_after: None };
    refuse(&mut stage, FaultKind::Destination { class }, is_flush);
    stage.settle();
    assert_eq!(failed(&mut stage), FaultKind::FlushFailed { class });
    assert!(!record(&stage).recreate, "save R1 is not made");
    has_hit(&stage, "I-F9");
    stage.world.heal();
}

// I-F10, K-29, K-23: the attempt alone fails, and is made again by itself
#[test]
fn a_copy_slot_is_lost() {
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.settle();
    let slot = stage.world.source.slots.keys().find(|name| name.starts_with("walferry_copy_"));
    let Some(slot) = slot.cloned() else { panic!("no copy slot") };
    stage.world.invalidate(&slot, "wal_removed");
    has_hit(&stage, "I-F10");
    stage.settle();
    let found = phase(&stage, A);
    assert!(matches!(found, Phase::Errored { policy: Policy::Timed, .. }), "{found:?}");
    assert!(stage.world.streams(), "main goes on");
    stage.world.heal();
}

// U-F12, M-I2, I-I3: a slot that is gone is not replaced
#[test]
fn the_slot_is_gone_at_a_start() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.crash();
    let slot = record(&stage).identity.slot;
    stage.world.source.slots.remove(&slot);
    let before = record(&stage);
    stage.world.start();
    go_on(&mut stage);
    let kind = failed(&mut stage);
    assert!(matches!(kind, FaultKind::SlotMissing { .. }), "{kind}");
    assert_eq!(record(&stage), before);
    assert!(!stage.world.source.slots.contains_key(&slot));
    reached("U-F12");
}

// A-F9, A-04: what an administrator took from the slot can never be read again
#[test]
fn an_administrator_advances_the_slot() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.crash();
    stage.commit(&[Edit::Put(A, 1)]);
    let head = stage.world.source.head;
    let slot = main_slot(&mut stage);
    (slot.confirmed, slot.advanced) = (head, true);
    let before = record(&stage);
    stage.world.start();
    go_on(&mut stage);
    let kind = failed(&mut stage);
    assert!(matches!(kind, FaultKind::SlotAhead { .. }), "{kind}");
    assert_eq!(record(&stage), before, "a refusal changes nothing");
    reached("A-F9");
}

// M-F3, M-12: another plugin or database under our name
#[test]
fn the_slot_is_not_ours() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.crash();
    main_slot(&mut stage).plugin = "wal2json";
    stage.world.start();
    go_on(&mut stage);
    let kind = failed(&mut stage);
    assert!(matches!(kind, FaultKind::SlotForeign { field: "plugin", .. }), "{kind}");
    reached("M-F3");
}
