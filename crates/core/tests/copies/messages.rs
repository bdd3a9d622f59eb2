//! Logical messages that are not walferry's own (J-06).

use walferry_core::batch::ChangeBody;
use walferry_core::effect::Work;
use walferry_core::event::Event;
use walferry_core::ids::{Lane, StreamId};
use walferry_core::lsn::{CommitLsn, Lsn};
use walferry_core::names::HEARTBEAT_PREFIX;

use crate::script::{Script, T, at, transaction};

fn is_write(work: &Work<u32>) -> bool {
    matches!(work, Work::WriteChanges(_))
}

/// A transaction of messages alone.
fn messages(commit: u64, prefixes: &[&str]) -> Vec<Event<u32>> {
    let (begin, end) = (CommitLsn(Lsn(commit)), at(commit + 2));
    let message = |prefix: &&str| Event::Message {
        transactional: true,
        lsn: Lsn(commit - 1),
        prefix: (*prefix).into(),
        content: 0,
        bytes: 10,
    };
    let mut events = vec![Event::Begin { commit: begin, time_us: 0 }];
    events.extend(prefixes.iter().map(message));
    events.push(Event::Commit { commit: begin, end });
    events
}

fn offered(script: &Script) -> Vec<(Lane, Vec<String>)> {
    let prefix = |body: &ChangeBody<u32>| match body {
        ChangeBody::Message { prefix, .. } => prefix.to_string(),
        ChangeBody::Row { .. } => "row".to_owned(),
        ChangeBody::Truncate { .. } | ChangeBody::Schema { .. } => "other".to_owned(),
    };
    let offered = script.started.iter().filter_map(|work| match work {
        Work::WriteChanges(batch) => {
            Some((batch.lane, batch.changes.iter().map(|c| prefix(&c.body)).collect()))
        }
        _ => None,
    });
    offered.collect()
}

// J-06, N-15: main passes them to a destination that wants them, and never those of walferry
#[test]
fn main_passes_messages_to_a_destination_that_wants_them() {
    for wants in [true, false] {
        let mut script = Script::new(|config| config.destination.wants_messages = wants);
        script.settle();
        script.deliver(StreamId::Main, messages(200, &["app", HEARTBEAT_PREFIX]));
        script.settle();
        let expected = if wants { vec![(Lane::Main, vec!["app".to_owned()])] } else { Vec::new() };
        assert_eq!(offered(&script), expected);
        assert_eq!(script.pipeline.view().positions.checkpoint, at(202));
    }
}

// J-06: a private stream passes its table alone
#[test]
fn a_private_stream_passes_no_messages() {
    let mut script = Script::new(|config| config.destination.wants_messages = true);
    let finish = script.until(|work| matches!(work, Work::FinishCopy { .. }));
    script.deliver(StreamId::Main, transaction(200, T));
    script.perform(finish);
    let is_private =
        |work: &Work<u32>| matches!(work, Work::OpenStream { stream: StreamId::Copy(_), .. });
    let open = script.until(is_private);
    script.perform(open);
    script.deliver(StreamId::Copy(T), messages(150, &["app"]));
    script.deliver(StreamId::Copy(T), transaction(200, T));
    let write = script.until(is_write);
    script.perform(write);
    assert_eq!(offered(&script), [(Lane::Table(T), vec!["row".to_owned()])]);
}
