//! What the destination is offered, lane by lane: the order and the size of batches (B-I1, B-I2), and
//! what a copy and a handover may build upon (DS-I1, DS-I4).

use walferry_core::batch::{Batch, ChangeBody};
use walferry_core::config::Limits;
use walferry_core::effect::Work;
use walferry_core::ids::{EventKey, Lane, StreamId};

use super::Watch;
use crate::coverage::reached;
use crate::world::row::Row;

/// Least target of a batch (B-04).
const TARGET_MIN: u64 = 64 << 10;

/// What a judge remembers of one lane in one session of its stream.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::world) struct LaneWatch {
    /// The last event that an operation took for certain.
    taken: Option<EventKey>,
    /// Whether a flush of the lane succeeded: something had been accepted only.
    pub(in crate::world) flushed: bool,
}

impl Watch {
    /// A batch of changes is offered.
    ///
    /// # Panics
    /// If it is out of order or too large.
    pub(in crate::world) fn judge_order(&mut self, batch: &Batch<Row>) {
        let mut keys = events(batch);
        let (Some(first), last) = (keys.next(), events(batch).last()) else { return };
        let taken = self.lanes.entry(batch.lane).or_default().taken;
        assert!(
            taken < Some(first),
            "{:?} is offered {first:?} behind {taken:?} (B-I1)",
            batch.lane
        );
        let mut before = first;
        for key in keys {
            assert!(before <= key, "{before:?} goes before {key:?} in a batch (B-I1)");
            before = key;
        }
        if taken.is_some_and(|taken| taken.commit == first.commit) && last > Some(first) {
            // The rest of a transaction of which a batch before held the beginning.
            reached("B-I1");
        }
    }

    /// A stream or an attempt begins: what it sends may have been sent before.
    pub(in crate::world) fn lane_begins(&mut self, work: &Work<Row>) {
        if let Work::OpenStream { stream, .. } = work {
            self.lanes.remove(&match stream {
                StreamId::Main => Lane::Main,
                StreamId::Copy(table) => Lane::Table(*table),
            });
        }
        if let Work::BeginCopy(start) = work {
            self.lanes.remove(&Lane::Table(start.table));
        }
    }

    /// An operation of a lane is over.
    pub(in crate::world) fn lane_ended(&mut self, work: &Work<Row>, done: bool) {
        if let (Work::WriteChanges(batch), true) = (work, done) {
            let lane = self.lanes.entry(batch.lane).or_default();
            lane.taken = lane.taken.max(events(batch).last());
        }
        if let (Work::Flush { lane }, true) = (work, done) {
            self.lanes.entry(*lane).or_default().flushed = true;
        }
    }
}

/// B-I2: the target, and one event more.
///
/// # Panics
/// If a batch is larger.
pub(in crate::world) fn check_size(batch: &Batch<Row>, limits: &Limits, event_bytes: u64) {
    let target = limits.batch_bytes.min(limits.memory_bytes / 4).max(TARGET_MIN);
    let most = target + event_bytes;
    assert!(batch.bytes <= most, "a batch of {} bytes, of {most} (B-I2)", batch.bytes);
    let mut keys: Vec<_> = events(batch).collect();
    keys.dedup();
    let number = keys.len() as u64;
    let bounded = limits.batch_events > 0;
    assert!(!bounded || number <= limits.batch_events, "{number} events in a batch (B-I2)");
    if batch.bytes >= target || (bounded && number == limits.batch_events) {
        reached("B-I2");
    }
}

/// Keys of the rows and truncates of a batch.
fn events(batch: &Batch<Row>) -> impl Iterator<Item = EventKey> {
    batch.changes.iter().filter_map(|change| {
        let counts = matches!(change.body, ChangeBody::Row { .. } | ChangeBody::Truncate { .. });
        let commit = batch.transactions[change.transaction as usize].commit;
        counts.then_some(EventKey { commit, ordinal: change.ordinal })
    })
}
