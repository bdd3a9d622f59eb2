//! A raw drain: a socket reader that speaks just enough of the protocol to be sent a slot's changes,
//! and discards them. What is slower than this loses its time by itself.
//!
//! Blocking, one thread, one large buffer. It looks at the frames only to answer the server and to
//! see the end.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

/// Read at once, at most.
const BUFFER: usize = 256 << 10;
/// The server writes each row by itself. Whoever reads each row by itself spends its time, and the
/// server's, on waking up; who is told to pauses after a read of less than this.
const READ_MIN: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(2);
/// Pace of feedback, as walferry's.
const FEEDBACK: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    #[arg(long)]
    port: u16,
    #[arg(long)]
    database: String,
    #[arg(long)]
    slot: String,
    #[arg(long)]
    publication: String,
    /// Where to end, as a plain number
    #[arg(long)]
    until: u64,
    /// Pause after small reads
    #[arg(long)]
    pause: bool,
}

/// Drains; the number of row changes goes to standard error.
pub(crate) fn run(args: &DrainArgs) -> ExitCode {
    let (text, code) = match drain(args) {
        Ok(changes) => (changes.to_string(), ExitCode::SUCCESS),
        Err(error) => (format!("drain failed: {error}"), ExitCode::FAILURE),
    };
    drop(writeln!(io::stderr(), "{text}"));
    code
}

fn drain(args: &DrainArgs) -> io::Result<u64> {
    let mut drain = Drain::connect(args)?;
    let start = format!(
        "START_REPLICATION SLOT \"{}\" LOGICAL 0/0 (proto_version '1', publication_names '\"{}\"')",
        args.slot, args.publication
    );
    drain.send(b'Q', &[start.as_bytes(), b"\0"].concat())?;
    let mut next_feedback = Instant::now() + FEEDBACK;
    while drain.position < args.until {
        let read = drain.read()?;
        drain.consume()?;
        if drain.asked || Instant::now() > next_feedback {
            drain.feedback()?;
            next_feedback = Instant::now() + FEEDBACK;
        }
        if args.pause && read < READ_MIN && drain.position < args.until {
            thread::sleep(PAUSE);
        }
    }
    drain.feedback()?;
    // CopyDone, Terminate.
    drain.send(b'c', &[])?;
    drain.send(b'X', &[])?;
    Ok(drain.changes)
}

struct Drain {
    socket: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
    /// Everything below has been received.
    position: u64,
    changes: u64,
    /// The server waits for an answer.
    asked: bool,
}

impl Drain {
    fn connect(args: &DrainArgs) -> io::Result<Self> {
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, args.port))?;
        socket.set_nodelay(true)?;
        let mut startup = vec![0, 0, 0, 0, 0, 3, 0, 0];
        for word in ["user", "postgres", "database", &args.database, "replication", "database", ""]
        {
            startup.extend_from_slice(word.as_bytes());
            startup.push(0);
        }
        let length = u32::try_from(startup.len()).map_err(io::Error::other)?;
        startup[..4].copy_from_slice(&length.to_be_bytes());
        socket.write_all(&startup)?;
        Ok(Self {
            socket,
            buffer: vec![0; BUFFER],
            filled: 0,
            position: 0,
            changes: 0,
            asked: false,
        })
    }

    fn send(&mut self, tag: u8, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len() + 4).map_err(io::Error::other)?;
        self.socket.write_all(&[&[tag], length.to_be_bytes().as_slice(), body].concat())
    }

    fn feedback(&mut self) -> io::Result<()> {
        let position = self.position.to_be_bytes();
        // Written, flushed and applied alike; no clock, no answer wanted.
        let body = [&b"r"[..], &position, &position, &position, &[0; 8], &[0]].concat();
        self.asked = false;
        self.send(b'd', &body)
    }

    fn read(&mut self) -> io::Result<usize> {
        if self.filled == self.buffer.len() {
            // A frame larger than the buffer.
            self.buffer.resize(self.filled * 2, 0);
        }
        match self.socket.read(&mut self.buffer[self.filled..])? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            more => {
                self.filled += more;
                Ok(more)
            }
        }
    }

    /// Looks at all whole messages and drops them.
    fn consume(&mut self) -> io::Result<()> {
        let mut at = 0;
        while let Some((tag, body)) = message(&self.buffer[at..self.filled]) {
            at += 5 + body.len();
            match (tag, body) {
                (b'd', [b'w', header @ ..]) => {
                    self.changes += u64::from(matches!(header.get(24), Some(b'I' | b'U' | b'D')));
                    self.position = self.position.max(number(header, 0));
                }
                (b'd', [b'k', header @ ..]) => {
                    self.position = self.position.max(number(header, 0));
                    self.asked |= header.get(16) == Some(&1);
                }
                (b'E', body) => return Err(io::Error::other(String::from_utf8_lossy(body))),
                (b'R', body) if body != [0; 4] => {
                    return Err(io::Error::other("the server asks for a password"));
                }
                _ => {}
            }
        }
        self.buffer.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }
}

/// The first message, if it is whole.
fn message(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let length = u32::from_be_bytes(bytes.get(1..5)?.try_into().ok()?);
    let end = 1 + usize::try_from(length).ok()?;
    Some((*bytes.first()?, bytes.get(5..end)?))
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_split_only_when_whole() {
        let bytes = [b'd', 0, 0, 0, 6, b'k', 7, b'X', 0, 0, 0, 4];
        assert_eq!(message(&bytes), Some((b'd', &[b'k', 7][..])));
        assert_eq!(message(&bytes[7..]), Some((b'X', &[][..])));
        for end in 0..7 {
            assert_eq!(message(&bytes[..end]), None);
        }
    }
}
