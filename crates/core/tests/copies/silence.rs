//! A connection on which nothing comes any more.

use core::time::Duration;

use walferry_core::effect::Work;
use walferry_core::fault::FaultKind;
use walferry_core::ids::StreamId;
use walferry_core::notice::Notice;
use walferry_core::record::{Phase, Policy};
use walferry_coverage::reached;

use crate::script::{Script, T, transaction};

/// Lets a time pass in which no stream says anything and everything else answers.
fn silence(script: &mut Script, seconds: u64) {
    for _ in 0..seconds {
        script.advance(Duration::from_secs(1));
        script.settle();
    }
}

fn asked_for_reply(script: &Script, stream: StreamId) -> bool {
    script.confirmed.iter().any(|&(id, _, asked)| asked && id == stream)
}

// a reply is asked for at half of the budget; at its end the stream is lost and opened again
#[test]
fn a_silent_main_stream_is_asked_and_then_opened_again() {
    let mut script = Script::new(|_| ());
    script.settle();
    script.started.clear();
    silence(&mut script, 28);
    assert!(!asked_for_reply(&script, StreamId::Main));
    silence(&mut script, 20);
    assert!(asked_for_reply(&script, StreamId::Main));
    let is_lost = |notice: &Notice| matches!(notice, Notice::MainRetry { failures: 1, .. });
    assert!(!script.told(is_lost));
    silence(&mut script, 30);
    assert!(script.told(is_lost));
    assert!(script.asked(|work| matches!(work, Work::OpenStream { stream: StreamId::Main, .. })));
    assert_eq!(script.pipeline.view().lifecycle, "running");
    reached("A-F3");
}

// anything that comes is a sign of life
#[test]
fn a_sign_of_life_is_enough() {
    let mut script = Script::new(|_| ());
    script.settle();
    for _ in 0..10 {
        silence(&mut script, 50);
        script.deliver(StreamId::Main, Vec::new());
    }
    assert!(!script.told(|notice| matches!(notice, Notice::MainRetry { .. })));
}

// A-10, W-10: a private stream that goes silent fails its attempt and nothing else
#[test]
fn a_silent_private_stream_fails_its_attempt() {
    let mut script = Script::new(|_| ());
    let finish = script.until(|work| matches!(work, Work::FinishCopy { .. }));
    script.deliver(StreamId::Main, transaction(200, T));
    script.perform(finish);
    let is_private =
        |work: &Work<u32>| matches!(work, Work::OpenStream { stream: StreamId::Copy(_), .. });
    let open = script.until(is_private);
    script.perform(open);
    for _ in 0..75 {
        silence(&mut script, 1);
        script.deliver(StreamId::Main, Vec::new());
        if script.phase(T) != Phase::Copying {
            break;
        }
    }
    let phase = script.phase(T);
    assert!(matches!(phase, Phase::Errored { policy: Policy::Timed, .. }), "{phase:?}");
    let is_silence = |notice: &Notice| {
        matches!(notice, Notice::TableErrored { fault: Some(fault), .. }
            if matches!(fault.kind, FaultKind::Timeout { .. }))
    };
    assert!(script.told(is_silence));
    assert!(script.ended.is_none());
}
