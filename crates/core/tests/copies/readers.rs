//! Several readers of one table (K-19, K-20), and the private stream that keeps a slot alive (K-29).

use core::time::Duration;
use std::collections::BTreeSet;

use walferry_core::Gate;
use walferry_core::effect::Work;
use walferry_core::fault::FaultKind;
use walferry_core::ids::{OpId, StreamId};
use walferry_core::input::Answer;
use walferry_core::notice::Notice;
use walferry_core::record::Phase;
use walferry_core::source::{BlockRange, RangeFacts};

use crate::script::{Script, T, at, is_range, is_rows, source_fault, transaction};

const MIB: u64 = 1 << 20;

/// A table of 256 MiB, read by four connections in sixteen ranges.
fn large() -> Script {
    let mut script = Script::new(|_| ());
    script.heap = (256 * MIB, 32_768);
    script
}

fn is_import(work: &Work<u32>) -> bool {
    matches!(work, Work::OpenReader { reader: 1.., .. })
}

fn range_of(script: &Script, op: OpId) -> (u32, BlockRange) {
    match script.work(op) {
        Work::ReadRange { reader, blocks, .. } => (reader, blocks),
        other => panic!("{other:?}"),
    }
}

// K-20
#[test]
fn each_reader_reads_one_range_at_a_time_from_one_queue() {
    let mut script = large();
    script.until(is_import);
    assert_eq!(script.find(is_import).len(), 3, "four connections in all");
    script.until(is_range);
    while let Some(op) = script.find(is_import).first() {
        script.perform(*op);
    }
    let mut seen = Vec::new();
    while let Some(op) = script.find(is_range).first().copied() {
        let readers: Vec<_> =
            script.find(is_range).iter().map(|op| range_of(&script, *op).0).collect();
        let different: BTreeSet<_> = readers.iter().collect();
        assert_eq!(different.len(), readers.len(), "a reader reads one range at a time");
        assert!(readers.len() == 4 || seen.len() + readers.len() == 16, "nobody is idle");
        seen.push(range_of(&script, op).1);
        script.perform(op);
    }
    seen.sort();
    assert_eq!((seen.len(), seen[0].first, seen[15].end), (16, 0, None));
    assert!(seen.windows(2).all(|pair| pair[0].end == Some(pair[1].first)));
    let finish = script.until(|work| matches!(work, Work::FinishCopy { .. }));
    assert!(matches!(script.work(finish), Work::FinishCopy { sequences: 0, .. }));
    // K-19: readers end once, together
    script.perform(finish);
    assert_eq!(script.find(|work| matches!(work, Work::CloseReaders { .. })).len(), 1);
    script.settle();
    assert_eq!(script.phase(T), Phase::Ready { handover: at(100) });
}

// K-20, K-I2: sequences come from one counter, whoever read the rows
#[test]
fn rows_of_all_readers_share_one_counter_of_sequences() {
    let mut script = large();
    script.until(is_import);
    script.until(is_range);
    while let Some(op) = script.find(is_import).first() {
        script.perform(*op);
    }
    for (block, op) in (0..).zip(script.find(is_range)) {
        script.rows(op, block, 9 * MIB);
    }
    let sequence = |op: &OpId| match script.work(*op) {
        Work::WriteRows(batch) => (batch.sequence, batch.blocks.clone()),
        other => panic!("{other:?}"),
    };
    let written: Vec<_> = script.find(is_rows).iter().map(sequence).collect();
    assert_eq!(written, [(1, vec![0]), (2, vec![1]), (3, vec![2]), (4, vec![3])]);
    let finish = script.until(|work| matches!(work, Work::FinishCopy { .. }));
    assert!(matches!(script.work(finish), Work::FinishCopy { sequences: 4, .. }));
}

// K-20: no more readers than ranges, and one for what is small
#[test]
fn a_small_table_has_one_reader() {
    let mut script = Script::new(|_| ());
    let op = script.until(is_range);
    assert_eq!(range_of(&script, op), (0, BlockRange::ALL));
    assert!(!script.has(is_import));
    // Two blocks and much TOAST.
    let mut script = Script::new(|_| ());
    script.heap = (1_000 * MIB, 2);
    script.until(is_import);
    assert_eq!(script.find(is_import).len(), 1);
}

// K-19, K-20: readers end when the last has imported, even if nothing was left for it
#[test]
fn the_readers_do_not_end_while_one_is_importing() {
    let mut script = large();
    script.until(is_import);
    let schema = script.find(|work| matches!(work, Work::ReadSchema { .. }));
    script.perform(schema[0]);
    let begin = script.find(|work| matches!(work, Work::BeginCopy(_)));
    script.perform(begin[0]);
    while let Some(op) = script.find(is_range).first() {
        script.perform(*op);
    }
    assert_eq!(script.find(is_import).len(), 3);
    assert!(!script.has(|work| matches!(work, Work::FinishCopy { .. })));
    for op in script.find(is_import) {
        script.perform(op);
    }
    assert!(script.has(|work| matches!(work, Work::FinishCopy { .. })));
}

// K-F11: a failing reader cancels the attempt, once the others have ended everything is closed
#[test]
fn one_failing_reader_ends_the_attempt() {
    for at_import in [true, false] {
        let mut script = large();
        script.until(is_import);
        if !at_import {
            script.until(is_range);
        }
        let op = if at_import { script.find(is_import)[1] } else { script.find(is_range)[0] };
        script.fail(op, source_fault(FaultKind::Transport));
        assert!(matches!(script.phase(T), Phase::Errored { .. }));
        let others = script.find(|work| is_range(work) || is_import(work));
        assert!(others.iter().all(|op| script.cancelled.contains(op)));
        assert!(!script.has(|work| matches!(work, Work::CloseCopy { .. })), "not before they end");
        script.settle();
        assert!(script.pipeline.view().tables[0].copy.is_none());
    }
    walferry_coverage::reached("K-F11");
}

// K-17: each range is compared with its own rows
#[test]
fn a_range_that_lost_rows_is_a_protocol_error() {
    let mut script = large();
    script.until(is_import);
    script.until(is_range);
    while let Some(op) = script.find(is_import).first() {
        script.perform(*op);
    }
    let ranges = script.find(is_range);
    script.rows(ranges[0], 1, 10);
    script.rows(ranges[1], 2, 10);
    script.rows(ranges[1], 3, 10);
    script.complete(ranges[1], Ok(Answer::RangeRead(RangeFacts { rows: 2 })));
    assert_eq!(script.phase(T), Phase::Copying);
    script.complete(ranges[0], Ok(Answer::RangeRead(RangeFacts { rows: 2 })));
    assert!(matches!(script.phase(T), Phase::Errored { .. }));
}

// K-29, PG-26, PG-36
#[test]
fn with_an_idle_timeout_the_private_stream_runs_as_soon_as_all_have_imported() {
    let stream = StreamId::Copy(T);
    let is_open =
        |work: &Work<u32>| matches!(work, Work::OpenStream { stream: StreamId::Copy(_), .. });
    let mut script = large();
    script.idle_slot_timeout = true;
    script.until(is_import);
    let imports = script.find(is_import);
    for op in &imports[..2] {
        script.perform(*op);
    }
    assert!(!script.has(is_open), "the exporting connection is silent until all have imported");
    script.perform(imports[2]);
    let open = script.find(is_open)[0];
    assert!(matches!(script.work(open), Work::OpenStream { from, .. } if from == at(100)));
    script.perform(open);
    assert_eq!(script.pipeline.gate(stream), Gate::Closed);
    assert_eq!(script.pipeline.rows_gate(T), Gate::Open, "rows are read all the same");
    // What was on its way before the gate closed waits.
    script.deliver(StreamId::Main, transaction(200, T));
    script.deliver(stream, transaction(200, T));
    script.confirmed.clear();
    script.pass(90);
    let fed: Vec<_> = script.confirmed.iter().filter(|(id, ..)| *id == stream).collect();
    assert!(fed.len() >= 80, "feedback goes on");
    assert!(fed.iter().all(|(_, position, ask)| *position == at(100) && !ask), "at the cutoff");
    assert!(!script.has(|work| matches!(work, Work::WriteChanges(_))), "nothing before K-19");
    let write = script.until(|work| matches!(work, Work::WriteChanges(_)));
    assert!(!script.has(is_range) && !script.has(is_open), "opened once");
    assert_eq!(script.pipeline.gate(stream), Gate::Open);
    script.perform(write);
    script.settle();
    assert_eq!(script.phase(T), Phase::Ready { handover: at(202) });
}

// K-29: its loss fails the attempt only, also during the read
#[test]
fn a_private_stream_that_ends_during_the_read_fails_the_attempt() {
    let mut script = large();
    script.idle_slot_timeout = true;
    script.until(|work| matches!(work, Work::OpenStream { stream: StreamId::Copy(_), .. }));
    script.end_stream(StreamId::Copy(T), source_fault(FaultKind::Transport));
    assert!(matches!(script.phase(T), Phase::Errored { .. }));
    script.settle();
    assert!(script.ended.is_none());
}

// K-22
#[test]
fn running_copies_are_reported_every_ten_seconds() {
    let mut script = large();
    let op = script.until(is_range);
    script.rows(op, 1, 500);
    script.head = 1_100;
    let copying = |script: &Script| {
        let is = |notice: &&Notice| matches!(notice, Notice::Copying { .. });
        script.notices.iter().filter(is).cloned().collect::<Vec<_>>()
    };
    script.advance(Duration::from_secs(10));
    let monitor = script.find(|work| matches!(work, Work::Monitor { .. }));
    script.perform(monitor[0]);
    script.advance(Duration::from_secs(10));
    assert_eq!(copying(&script), [Notice::Copying { table: T, rows: 1, bytes: 500, wal: 1_000 }]);
    // A failing monitor fails nothing.
    let monitor = script.find(|work| matches!(work, Work::Monitor { .. }));
    script.fail(monitor[0], source_fault(FaultKind::Transport));
    assert_eq!(script.phase(T), Phase::Copying);
    script.settle();
    let before = copying(&script).len();
    script.advance(Duration::from_secs(20));
    assert_eq!(copying(&script).len(), before, "no copy, no report");
}
