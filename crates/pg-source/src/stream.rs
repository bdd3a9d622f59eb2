//! A replication stream: reads, decodes and hands over events, and sends feedback, on its own thread.
//!
//! Owns when to read. Must never know which events are wanted or what may be confirmed.
//!
//! The server writes every change by itself, so that a reader which takes what is there is woken for
//! one or two rows. Under load this one waits a moment after a small read, so that the next is large.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::{mpsc, watch};
use walferry_core::event::Event;
use walferry_core::fault::Fault;
use walferry_core::lsn::Position;
use walferry_core::wire::{
    self, DecodeError, Limits, StreamDecoder, complete_frames, frame_size, next_frame,
    standby_status,
};

use crate::error::{ServerError, SourceError};
use crate::session::{Session, unexpected};
use crate::sql;
use crate::worker::{After, Worker};

/// A read buffer: large enough that a full one is worth a hand-over.
const BUFFER_BYTES: usize = 256 << 10;
/// With less room than this a new buffer is taken.
const ROOM_BYTES: usize = 64 << 10;
/// A buffer above this is not kept: it came of one huge row.
const KEEP_BYTES: usize = 1 << 20;
/// Messages on their way to the receiver, which counts their bytes only once it has them.
const MESSAGES: usize = 3;
/// A read below this is small.
const SMALL_BYTES: usize = 16 << 10;
/// How long to wait after a small read under load.
const COALESCE: Duration = Duration::from_millis(2);
/// Reads that come within this of each other are load.
const BUSY: Duration = Duration::from_micros(500);
/// So many of them are load and not one transaction.
const BUSY_READS: u32 = 8;
/// Less than this after a rest is no load: half a megabyte a second.
const QUIET_BYTES: usize = 1 << 10;
/// Bytes without a whole event are told this often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// Longest time for the last confirmation of a stream that closes.
const GOODBYE: Duration = Duration::from_secs(2);
const DURING: &str = "streaming";
/// The frame that asks the server to end the stream.
const COPY_DONE: [u8; 5] = [b'c', 0, 0, 0, 4];

/// What a stream delivers.
#[derive(Debug, PartialEq)]
pub enum StreamMessage {
    /// Events in stream order; none if bytes came that are not yet a whole event.
    Events(Vec<Event<Bytes>>),
    /// The stream ended although nobody closed it. The last message.
    Ended(Fault),
}

/// Controls an open stream. Dropping it closes the stream.
#[derive(Debug)]
pub struct StreamHandle {
    control: watch::Sender<Control>,
    worker: Arc<Worker>,
}

/// What the reader shall do, as of now: later wishes replace earlier ones.
#[derive(Clone, Copy, Debug)]
struct Control {
    position: Position,
    /// Counts confirmations and, among them, those that ask for an answer.
    confirms: u64,
    asks: u64,
    gate: bool,
    close: bool,
}

impl StreamHandle {
    /// Tells the server that everything below `position` may go; with `ask_reply` it answers with a
    /// keepalive at once (PG-11). Sent whatever the gate and however full the channel.
    pub fn confirm(&self, position: Position, ask_reply: bool) {
        self.control.send_modify(|control| {
            control.position = position;
            control.confirms += 1;
            control.asks += u64::from(ask_reply);
        });
    }

    /// Whether the reader may take more from the socket. A stream starts with its gate open.
    pub fn set_gate(&self, open: bool) {
        self.control.send_if_modified(|control| {
            let differs = control.gate != open;
            control.gate = open;
            differs
        });
    }

    /// Ends the stream and waits for the end of its connection.
    ///
    /// # Errors
    /// None so far.
    pub async fn close(&self) -> Result<(), Fault> {
        self.control.send_modify(|control| control.close = true);
        self.worker.ended().await;
        Ok(())
    }
}

/// Starts streaming from `slot` in the session of `worker`, which from then on does nothing else.
pub(crate) async fn start(
    worker: Arc<Worker>,
    slot: &str,
    from: Position,
    publication: &str,
) -> Result<(StreamHandle, mpsc::Receiver<StreamMessage>), SourceError> {
    let command = command(slot, from, publication);
    let during = format!("starting to stream from slot {slot} at {from}");
    worker.run(async move |session| session.start_copy(&during, &command, b'W').await).await?;
    let (control, wishes) =
        watch::channel(Control { position: from, confirms: 0, asks: 0, gate: true, close: false });
    let (sender, messages) = mpsc::channel(MESSAGES);
    worker.detach(async move |session: &mut Session| {
        let limits = Limits { frame_bytes: session.connector().frame_bytes, ..Limits::default() };
        let reader = Reader {
            session,
            decoder: StreamDecoder::new(from, limits),
            done: (0, 0),
            wishes,
            out: sender,
            pace: Pace::new(Instant::now()),
            told: Instant::now(),
        };
        reader.run().await;
        After::End
    })?;
    Ok((StreamHandle { control, worker }, messages))
}

/// Options as A-01 wants them. The list of publications is a text of quoted names.
fn command(slot: &str, from: Position, publication: &str) -> String {
    format!(
        "START_REPLICATION SLOT {} LOGICAL {from} \
         (proto_version '1', publication_names {}, messages 'true')",
        sql::ident(slot),
        sql::literal(&sql::ident(publication)),
    )
}

struct Reader<'a> {
    session: &'a mut Session,
    decoder: StreamDecoder,
    /// Confirmations and questions that were sent.
    done: (u64, u64),
    wishes: watch::Receiver<Control>,
    out: mpsc::Sender<StreamMessage>,
    pace: Pace,
    /// When the receiver last heard of us.
    told: Instant,
}

/// Why the reader stops.
enum Stop {
    /// It was told to, or nobody listens.
    Closed,
    Failed(SourceError),
}

impl From<SourceError> for Stop {
    fn from(error: SourceError) -> Self {
        Self::Failed(error)
    }
}

impl Reader<'_> {
    async fn run(mut self) {
        let Err(stop) = self.pump().await;
        let Stop::Failed(error) = stop else { return };
        let ended = StreamMessage::Ended(error.into());
        // Only a close can come in between: confirmations of a dead stream go nowhere.
        let close = self.wishes.wait_for(|control| control.close);
        tokio::select! {
            biased;
            _ = close => {}
            _ = self.out.send(ended) => {}
        }
    }

    async fn pump(&mut self) -> Result<Infallible, Stop> {
        let limit = self.session.connector().frame_bytes;
        // What came together with the answer that opened the stream.
        let mut unread = self.session.input().len();
        loop {
            let gate = self.obey().await?;
            if !gate {
                self.wishes.changed().await.map_err(|_| Stop::Closed)?;
                continue;
            }
            let permit = tokio::select! {
                biased;
                changed = self.wishes.changed() => { changed.map_err(|_| Stop::Closed)?; continue }
                permit = self.out.reserve() => permit.map_err(|_| Stop::Closed)?,
            };
            make_room(self.session.input(), 0, limit)?;
            let read = match std::mem::take(&mut unread) {
                0 => tokio::select! {
                    biased;
                    changed = self.wishes.changed() => {
                        changed.map_err(|_| Stop::Closed)?;
                        continue;
                    }
                    read = fill(self.session, DURING) => read?,
                },
                unread => unread,
            };
            let mut events = Vec::new();
            let decoded = decode(self.session, &mut self.decoder, &mut events);
            let now = Instant::now();
            // Bytes without a whole event are told too, so that silence can be told from slowness.
            if !events.is_empty() || now.duration_since(self.told) >= SIGN_OF_LIFE {
                permit.send(StreamMessage::Events(events));
                self.told = now;
            } else {
                drop(permit);
            }
            decoded?;
            if self.pace.is_load(now, read) {
                self.rest().await?;
            }
        }
    }

    /// Waits so that the next read is large. Wishes are served meanwhile.
    async fn rest(&mut self) -> Result<(), Stop> {
        let until = tokio::time::sleep(COALESCE);
        let mut until = pin!(until);
        loop {
            tokio::select! {
                biased;
                changed = self.wishes.changed() => {
                    changed.map_err(|_| Stop::Closed)?;
                    self.obey().await?;
                }
                () = &mut until => break,
            }
        }
        self.pace.last = Instant::now();
        Ok(())
    }

    /// Sends the last confirmation before the stream closes: an orderly stop ends with it.
    /// Then the server is asked to end the stream, and its answer awaited: a connection that is closed
    /// over unread bytes is reset, and the server may lose what it has not read yet. One that does not
    /// answer in time loses nothing, the next start confirms it.
    async fn say_goodbye(&mut self, control: Control) -> Result<(), Stop> {
        if control.confirms == 0 {
            return Ok(());
        }
        let goodbye = async {
            if self.done.0 != control.confirms {
                self.session.send_bytes(&feedback(control.position, false), DURING).await?;
            }
            self.session.send_bytes(&COPY_DONE, DURING).await?;
            self.skip_to_the_end().await
        };
        tokio::time::timeout(GOODBYE, goodbye).await.unwrap_or(Ok(()))?;
        Ok(())
    }

    /// Reads on, past everything, until the server has ended the stream.
    async fn skip_to_the_end(&mut self) -> Result<(), SourceError> {
        let limit = self.session.connector().frame_bytes;
        loop {
            let input = self.session.input();
            while let Some(frame) = next_frame(input, limit).map_err(undecodable)? {
                let (tag, size) = (frame.tag, frame.size());
                if matches!(tag, b'c' | b'C' | b'E') {
                    return Ok(());
                }
                input.advance(size);
            }
            make_room(input, 0, limit)?;
            fill(self.session, DURING).await?;
        }
    }

    /// Does what was wished since the last look; whether the gate is open.
    async fn obey(&mut self) -> Result<bool, Stop> {
        let control = *self.wishes.borrow_and_update();
        if control.close {
            self.say_goodbye(control).await?;
            return Err(Stop::Closed);
        }
        if self.done.0 != control.confirms {
            let reply = self.done.1 != control.asks;
            self.done = (control.confirms, control.asks);
            let frame = feedback(control.position, reply);
            let mut close = self.wishes.clone();
            // The server reads at all times, unless it hangs: then only a close gets us out.
            tokio::select! {
                biased;
                sent = self.session.send_bytes(&frame, DURING) => sent?,
                _ = close.wait_for(|control| control.close) => return Err(Stop::Closed),
            }
        }
        Ok(control.gate)
    }
}

fn undecodable(source: DecodeError) -> SourceError {
    SourceError::Decode { what: "the stream", source }
}

/// A status update as a CopyData frame.
fn feedback(position: Position, reply: bool) -> [u8; 39] {
    // Only shown by the server, so a clock that is wrong does no harm.
    let epoch = UNIX_EPOCH + Duration::from_secs(946_684_800);
    let now = SystemTime::now().duration_since(epoch).unwrap_or_default();
    let body = standby_status(position, i64::try_from(now.as_micros()).unwrap_or_default(), reply);
    let mut frame = [0; 39];
    let header = [wire::COPY_DATA, 0, 0, 0, 38];
    for (to, from) in frame.iter_mut().zip(header.into_iter().chain(body)) {
        *to = from;
    }
    frame
}

/// Makes room for a read: for the rest of the frame that is under way, twice the bytes that are
/// there at most, so that no length alone makes us allocate.
///
/// The frame starts behind `whole` bytes of others.
pub(crate) fn make_room(
    input: &mut BytesMut,
    whole: usize,
    limit: usize,
) -> Result<(), SourceError> {
    let begun = input.get(whole..).unwrap_or_default();
    let missing = frame_size(begun, limit).map_err(undecodable)?.unwrap_or_default();
    let missing = missing.saturating_sub(begun.len());
    if missing > ROOM_BYTES || input.capacity() - input.len() < ROOM_BYTES {
        input.reserve(missing.min(input.len()).max(BUFFER_BYTES));
    }
    Ok(())
}

/// Waits for bytes and takes what is there, up to the end of the buffer.
pub(crate) async fn fill(session: &mut Session, during: &str) -> Result<usize, SourceError> {
    let mut read = session.read(during).await?;
    // TLS gives one record at a time, though more have been received.
    while session.transport().is_tls() && session.input().capacity() - session.input().len() > 0 {
        let more = {
            let mut next = pin!(session.read(during));
            poll_fn(|context| match next.as_mut().poll(context) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => Poll::Ready(None),
            })
            .await
        };
        match more {
            Some(result) => read += result?,
            None => break,
        }
    }
    Ok(read)
}

/// Decodes the complete frames of the input. What was decoded before an error is in `events`.
fn decode(
    session: &mut Session,
    decoder: &mut StreamDecoder,
    events: &mut Vec<Event<Bytes>>,
) -> Result<(), SourceError> {
    let limit = session.connector().frame_bytes;
    let input = session.input();
    let complete = complete_frames(input, limit).map_err(undecodable)?;
    if complete == 0 {
        return Ok(());
    }
    let mut chunk = input.split_to(complete).freeze();
    if complete > KEEP_BYTES {
        *input = BytesMut::from(&input[..]);
    }
    // A small change is about 130 bytes with its headers.
    events.reserve(complete / 128);
    loop {
        let progress = decoder.decode(&chunk, events).map_err(undecodable)?;
        chunk.advance(progress.consumed);
        let Some(frame) = next_frame(&chunk, limit).map_err(undecodable)? else { return Ok(()) };
        match frame.tag {
            b'N' | b'S' => {}
            b'E' => {
                let error = ServerError::parse(frame.body);
                return Err(SourceError::Server { during: DURING.to_owned(), error });
            }
            // CopyDone: the server ends the stream in order, as it does when it shuts down.
            b'c' | b'C' => return Err(SourceError::Closed { during: DURING.to_owned() }),
            tag => return Err(unexpected(DURING, tag)),
        }
        let size = frame.size();
        chunk.advance(size);
    }
}

/// Tells load from single transactions.
struct Pace {
    /// End of the last read.
    last: Instant,
    /// Reads that came at once, less those that did not.
    busy: u32,
    /// Under load: small reads are followed by a rest.
    load: bool,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { last: now, busy: 0, load: false }
    }

    /// Whether a rest after this read of `bytes` would make the next one larger. Load begins with
    /// reads that come at once, and goes on while a rest brings enough: a single gap, which a busy
    /// machine makes all the time, does not end it.
    fn is_load(&mut self, now: Instant, bytes: usize) -> bool {
        let at_once = now.duration_since(self.last) < BUSY;
        self.last = now;
        if self.load {
            self.load = bytes >= QUIET_BYTES;
        } else {
            self.busy = if at_once { self.busy + 1 } else { self.busy / 2 };
            self.load = self.busy >= BUSY_READS;
        }
        if self.load {
            self.busy = 0;
        }
        self.load && bytes < SMALL_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walferry_core::lsn::Lsn;

    #[test]
    fn load_outlasts_a_gap_and_ends_when_a_rest_brings_little() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let mut read = |micros, bytes| {
            now += Duration::from_micros(micros);
            pace.is_load(now, bytes)
        };
        assert!((0..7).all(|_| !read(50, 200)), "one transaction is no load");
        assert!(read(50, 200));
        assert!(read(5_000, 4_000), "a gap does not end it");
        assert!(!read(50, SMALL_BYTES), "a large read needs no rest");
        assert!(read(50, 4_000));
        assert!(!read(2_000, 500), "a rest brought little");
        assert!(!read(1_000, 500), "a transaction each millisecond is no load");
    }

    //
    #[test]
    fn names_are_quoted_twice() {
        assert_eq!(
            command("s", Position(Lsn(0x1_0000_0002)), "it's \"mine\""),
            "START_REPLICATION SLOT \"s\" LOGICAL 1/2 (proto_version '1', \
             publication_names '\"it''s \"\"mine\"\"\"', messages 'true')"
        );
    }

    // C-08
    #[test]
    fn feedback_is_a_whole_frame() {
        let frame = feedback(Position(Lsn(7)), true);
        let parsed = next_frame(&frame, 1024).unwrap().unwrap();
        assert_eq!((parsed.tag, parsed.size()), (b'd', frame.len()));
        assert_eq!((parsed.body[0], parsed.body[8], parsed.body[33]), (b'r', 7, 1));
    }

    //
    #[test]
    fn a_length_alone_does_not_make_us_allocate() {
        let mut input = BytesMut::from(&b"d\x3F\xFF\xFF\xFFabc"[..]);
        make_room(&mut input, 0, 1 << 30).unwrap();
        assert!(input.capacity() <= 2 * BUFFER_BYTES);
        assert!(make_room(&mut input, 0, 1 << 20).is_err());
    }
}
