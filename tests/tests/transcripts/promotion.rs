//! The source is promoted: followed where everything offered exists on the new timeline, refused
//! everywhere else (P).

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::fault::{Fault, FaultKind, Origin, SqlState};
use walferry_core::ids::Lane;
use walferry_core::policies::PromotionLoss;
use walferry_tests::coverage::reached;
use walferry_tests::world::MAIN;
use walferry_tests::world::source::Edit;

use crate::play::{failed, go_on, has_hit, main_slot, phase, record, wait};
use crate::stage::{A, B, Stage};

fn failover() -> Stage {
    Stage::with(1, |config| {
        config.limits.policies.slot_failover = true;
        config.limits.idle_checkpoint_ms = 1;
    })
}

/// A run with failover that has delivered a transaction; its horizon is exact.
fn delivered() -> Stage {
    let mut stage = failover();
    stage.ready();
    deliver(&mut stage);
    stage
}

fn deliver(stage: &mut Stage) {
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    stage.settle();
}

/// The run goes on with a timeline, and its table streams.
#[track_caller]
fn follows(stage: &mut Stage, timeline: u32) {
    go_on(stage);
    assert!(stage.world.is_alive(), "{:?}", stage.world.take_outcome());
    assert_eq!(record(stage).identity.timeline, timeline);
    stage.world.heal();
}

// P-F6, P-07: a horizon that is the fork is safe
#[test]
fn everything_offered_exists_on_the_new_timeline() {
    let mut stage = delivered();
    let horizon = record(&stage).write_horizon;
    assert_eq!(horizon, Some(stage.world.source.head), "exact (X-05)");
    stage.world.source.replicate(true);
    stage.world.promote();
    go_on(&mut stage);
    insta::assert_snapshot!(stage.text());
    follows(&mut stage, 2);
    has_hit(&stage, "P-F6");
    reached("P-I1");
}

// P-F6, P-I4, P-06: one byte past the fork may be an event that is gone
#[test]
fn an_event_beyond_the_fork_may_have_been_offered() {
    for (policy, follows_it) in [(PromotionLoss::Reject, false), (PromotionLoss::Resync, true)] {
        let mut stage = delivered();
        stage.world.config.limits.policies.promotion_loss = policy;
        stage.world.stop();
        stage.settle();
        stage.world.take_outcome();
        stage.world.start();
        go_on(&mut stage);
        stage.world.source.replicate(true);
        stage.world.source.commit(&[Edit::Put(A, 2)], 0, 1, 100);
        stage.read_main();
        stage.settle();
        stage.world.promote();
        has_hit(&stage, "P-F6");
        if follows_it {
            follows(&mut stage, 2);
            continue;
        }
        go_on(&mut stage);
        let kind = failed(&mut stage);
        let FaultKind::HorizonBeyondFork { horizon, fork } = kind else { panic!("{kind}") };
        assert_eq!(horizon.map(|at| at.0.0), Some(fork.0.0 + 1));
        reached("P-I4");
    }
}

// P-F6, P-I3: an idle checkpoint beyond the fork is lowered to it
#[test]
fn a_checkpoint_beyond_the_fork_is_lowered() {
    let mut stage = delivered();
    stage.world.source.unpublished(50);
    stage.world.source.replicate(true);
    let fork = stage.world.source.head;
    stage.world.source.unpublished(50);
    stage.world.advance(core::time::Duration::from_secs(1));
    stage.world.keepalive(MAIN, true, false);
    stage.settle();
    assert!(record(&stage).checkpoint > Some(fork), "the idle position is saved");
    stage.world.promote();
    has_hit(&stage, "P-F6");
    wait(&mut stage, |work| matches!(work, Work::OpenStream { .. }));
    assert_eq!(record(&stage).checkpoint, Some(fork));
    follows(&mut stage, 2);
    reached("P-I3");
}

// P-F5: one after the other, and both while nobody looks
#[test]
fn two_promotions() {
    for together in [false, true] {
        let mut stage = delivered();
        if together {
            stage.crash();
        }
        for timeline in 2..=3 {
            stage.world.source.replicate(true);
            stage.world.promote();
            if !together {
                follows(&mut stage, timeline);
                deliver(&mut stage);
            }
        }
        if together {
            stage.world.start();
        }
        follows(&mut stage, 3);
        has_hit(&stage, "P-F5");
    }
}

// P-F7: a slot that was not synchronised is never replaced silently
#[test]
fn the_slot_was_not_synchronised() {
    let mut stage = delivered();
    stage.world.source.replicate(false);
    stage.world.promote();
    has_hit(&stage, "P-F7");
    go_on(&mut stage);
    let kind = failed(&mut stage);
    assert!(matches!(kind, FaultKind::SlotMissing { .. }), "{kind}");
    assert_eq!(record(&stage).identity.timeline, 1);
}

// P-F8, P-04
#[test]
fn the_slot_of_the_new_primary_is_ahead() {
    let mut stage = delivered();
    stage.world.source.replicate(true);
    stage.world.promote();
    main_slot(&mut stage).confirmed = stage.world.source.head;
    go_on(&mut stage);
    let kind = failed(&mut stage);
    assert!(matches!(kind, FaultKind::SlotAhead { .. }), "{kind}");
    assert_eq!(record(&stage).identity.timeline, 1);
    reached("P-F8");
}

// P-F10, P-I4
#[test]
fn the_old_primary_comes_back() {
    let mut stage = delivered();
    stage.world.source.replicate(true);
    stage.world.promote();
    go_on(&mut stage);
    assert!(stage.world.reach_old_primary());
    go_on(&mut stage);
    let kind = failed(&mut stage);
    assert!(matches!(kind, FaultKind::IdentityMismatch { field: "timeline", .. }), "{kind}");
    assert_eq!(record(&stage).identity.timeline, 2);
    has_hit(&stage, "P-F10");
    reached("P-I4");
}

// P-F11, S-04: without failover another timeline is another source
#[test]
fn the_source_is_promoted_with_failover_off() {
    let mut stage = Stage::new(1);
    stage.ready();
    main_slot(&mut stage).failover = true;
    stage.world.source.replicate(true);
    stage.world.promote();
    has_hit(&stage, "P-F11");
    go_on(&mut stage);
    let kind = failed(&mut stage);
    assert!(matches!(kind, FaultKind::IdentityMismatch { field: "timeline", .. }), "{kind}");
}

// P-F12, R-07: nobody knows what a run without failover has offered
#[test]
fn the_horizon_is_not_known() {
    let mut stage = Stage::new(1);
    stage.ready();
    deliver(&mut stage);
    stage.crash();
    stage.world.config.limits.policies.slot_failover = true;
    main_slot(&mut stage).failover = true;
    stage.world.source.replicate(true);
    stage.world.promote();
    has_hit(&stage, "P-F12");
    stage.world.start();
    go_on(&mut stage);
    let kind = failed(&mut stage);
    assert!(matches!(kind, FaultKind::HorizonBeyondFork { horizon: None, .. }), "{kind}");
}

/// Promotes right now, and lets the run follow.
fn promote_here(stage: &mut Stage) {
    stage.world.source.replicate(true);
    stage.world.promote();
    has_hit(stage, "P-F9");
    follows(stage, 2);
}

// P-F9: in the snapshot, in replay with a closed fence, in a flush, inside a transaction
#[test]
fn a_promotion_finds_the_run_busy() {
    let resync = |config: &mut walferry_core::config::Config| {
        config.limits.policies.slot_failover = true;
        config.limits.policies.promotion_loss = PromotionLoss::Resync;
    };
    let mut stage = Stage::with(2, resync);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { .. }));
    promote_here(&mut stage);

    let mut stage = Stage::with(2, resync);
    stage.world.start();
    stage.until(|work| matches!(work, Work::ReadRange { table, .. } if *table == B));
    stage.commit(&[Edit::Put(A, 1), Edit::Put(B, 1)]);
    stage.read_main();
    stage.settle();
    assert!(stage.world.has_closed_fence(), "b replays and main holds");
    promote_here(&mut stage);

    let mut stage = Stage::with(1, resync);
    stage.ready();
    stage.commit(&[Edit::Put(A, 1)]);
    stage.read_main();
    wait(&mut stage, |work| matches!(work, Work::WriteChanges(_)));
    let written = |work: &Work<_>| matches!(work, Work::WriteChanges(_));
    stage.world.perform_first(Durability::Accepted, written);
    wait(&mut stage, |work| matches!(work, Work::Flush { lane: Lane::Main }));
    promote_here(&mut stage);

    let mut stage = Stage::with(1, |config| {
        resync(config);
        config.limits.batch_events = 1;
    });
    stage.ready();
    stage.world.source.commit(&[Edit::Put(A, 1), Edit::Put(A, 2)], 1, 4, 100);
    stage.world.deliver(MAIN, 3);
    stage.settle();
    promote_here(&mut stage);
    assert!(phase(&stage, A).handover().is_some());
}

// Y-02, S-06: a server error ended the stream, and the inspection that names the cause reached the old
// primary: its slot was taken for ours, found lost, and the run ended (or made the slot anew)
#[test]
fn the_slot_of_another_server_says_nothing_about_a_lost_stream() {
    let mut stage = delivered();
    stage.world.source.replicate(true);
    stage.world.promote();
    follows(&mut stage, 2);
    stage.world.trace.take();
    let fault = Fault::new(Origin::Source, FaultKind::Server { code: SqlState(*b"57P01") }, "");
    let streams = stage.world.source.senders.clone();
    assert!(stage.world.source.visit_old_primary());
    stage.world.source.senders = streams;
    stage.say("new connections reach the old primary");
    stage.world.end_stream(MAIN, fault);
    let slot = record(&stage).identity.slot;
    stage.world.source.slots.remove(&slot);
    stage.settle();
    assert!(stage.world.is_alive(), "{:?}", stage.world.take_outcome());
    assert!(stage.world.reach_old_primary());
    go_on(&mut stage);
    insta::assert_snapshot!(stage.text());
    follows(&mut stage, 2);
}
