use super::rig::{A, B, Rig, TRANSIENT, destination};
use crate::effect::Work;
use crate::fault::{Blame, DestinationClass};
use crate::ids::{Attempt, TableId};
use crate::input::Request;
use crate::notice::Notice;
use crate::record::{Phase, Policy};

fn refusals(rig: &Rig) -> Vec<&str> {
    let refusals = rig.notices.iter().filter_map(|notice| {
        if let Notice::RequestRefused { reason, .. } = notice {
            Some(reason.as_str())
        } else {
            None
        }
    });
    refusals.collect()
}

fn begins(work: &Work<u32>) -> bool {
    matches!(work, Work::BeginCopy(_))
}

fn errored(class: DestinationClass) -> Rig {
    let mut rig = Rig::new(&[A], |limits| limits.retries_max = 0);
    rig.settle_but(begins);
    rig.fail(begins, destination(class, Blame::Unstated));
    rig.settle();
    assert!(matches!(rig.phase(A), Some(Phase::Errored { .. })));
    rig
}

// Y-09
#[test]
fn a_retry_takes_an_errored_table_and_forgets_its_tries() {
    for class in [DestinationClass::Manual, TRANSIENT] {
        let mut rig = errored(class);
        rig.request(Request::Retry(A));
        assert_eq!(rig.phase(A), Some(Phase::Pending));
        assert_eq!(rig.pipeline.ledger.record().tables[&A].tries, 0);
        rig.settle();
        assert!(matches!(rig.phase(A), Some(Phase::Ready { .. })));
        assert_eq!(refusals(&rig).len(), 0);
    }
}

// Y-09, Y-F4: a retry by hand, and the timer that comes after it
#[test]
fn a_retry_by_hand_races_with_the_timed_one() {
    let mut rig = Rig::new(&[A], |_| ());
    rig.settle_but(begins);
    rig.fail(begins, destination(TRANSIENT, Blame::Unstated));
    rig.settle();
    assert!(matches!(rig.phase(A), Some(Phase::Errored { policy: Policy::Timed, .. })));
    rig.request(Request::Retry(A));
    rig.settle_but(begins);
    rig.wait(10_000);
    rig.settle();
    assert_eq!(rig.pipeline.ledger.record().tables[&A].attempt, Some(Attempt(2)), "one attempt");
    assert!(matches!(rig.phase(A), Some(Phase::Ready { .. })));
    walferry_coverage::reached("Y-F4");
}

// Y-09: refused with a reason, and nothing is changed
#[test]
fn what_may_not_be_retried_is_refused() {
    let mut rig = errored(DestinationClass::Permanent);
    rig.request(Request::Retry(A));
    rig.request(Request::Retry(TableId(77)));
    rig.request(Request::Resync(TableId(77)));
    assert_eq!(refusals(&rig).len(), 3);
    assert!(matches!(rig.phase(A), Some(Phase::Errored { policy: Policy::None, .. })));
    rig.request(Request::Resync(A));
    assert_eq!(rig.phase(A), Some(Phase::Pending), "also policy none");
    let mut rig = Rig::streaming(&[A], |_| ());
    rig.request(Request::Retry(A));
    assert_eq!(refusals(&rig), ["table public.t1 is ready, not errored"]);
}

// Y-09: during start-up it waits for the run to be Running, and a stop refuses it
#[test]
fn a_request_during_start_up_waits_for_its_end() {
    let mut rig = Rig::new(&[A], |_| ());
    rig.request(Request::Retry(TableId(77)));
    assert_eq!(refusals(&rig).len(), 0);
    rig.settle();
    assert_eq!(refusals(&rig), ["the state knows no table 77"]);
    let mut rig = Rig::new(&[A], |_| ());
    rig.request(Request::Resync(A));
    rig.request(Request::Stop);
    assert_eq!(refusals(&rig), ["the run is stopping"]);
}

// Y-09, T-I2: a resync of a table that is being copied cancels the attempt; the next one waits for it
#[test]
fn a_resync_cancels_the_attempt_that_runs() {
    let mut rig = Rig::new(&[A, B], |_| ());
    let reads = |work: &Work<u32>| matches!(work, Work::ReadRange { table: A, .. });
    let closes = |work: &Work<u32>| matches!(work, Work::CloseCopy { .. });
    rig.settle_but(reads);
    rig.request(Request::Resync(A));
    rig.request(Request::Resync(A));
    assert_eq!(rig.phase(A), Some(Phase::Pending));
    rig.settle_but(closes);
    assert_eq!(rig.phase(A), Some(Phase::Pending), "the old attempt is not closed");
    rig.settle();
    let entry = rig.pipeline.ledger.record().tables[&A].clone();
    assert!(matches!(entry.phase, Phase::Ready { .. }));
    assert_eq!((entry.attempt, entry.tries), (Some(Attempt(3)), 0));
    walferry_coverage::reached("T-I2");
}

// Y-09, X-15, H-02: resync right behind the handover, before it is saved
#[test]
fn a_resync_of_a_table_that_is_handing_over() {
    let mut rig = Rig::new(&[A], |_| ());
    rig.settle_but(|work| matches!(work, Work::CloseReaders { .. }));
    rig.finish(|work| matches!(work, Work::CloseReaders { .. }));
    assert!(rig.phase(A).and_then(|phase| phase.handover()).is_some());
    rig.request(Request::Resync(A));
    rig.settle();
    let entry = rig.pipeline.ledger.record().tables[&A].clone();
    assert!(matches!(entry.phase, Phase::Ready { .. }));
    assert_eq!(entry.attempt, Some(Attempt(2)));
}
