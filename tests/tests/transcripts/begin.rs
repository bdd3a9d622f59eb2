//! What keeps a start from going on, and what it finds of earlier runs (M, U, T-12).

use core::time::Duration;

use walferry_core::effect::Work;
use walferry_core::fault::{DestinationClass, FaultKind, SqlState};
use walferry_core::ids::Attempt;
use walferry_core::notice::Outcome;
use walferry_core::record::{Phase, Policy};
use walferry_tests::coverage::reached;
use walferry_tests::world::row::Row;
use walferry_tests::world::source::Edit;
use walferry_tests::world::store::Store;

use crate::play::{failed, go_on, has_hit, main_slot, phase, record, refuse, wait};
use crate::stage::{A, Stage};

fn is_creation(work: &Work<Row>) -> bool {
    matches!(work, Work::CreateSlot { .. })
}

// M-F1, M-06: nobody waits for ever behind a long transaction, and the next try succeeds
#[test]
fn a_transaction_outlives_the_budget_of_the_creation() {
    let mut stage = Stage::new(1);
    stage.world.keep_budgets();
    let xid = stage.world.source.begin();
    stage.world.start();
    for _ in 0..20 {
        let next = stage.world.performable().into_iter().next();
        let Some(op) = next else { break };
        stage.world.perform(op, walferry_core::batch::Durability::Durable);
    }
    assert!(stage.world.working().iter().any(|(_, work)| is_creation(work)), "it waits");
    stage.world.advance(Duration::from_secs(3_600));
    has_hit(&stage, "M-F1");
    stage.world.source.commit_open(xid, 1, 1, 100);
    go_on(&mut stage);
    stage.world.heal();
}

// M-F2, M-01: a slot that somebody holds is waited for, and its holder is named
#[test]
fn an_old_process_holds_the_slot() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.crash();
    let until = stage.world.now().after(Duration::from_secs(2));
    main_slot(&mut stage).held_until = Some(until);
    stage.world.start();
    go_on(&mut stage);
    assert!(stage.world.now() >= until);
    assert!(stage.text().contains("SlotBusy"));
    reached("M-F2");
}

// M-F4, Y-05: the main slot needs a place at the server; an attempt is made again
#[test]
fn the_server_has_no_free_slot() {
    let kind = FaultKind::Server { code: SqlState(*b"53400") };
    let mut stage = Stage::new(1);
    stage.world.start();
    stage.until(is_creation);
    refuse(&mut stage, kind.clone(), is_creation);
    go_on(&mut stage);
    assert_eq!(failed(&mut stage), kind);
    assert_eq!(record(&stage).initial_lsn, None, "the intent only");
    let is_snapshot = |work: &Work<Row>| matches!(work, Work::OpenSnapshot { .. });
    stage.world.start();
    stage.until(is_snapshot);
    refuse(&mut stage, kind, is_snapshot);
    stage.settle();
    let found = phase(&stage, A);
    assert!(matches!(found, Phase::Errored { policy: Policy::Timed, .. }), "{found:?}");
    stage.world.heal();
    reached("M-F4");
}

// U-F8, U-09: a crash while left-over copy slots are removed
#[test]
fn a_crash_while_old_copy_slots_are_removed() {
    let mut stage = Stage::with(1, |config| config.limits.policies.slot_failover = true);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    stage.crash();
    for _ in 0..2 {
        assert_eq!(stage.world.source.slots.len(), 2, "main, and the one that the copy left");
        stage.world.start();
        wait(&mut stage, |work| matches!(work, Work::DropSlot { .. }));
        stage.crash();
    }
    has_hit(&stage, "U-F8");
    stage.world.heal();
}

// U-F9, M-09: a crash around the failover property
#[test]
fn a_crash_while_the_slot_gets_its_failover_property() {
    let enables = |work: &Work<Row>| matches!(work, Work::EnableFailover { .. });
    for done in [false, true] {
        let mut stage = Stage::new(1);
        stage.ready();
        stage.crash();
        stage.world.config.limits.policies.slot_failover = true;
        stage.world.start();
        wait(&mut stage, enables);
        if done {
            stage.finish(enables);
        }
        stage.crash();
        stage.world.start();
        go_on(&mut stage);
        assert!(main_slot(&mut stage).failover, "read back, or set again");
        stage.world.heal();
        reached("U-F9");
    }
}

// U-F13, DS-16: the sink belongs to the pipeline whose record is gone
#[test]
fn the_record_is_lost() {
    let mut stage = Stage::new(1);
    stage.ready();
    let old = record(&stage).identity.slot;
    stage.crash();
    stage.world.store = Store::default();
    let rows = stage.world.destination.durable.clone();
    stage.world.start();
    go_on(&mut stage);
    let class = DestinationClass::Manual;
    assert_eq!(failed(&mut stage), FaultKind::Destination { class });
    assert_ne!(record(&stage).identity.slot, old, "a first start with a new name");
    assert!(stage.world.source.slots.contains_key(&old), "the old slot is left (U-I3)");
    assert_eq!(stage.world.destination.durable, rows, "nothing of the sink is touched");
    reached("U-F13");
}

// T-F7, T-11: on 18 the stream goes on and leaves changes out; the stamp tells
#[test]
fn the_publication_is_made_again_while_streaming() {
    let mut stage = Stage::new(2);
    stage.ready();
    stage.world.source.drop_publication();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.world.source.create_publication();
    stage.read_main();
    stage.world.advance(Duration::from_secs(10));
    stage.settle();
    stage.world.heal();
    let attempts = record(&stage).tables.values().map(|entry| entry.attempt).collect::<Vec<_>>();
    assert_eq!(attempts, [Some(Attempt(3)), Some(Attempt(4))], "both are copied again");
    reached("T-F7");
}

// T-F3, T-F8: a table is dropped before anybody has asked who it is, and the run starts again
#[test]
fn a_table_is_dropped_before_it_is_listed() {
    let mut stage = Stage::new(1);
    stage.ready();
    let table = stage.world.source.create_table(true);
    stage.commit(&[Edit::Put(table, 1)]);
    stage.commit(&[Edit::Drop(table)]);
    stage.crash();
    has_hit(&stage, "T-F8");
    stage.world.start();
    go_on(&mut stage);
    stage.read_main();
    stage.settle();
    assert!(record(&stage).tombstones.contains_key(&table), "{:?}", record(&stage).tombstones);
    stage.world.heal();
    reached("T-F3");
}

// T-F5, Z-02: one table more than the record may hold
#[test]
fn too_many_tables() {
    let mut stage = Stage::new(65_537);
    stage.world.start();
    stage.settle();
    let Some(Outcome::Failed { fault, .. }) = stage.world.take_outcome() else {
        panic!("it goes on")
    };
    assert!(matches!(fault.kind, FaultKind::Limit { .. }), "{fault}");
    assert_eq!(stage.world.store.persisted(), None, "nothing durable is left (U-10)");
    reached("T-F5");
}

// A-F3, A-10: asked at half of the budget, given up at its end, closed and opened again
#[test]
fn the_server_goes_silent() {
    let mut stage = Stage::new(1);
    stage.ready();
    stage.world.advance(Duration::from_secs(31));
    stage.say("nobody answers");
    stage.world.advance(Duration::from_secs(30));
    go_on(&mut stage);
    let text = stage.text();
    assert!(text.contains("close main"), "the session that is silent holds the slot: {text}");
    assert!(text.contains("gone silent"), "{text}");
    stage.world.heal();
    reached("A-F3");
}
