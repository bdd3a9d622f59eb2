//! COPY out of the server: rows as blocks of whole frames, handed over without a copy.
//!
//! Owns the size of blocks. Must never look inside a row.

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, watch};
use walferry_core::source::RangeFacts;
use walferry_core::wire::{COPY_DATA, count_copy_rows, next_frame};

use crate::error::{ServerError, SourceError};
use crate::session::{Session, unexpected};
use crate::stream::{fill, make_room};

/// A block is handed over when it has at least this many bytes, or rows end.
const BLOCK_BYTES: usize = 64 << 10;

/// Whole CopyData frames, a row each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyBlock {
    /// The frames, headers included.
    pub block: Bytes,
    /// Rows in it, at least 1.
    pub rows: u64,
    /// Memory it keeps alive, in bytes.
    pub bytes: u64,
}

/// Runs the COPY `command` and hands its rows over. A closed `gate` stops reading the socket.
pub(crate) async fn copy_out(
    session: &mut Session,
    during: &str,
    command: &str,
    sink: &mpsc::Sender<CopyBlock>,
    gate: &mut watch::Receiver<bool>,
) -> Result<RangeFacts, SourceError> {
    session.start_copy(during, command, b'H').await?;
    match rows(session, during, sink, gate).await {
        Ok(facts) => Ok(facts),
        Err(error) => Err(session.after_error(error).await),
    }
}

async fn rows(
    session: &mut Session,
    during: &str,
    sink: &mpsc::Sender<CopyBlock>,
    gate: &mut watch::Receiver<bool>,
) -> Result<RangeFacts, SourceError> {
    let decode = |source| SourceError::Decode { what: "copied rows", source };
    let limit = session.connector().frame_bytes;
    let mut facts = RangeFacts::default();
    let mut block = Block { scanned: 0, rows: 0 };
    loop {
        let input = session.input();
        let run = count_copy_rows(input.get(block.scanned..).unwrap_or_default(), limit)
            .map_err(decode)?;
        block.scanned += run.consumed;
        block.rows += run.rows;
        let rest = input.get(block.scanned..).unwrap_or_default();
        let next = next_frame(rest, limit).map_err(decode)?.map(|f| (f.tag, f.size()));
        debug_assert!(next.is_none_or(|(tag, _)| tag != COPY_DATA), "the run took them all");
        if block.scanned >= BLOCK_BYTES || (next.is_some() && block.rows > 0) {
            facts.rows += block.rows;
            hand_over(session.input(), &mut block, sink).await?;
            continue;
        }
        match next {
            Some((tag, size)) => {
                let frame = session.input().split_to(size).freeze();
                match tag {
                    b'E' => {
                        let error = ServerError::parse(frame.get(5..).unwrap_or_default());
                        return Err(SourceError::Server { during: during.to_owned(), error });
                    }
                    b'Z' => {
                        session.settle(frame.get(5));
                        return Ok(facts);
                    }
                    b'N' | b'S' | b'c' | b'C' => {}
                    tag => return Err(unexpected(during, tag)),
                }
            }
            None => {
                // An error means that nobody holds the gate: then it stands open.
                drop(gate.wait_for(|open| *open).await);
                make_room(session.input(), block.scanned, limit)?;
                fill(session, during).await?;
            }
        }
    }
}

/// Frames at the start of the input that are complete and counted.
struct Block {
    scanned: usize,
    rows: u64,
}

async fn hand_over(
    input: &mut BytesMut,
    block: &mut Block,
    sink: &mpsc::Sender<CopyBlock>,
) -> Result<(), SourceError> {
    let bytes = input.split_to(block.scanned).freeze();
    let size = bytes.len() as u64;
    let full = CopyBlock { block: bytes, rows: block.rows, bytes: size };
    *block = Block { scanned: 0, rows: 0 };
    sink.send(full).await.map_err(|_| SourceError::Stopped("a copy"))
}
