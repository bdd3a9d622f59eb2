use super::rig::{A, Rig, at, is_main_write, transaction};
use crate::effect::Work;
use crate::event::Event;
use crate::fault::{Fault, FaultKind, Origin};
use crate::ids::StreamId;
use crate::lsn::{CommitLsn, Lsn};
use crate::names::HEARTBEAT_PREFIX;
use crate::notice::Notice;
use crate::record::Phase;

fn heartbeats(rig: &Rig) -> Vec<u128> {
    let seen = rig.notices.iter().filter_map(|notice| {
        if let Notice::HeartbeatSeen { lag } = notice { Some(lag.as_millis()) } else { None }
    });
    seen.collect()
}

fn is_heartbeat(work: &Work<u32>) -> bool {
    matches!(work, Work::WriteHeartbeat { .. })
}

fn beat(rig: &mut Rig, commit: u64) {
    let commit = CommitLsn(Lsn(commit));
    let message = Event::Message {
        transactional: true,
        lsn: commit.0,
        prefix: HEARTBEAT_PREFIX.into(),
        content: 0,
        bytes: 10,
    };
    let begin = Event::Begin { commit, time_us: 0 };
    let end = Event::Commit { commit, end: at(commit.0.0 + 1) };
    rig.stream(StreamId::Main, vec![begin, message, end]);
}

// written, seen in order, measured, not passed on
#[test]
fn heartbeats_measure_the_lag() {
    let mut rig = Rig::streaming(&[A], |limits| limits.heartbeat_ms = 1_000);
    rig.wait(1_000);
    let written = rig.work.values().find_map(|work| {
        if let Work::WriteHeartbeat { prefix, content } = work {
            Some((*prefix, content.clone()))
        } else {
            None
        }
    });
    assert_eq!(written, Some((HEARTBEAT_PREFIX, rig.now.0.to_string())));
    rig.settle();
    rig.live(1_100);
    beat(&mut rig, 110);
    beat(&mut rig, 120);
    assert_eq!(heartbeats(&rig), [1_100, 100]);
    beat(&mut rig, 130);
    assert_eq!(heartbeats(&rig).len(), 2, "one that nobody here wrote");
    rig.settle();
    assert!(rig.offered.is_empty(), "not passed on");
    assert_eq!(rig.dispatched(), at(131));
}

// after a re-opening the same ones come again, and are not those that are waited for
#[test]
fn a_heartbeat_that_comes_again_is_not_counted_again() {
    let mut rig = Rig::streaming(&[A], |limits| limits.heartbeat_ms = 1_000);
    rig.live(1_000);
    let commit = |lsn| CommitLsn(Lsn(lsn));
    rig.pipeline.heartbeats_seen(vec![commit(110)]);
    rig.live(1_000);
    rig.pipeline.heartbeats_seen(vec![commit(110), commit(120)]);
    rig.settle();
    rig.wait(0);
    assert_eq!(heartbeats(&rig).len(), 2);
}

// one that was not written shifts nothing
#[test]
fn a_heartbeat_that_fails_is_not_waited_for() {
    let mut rig = Rig::streaming(&[A], |limits| limits.heartbeat_ms = 1_000);
    rig.wait(1_000);
    rig.fail(is_heartbeat, Fault::found(Origin::Source, FaultKind::Transport));
    assert!(rig.has_noticed(|n| matches!(n, Notice::SideTaskFailed { .. })));
    rig.wait(1_000);
    rig.settle();
    rig.wait(30);
    beat(&mut rig, 110);
    assert_eq!(heartbeats(&rig), [30]);
    let mut off = Rig::streaming(&[A], |_| ());
    off.wait(5_000);
    assert!(off.find(is_heartbeat).is_none(), "off by default");
}

fn stalls(rig: &Rig) -> Vec<String> {
    let causes = rig.notices.iter().filter_map(|notice| {
        if let Notice::Stalled { cause } = notice { Some(cause.clone()) } else { None }
    });
    causes.collect()
}

// L-02: a minute without any move, with the cause; side work does not count
#[test]
fn a_destination_that_never_answers_is_named() {
    let mut rig = Rig::streaming(&[A], |_| ());
    rig.commit(110, &[A]);
    let mut waited = 0;
    while stalls(&rig).is_empty() {
        rig.wait(1_000);
        rig.settle_but(is_main_write);
        rig.keepalive(StreamId::Main, 112);
        waited += 1;
        assert!(waited < 70);
    }
    assert!((60..=61).contains(&waited), "after {waited} s");
    let view = rig.pipeline.view();
    assert!(!view.ready && view.lifecycle == "running");
    assert_eq!(view.stalled, Some(stalls(&rig)[0].clone()));
    assert!(view.stalled.unwrap().contains("a write of changes"));
    rig.settle();
    assert!(rig.has_noticed(|n| *n == Notice::Unstalled));
    assert!(rig.pipeline.view().ready);
}

// L-02: an idle run is not stalled; one that reads nothing although the server is far ahead is
#[test]
fn only_a_run_that_has_something_to_do_stalls() {
    for (ahead, stalled) in [(1_000, false), (64 << 20, true)] {
        let mut rig = Rig::streaming(&[A], |limits| limits.source_silence_ms = 80_000_000);
        rig.live(130_000);
        rig.head += ahead;
        rig.live(50_000);
        assert!(stalls(&rig).is_empty(), "not at once");
        rig.live(30_000);
        assert_eq!(!stalls(&rig).is_empty(), stalled, "{ahead} bytes ahead");
    }
}

// H-07, A-14, PG-11: a table that handed over past main is Ready soon although the source is idle
#[test]
fn a_table_in_catchup_does_not_wait_for_the_pace_of_an_idle_source() {
    let mut rig = Rig::replaying(&[A], |_| ());
    rig.stream(StreamId::Copy(A), transaction(120, &[A]));
    rig.keepalive(StreamId::Copy(A), 150);
    rig.settle();
    if rig.phase(A) == Some(Phase::Ready { handover: at(121) }) {
        return;
    }
    let Some(Phase::Catchup { handover }) = rig.phase(A) else { panic!("{:?}", rig.phase(A)) };
    rig.asked.clear();
    rig.wait(60);
    assert!(rig.asked.contains(&StreamId::Main), "main asks where the server is");
    rig.keepalive(StreamId::Main, 150);
    rig.settle();
    assert_eq!(rig.phase(A), Some(Phase::Ready { handover }));
}
