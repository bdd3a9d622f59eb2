//! Keepalives without any change to deliver (A-14, A-I4).

use core::time::Duration;

use walferry_tests::coverage::reached;
use walferry_tests::world::MAIN;

use crate::stage::Stage;

fn confirmed(stage: &Stage) -> u64 {
    let Some(record) = stage.world.store.persisted() else { panic!("a ready stage has a record") };
    stage.world.source.slots[&record.identity.slot].confirmed.0.0
}

// A-I4
#[test]
fn unpublished_traffic_is_confirmed_within_its_bounds() {
    const BYTES: u64 = 64 << 10;
    const BY: u64 = 4 << 10;
    // 1,000 ms in steps of 50 ms.
    const STEPS: u64 = 20;
    let mut stage = Stage::with(1, |config| {
        config.limits.idle_checkpoint_ms = 1_000;
        config.limits.idle_checkpoint_bytes = BYTES;
    });
    stage.ready();
    let before = confirmed(&stage);
    for _ in 0..400 {
        stage.world.source.unpublished(BY);
        stage.world.advance(Duration::from_millis(50));
        stage.world.keepalive(MAIN, true, false);
        stage.settle();
        let behind = stage.world.source.head.0.0 - confirmed(&stage);
        assert!(behind <= BYTES + STEPS * BY, "{behind} bytes are not confirmed");
    }
    assert!(confirmed(&stage) > before + 300 * BY);
    reached("A-I4");
}

// A-F4: each is answered if it asks for that, and none costs a save
#[test]
fn a_storm_of_keepalives_costs_no_saves() {
    let mut stage = Stage::new(1);
    stage.ready();
    for number in 0..10_000 {
        stage.world.source.unpublished(1);
        stage.world.keepalive(MAIN, true, number % 2 == 0);
    }
    stage.settle();
    let text = stage.text();
    let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("confirm main"), 5_000);
    assert!(count("save") <= 1, "{} saves", count("save"));
    reached("A-F4");
}
