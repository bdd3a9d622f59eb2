//! A stop that does not come to its orderly end.

use walferry_core::batch::Durability;
use walferry_core::effect::Work;
use walferry_core::fault::FaultKind;
use walferry_core::ids::{Lane, StreamId};
use walferry_core::input::{Answer, Input, Request};

use crate::script::{Script, T, is_save, transaction, transient};

// Q-F1, Q-06, F-04: a stop whose last flush fails neither saves, shuts down nor confirms anything
#[test]
fn a_stop_whose_flush_fails_is_a_failure() {
    let mut script = Script::new(|config| config.limits.flush_ms = 60_000);
    script.settle();
    script.deliver(StreamId::Main, transaction(200, T));
    let write = script.find(|work| matches!(work, Work::WriteChanges(_)))[0];
    script.complete(write, Ok(Answer::Written(Durability::Accepted)));
    script.input(Input::Request(Request::Stop));
    let flush = script.until(|work| matches!(work, Work::Flush { lane: Lane::Main }));
    script.started.clear();
    script.confirmed.clear();
    script.fail(flush, transient());
    script.settle();
    assert!(matches!(script.failed(), Some(FaultKind::FlushFailed { .. })));
    assert!(!script.asked(|work| is_save(work) || matches!(work, Work::Shutdown)));
    assert!(script.confirmed.is_empty());
}
