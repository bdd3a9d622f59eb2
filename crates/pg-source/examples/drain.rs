//! What the source costs by itself: reads a slot or a table to its end, discards it, and prints time
//! and CPU.
//!
//! ```text
//! drain stream URL PUBLICATION SLOT     changes below the present end of the WAL; confirms nothing
//! drain copy URL PUBLICATION TABLE-OID  the rows of a table, through a snapshot of its own
//! ```

#![expect(clippy::print_stdout, reason = "a measurement prints its figures")]

use std::env;
use std::error::Error;
use std::fs;
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use walferry_core::event::Event;
use walferry_core::ids::TableId;
use walferry_core::lsn::Position;
use walferry_core::source::BlockRange;
use walferry_pg_source::{CopyRange, Source, SourceConfig, SourceOptions, StreamMessage};

/// User and system time of this process, in seconds. The kernel counts in hundredths.
fn cpu() -> (f64, f64) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = |field: usize| {
        rest.split(' ').nth(field).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default()
    };
    (ticks(11) / 100.0, ticks(12) / 100.0)
}

fn report(what: &str, count: u64, bytes: u64, messages: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    let (user, system) = cpu();
    let each = |total: f64| total * 1e6 / count.max(1) as f64;
    println!(
        "{count} {what} in {seconds:.2} s = {:.0}/s; CPU {:.2} s user + {:.2} s system = {:.3} us each; \
         {} MiB in {messages} messages",
        count as f64 / seconds,
        user,
        system,
        each(user + system),
        bytes >> 20,
    );
}

async fn stream(source: Source, slot: &str) -> Result<(), Box<dyn Error>> {
    let report_of = source.inspect_slot(slot).await?;
    let facts = report_of.slot.ok_or("no such slot")?;
    let from = Position(facts.confirmed_flush_lsn.ok_or("the slot is being created")?);
    let target = report_of.wal_end;
    let start = Instant::now();
    let (_, stream, mut messages) = source.open_stream(slot, from).await?;
    let (mut changes, mut bytes, mut count) = (0, 0, 0);
    'all: while let Some(message) = messages.recv().await {
        let events = match message {
            StreamMessage::Events(events) => events,
            StreamMessage::Ended(fault) => return Err(fault.into()),
        };
        count += 1;
        for event in events {
            match event {
                Event::Row { bytes: size, .. } => {
                    changes += 1;
                    bytes += u64::from(size);
                }
                Event::Keepalive { wal_end: end, .. } | Event::Commit { end, .. }
                    if end.0 >= target =>
                {
                    break 'all;
                }
                Event::Begin { .. }
                | Event::Relation(_)
                | Event::Ddl(_)
                | Event::Truncate { .. }
                | Event::Message { .. }
                | Event::Commit { .. }
                | Event::Keepalive { .. } => {}
            }
        }
    }
    report("changes", changes, bytes, count, start);
    stream.close().await?;
    Ok(())
}

async fn copy(source: Source, table: TableId) -> Result<(), Box<dyn Error>> {
    let (attempt, _) = source.open_snapshot(table, "drain", false).await?;
    let facts = attempt.open_reader(0).await?;
    let schema = attempt.read_schema().await?.schema;
    let (sink, mut blocks) = mpsc::channel(8);
    let (_gate, open) = watch::channel(true);
    let start = Instant::now();
    let read = async {
        for heap in &facts.heaps {
            let (sink, open) = (sink.clone(), open.clone());
            let filter = facts.filter.as_deref();
            let (relation, blocks, schema) = (heap.relation, BlockRange::ALL, &schema);
            let range = CopyRange { reader: 0, relation, blocks, schema, filter };
            attempt.read_range(range, sink, open).await?;
        }
        drop(sink);
        Ok::<_, Box<dyn Error>>(())
    };
    let count = async {
        let (mut rows, mut bytes, mut count) = (0, 0, 0);
        while let Some(block) = blocks.recv().await {
            rows += block.rows;
            bytes += block.bytes;
            count += 1;
        }
        (rows, bytes, count)
    };
    let (done, (rows, bytes, count)) = tokio::join!(read, count);
    done?;
    report("rows", rows, bytes, count, start);
    attempt.close().await?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [what, url, publication, object] = arguments.as_slice() else {
        return Err("usage: drain stream|copy URL PUBLICATION SLOT|TABLE-OID".into());
    };
    let config = SourceConfig::parse(url, &|name| env::var(name).ok())?;
    let source = Source::new(config, SourceOptions::new(publication));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match what.as_str() {
        "stream" => runtime.block_on(stream(source, object)),
        "copy" => runtime.block_on(copy(source, TableId(object.parse()?))),
        _ => Err("either stream or copy".into()),
    }
}
