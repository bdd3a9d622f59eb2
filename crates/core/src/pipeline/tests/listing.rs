use super::rig::{A, B, C, Rig, at, destination, is_listing, is_main_write, is_save, relation};
use crate::batch::CopyMode;
use crate::effect::Work;
use crate::event::Event;
use crate::fault::{Blame, DestinationClass, Fault, FaultKind, Origin};
use crate::ids::{Attempt, StreamId};
use crate::input::Request;
use crate::lsn::{CommitLsn, Lsn};
use crate::notice::Notice;
use crate::policies::Doubt;
use crate::record::Phase;

fn publish(rig: &mut Rig, table: crate::ids::TableId) {
    rig.tables.as_mut().unwrap().insert(table, 50 + table.0);
}

fn withdraw(rig: &mut Rig, table: crate::ids::TableId) {
    rig.tables.as_mut().unwrap().remove(&table);
}

fn skipped(rig: &Rig) -> u64 {
    let skipped = rig.notices.iter().map(|notice| {
        if let Notice::TombstoneSkipped { changes, .. } = notice { *changes } else { 0 }
    });
    skipped.sum()
}

fn begins(work: &Work<u32>) -> bool {
    matches!(work, Work::OpenSnapshot { .. } | Work::BeginCopy(_))
}

// T-03, T-05, T-06, T-I3: listed, saved as Pending, saved as Copying, then copied; main does not wait
#[test]
fn a_row_of_a_new_table_leads_to_its_copy() {
    let mut rig = Rig::streaming(&[A], |_| ());
    publish(&mut rig, B);
    rig.commit(110, &[A, B]);
    assert!(rig.find(is_listing).is_some());
    assert_eq!(rig.dispatched(), at(111), "main does not wait");
    rig.settle_but(|work| is_listing(work) || is_save(work));
    if rig.find(is_save).is_some() {
        rig.finish(is_save);
    }
    rig.finish(is_listing);
    assert_eq!(rig.phase(B), Some(Phase::Pending));
    rig.finish(is_save);
    assert_eq!(rig.saved.as_ref().unwrap().tables[&B].phase, Phase::Pending);
    assert!(rig.find(begins).is_none(), "not before Copying is saved");
    assert_eq!(rig.phase(B), Some(Phase::Copying));
    rig.finish(is_save);
    assert!(rig.find(begins).is_some());
    rig.settle();
    assert!(matches!(rig.phase(B), Some(Phase::Ready { .. })));
    rig.live(10_100);
    assert_eq!(skipped(&rig), 0, "its first row is inside its copy (T-I1)");
    walferry_coverage::reached("T-I1");
    walferry_coverage::reached("T-I3");
}

// T-03: announcements, schema messages, the timer
#[test]
fn a_listing_is_asked_for_by_what_may_be_new() {
    let commit = CommitLsn(Lsn(110));
    let begin = || Event::Begin { commit, time_us: 0 };
    let unknown = Event::Ddl(Err(String::new()));
    for (event, wanted) in [(relation(B), true), (relation(A), false), (unknown, true)] {
        let mut rig = Rig::streaming(&[A], |_| ());
        rig.stream(StreamId::Main, vec![begin(), event]);
        assert_eq!(rig.find(is_listing).is_some(), wanted);
    }
    let mut rig = Rig::streaming(&[A], |_| ());
    rig.wait(9_900);
    assert!(rig.find(is_listing).is_none());
    publish(&mut rig, B);
    rig.live(200);
    assert!(rig.phase(B).is_some(), "found without any change");
}

// T-03
#[test]
fn one_listing_at_a_time_and_one_more_for_all_requests_meanwhile() {
    let mut rig = Rig::streaming(&[A], |_| ());
    rig.commit(110, &[B]);
    rig.commit(120, &[C]);
    rig.commit(130, &[C]);
    let listings = |rig: &Rig| rig.work.values().filter(|work| is_listing(work)).count();
    assert_eq!(listings(&rig), 1);
    rig.finish(is_listing);
    assert_eq!(listings(&rig), 1, "one more");
    assert!(rig.has_noticed(|n| matches!(n, Notice::TableGone { table: B, .. })));
    assert!(
        !rig.has_noticed(|n| matches!(n, Notice::TableGone { table: C, .. })),
        "the first listing may be older than the row of c"
    );
    rig.finish(is_listing);
    assert_eq!(listings(&rig), 0);
    assert!(rig.has_noticed(|n| matches!(n, Notice::TableGone { table: C, .. })));
}

// T-04, T-05, T-10: rows make a tombstone, announcements do not; both are asked for once
#[test]
fn a_table_that_is_not_listed() {
    let mut rig = Rig::streaming(&[A], |_| ());
    let commit = CommitLsn(Lsn(110));
    let events = vec![Event::Begin { commit, time_us: 0 }, relation(B), relation(C)];
    rig.stream(StreamId::Main, events);
    rig.settle();
    rig.stream(StreamId::Main, vec![relation(B), relation(C)]);
    assert!(rig.find(is_listing).is_none(), "a negative answer is remembered (T-04)");
    assert!(rig.pipeline.ledger.record().tombstones.is_empty());
    rig.head = 200;
    rig.stream(StreamId::Main, vec![super::rig::row(B, 0), super::rig::row(B, 1)]);
    rig.live(10_100);
    let record = rig.pipeline.ledger.record().clone();
    assert_eq!(record.tombstones.keys().copied().collect::<Vec<_>>(), [B]);
    assert_eq!(record.tombstones[&B].absent_at, at(200));
    assert_eq!(record.tombstones[&B].name, "public.t2");
    assert_eq!(skipped(&rig), 2);
    rig.stream(StreamId::Main, vec![super::rig::row(B, 2)]);
    rig.live(10_100);
    assert_eq!(skipped(&rig), 3, "changes of a tombstone are counted");
    // It goes with the checkpoint, and a later change makes a new one (PG-21).
    rig.stream(StreamId::Main, vec![Event::Commit { commit, end: at(201) }]);
    rig.settle();
    assert!(rig.saved.as_ref().unwrap().tombstones.is_empty());
    rig.commit(210, &[B]);
    assert!(rig.find(is_listing).is_none(), "the answer is remembered until the next listing");
    rig.head = 300;
    rig.live(10_100);
    assert!(rig.pipeline.ledger.record().tombstones.contains_key(&B));
    walferry_coverage::reached("T-F3");
}

// T-F6, T-04, PG-20: a leaf under a published root is announced and never listed; rows name the root
#[test]
fn a_partition_is_attached_and_detached() {
    let (root, leaf) = (A, C);
    let mut rig = Rig::streaming(&[root], |_| ());
    for commit in [110, 120] {
        let begin = Event::Begin { commit: CommitLsn(Lsn(commit)), time_us: 0 };
        let end = Event::Commit { commit: CommitLsn(Lsn(commit)), end: at(commit + 1) };
        rig.stream(StreamId::Main, vec![begin, relation(leaf), super::rig::row(root, 0), end]);
        rig.settle();
    }
    // Detached: its rows belong to nobody, and the server sends none of them.
    rig.commit(130, &[root]);
    rig.live(10_100);
    let record = rig.pipeline.ledger.record();
    assert!(record.tombstones.is_empty(), "no tombstone of a leaf");
    assert_eq!(record.tables.keys().copied().collect::<Vec<_>>(), [root]);
    assert!(matches!(rig.phase(root), Some(Phase::Ready { .. })), "and no copy");
    let offered: Vec<_> = rig.offered.iter().flat_map(|b| super::rig::tables_of(b)).collect();
    assert_eq!(offered, [root; 3]);
    walferry_coverage::reached("T-F6");
}

// T-09, T-10, X-15, DS-05: an attempt is cancelled and closed; the table comes back with a recopy
#[test]
fn a_table_leaves_while_it_is_copied_and_comes_back() {
    let mut rig = Rig::new(&[A, B], |_| ());
    rig.settle_but(|work| matches!(work, Work::ReadRange { table: A, .. }));
    withdraw(&mut rig, A);
    rig.head = 150;
    rig.wait(10_000);
    rig.finish(is_listing);
    assert!(rig.has_noticed(|n| matches!(n, Notice::TableGone { table: A, .. })));
    let tombstone = rig.pipeline.ledger.record().tombstones[&A].clone();
    assert_eq!((tombstone.ignored_from, tombstone.absent_at), (at(100), at(150)));
    publish(&mut rig, A);
    rig.wait(10_000);
    rig.finish(is_listing);
    assert_eq!(rig.phase(A), Some(Phase::Pending), "queued while the old attempt ends (T-I2)");
    rig.settle_but(|work| matches!(work, Work::CloseCopy { .. } | Work::BeginCopy(_)));
    assert_eq!(rig.phase(A), Some(Phase::Pending), "its old attempt is not closed");
    rig.finish(|work| matches!(work, Work::CloseCopy { .. }));
    rig.settle_but(|work| matches!(work, Work::BeginCopy(_)));
    let mode = rig
        .work
        .values()
        .find_map(|work| if let Work::BeginCopy(start) = work { Some(start.mode) } else { None });
    assert_eq!(mode, Some(CopyMode::Recopy { previous: Attempt(1) }));
    rig.settle();
    assert!(rig.phase(A).and_then(|phase| phase.handover()).is_some());
    walferry_coverage::reached("T-I2");
    walferry_coverage::reached("T-F4");
}

// T-I2: a table that waits for a copy place leaves the queue with the publication
#[test]
fn a_table_leaves_while_it_waits_for_a_copy_place() {
    let mut rig = Rig::new(&[A, B], |limits| limits.copy_concurrency = 1);
    let reads = |work: &Work<u32>| matches!(work, Work::ReadRange { .. });
    rig.settle_but(reads);
    for there in [false, true] {
        if there {
            publish(&mut rig, B);
        } else {
            withdraw(&mut rig, B);
        }
        rig.head += 50;
        rig.wait(10_000);
        rig.settle_but(reads);
        assert_eq!(rig.phase(B), there.then_some(Phase::Pending));
    }
    rig.live(100);
    assert!(rig.phase(B).and_then(|phase| phase.handover()).is_some());
}

// T-09, X-15: what is offered already stays, the others lose its events
#[test]
fn a_table_leaves_while_it_streams() {
    let mut rig = Rig::streaming(&[A, B], |_| ());
    rig.commit(110, &[A, B]);
    rig.settle_but(is_main_write);
    rig.commit(120, &[A, B]);
    rig.wait(9_000);
    withdraw(&mut rig, A);
    rig.head = 150;
    rig.commit(130, &[A]);
    rig.wait(1_000);
    rig.settle_but(is_main_write);
    assert_eq!(rig.pipeline.ledger.record().tombstones[&A].ignored_from, at(100));
    rig.settle();
    let tables: Vec<_> = rig.offered.iter().map(|b| super::rig::tables_of(b)).collect();
    assert_eq!(tables[0], [A, B]);
    assert_eq!(tables[1..].concat(), [B]);
    assert_eq!(rig.pipeline.view().positions.checkpoint, at(131));
}

// T-11
#[test]
fn a_changed_stamp_is_copied_anew_or_reported() {
    for policy in [Doubt::Recopy, Doubt::Report] {
        let mut rig = Rig::streaming(&[A], |limits| limits.policies.membership_change = policy);
        rig.tables.as_mut().unwrap().insert(A, 99);
        rig.wait(10_000);
        rig.finish(is_listing);
        assert!(rig.has_noticed(|n| *n == Notice::MembershipChanged { table: A }));
        let pending = rig.phase(A) == Some(Phase::Pending);
        assert_eq!(pending, policy == Doubt::Recopy);
        rig.settle();
        let entry = &rig.saved.as_ref().unwrap().tables[&A];
        assert_eq!(entry.stamp.membership, 99);
        let attempt = if pending { 2 } else { 1 };
        assert_eq!(entry.attempt, Some(Attempt(attempt)));
        rig.notices.clear();
        rig.live(10_100);
        assert!(!rig.has_noticed(|n| matches!(n, Notice::MembershipChanged { .. })), "once");
    }
    walferry_coverage::reached("T-F4");
}

// T-12, Q-06: no checkpoint is saved after it was seen
#[test]
fn a_missing_publication_ends_the_run() {
    let mut rig = Rig::streaming(&[A, B], |_| ());
    rig.request(Request::Resync(B));
    rig.settle_but(|work| matches!(work, Work::OpenSnapshot { .. }));
    rig.commit(110, &[A]);
    rig.settle_but(|work| matches!(work, Work::OpenSnapshot { .. }) || is_save(work));
    assert!(rig.find(is_save).is_some(), "111 is being saved");
    rig.commit(120, &[A]);
    rig.settle_but(|work| matches!(work, Work::OpenSnapshot { .. }) || is_save(work));
    assert_eq!(rig.pipeline.view().positions.frontier, at(121));
    rig.tables = None;
    rig.wait(10_000);
    rig.finish(is_listing);
    rig.settle();
    assert!(matches!(rig.failed(), Some(FaultKind::PublicationMissing { .. })));
    let saved = rig.saved.unwrap();
    assert_eq!(saved.checkpoint, Some(at(111)), "what was persisted, with the try given back");
    assert_eq!((&saved.tables[&B].phase, saved.tables[&B].tries), (&Phase::Pending, 0));
}

// T-07, T-F2, L-05
#[test]
fn a_listing_that_fails_changes_nothing_and_is_made_again() {
    let mut rig = Rig::streaming(&[A], |_| ());
    publish(&mut rig, B);
    rig.commit(110, &[B, C]);
    rig.settle_but(is_listing);
    let before = rig.pipeline.ledger.record().clone();
    rig.fail(is_listing, Fault::found(Origin::Source, FaultKind::Transport));
    assert_eq!(*rig.pipeline.ledger.record(), before);
    assert!(rig.has_noticed(|n| matches!(n, Notice::SideTaskFailed { .. })));
    rig.live(10_100);
    assert!(rig.phase(B).is_some());
    assert!(rig.has_noticed(|n| matches!(n, Notice::TableGone { table: C, .. })), "not forgotten");
    walferry_coverage::reached("T-F2");
}

// no listing in a stop
#[test]
fn a_stop_asks_for_no_listing() {
    let mut rig = Rig::streaming(&[A], |_| ());
    rig.commit(110, &[A]);
    rig.request(Request::Stop);
    rig.request(Request::Resync(A));
    assert!(rig.has_noticed(|n| matches!(n, Notice::RequestRefused { .. })));
    rig.settle();
    assert!(rig.ended.is_some() && rig.find(is_listing).is_none());
}

// T-09 of an Errored table, and of one whose write waits for its next try
#[test]
fn a_table_leaves_while_its_batch_waits() {
    let mut rig = Rig::streaming(&[A, B], |limits| limits.retry_ms = 20_000);
    rig.commit(110, &[A]);
    let fault = destination(super::rig::TRANSIENT, Blame::Unstated);
    rig.fail(is_main_write, fault);
    withdraw(&mut rig, A);
    rig.live(25_000);
    assert_eq!(rig.offered.len(), 1, "nothing is left of it");
    assert_eq!(rig.pipeline.view().positions.checkpoint, at(111));
    let class = DestinationClass::Manual;
    rig.commit(120, &[B]);
    let blame = Blame::Tables { tables: vec![B], no_effect_on_others: true };
    rig.fail(is_main_write, destination(class, blame));
    withdraw(&mut rig, B);
    publish(&mut rig, C);
    rig.live(10_100);
    assert_eq!((rig.phase(B), rig.phase(C).is_some()), (None, true));
}
