//! A client that adds nothing of its own: what the server sends is what a test sees.
//!
//! Facts about PostgreSQL are asked through it, so that none of them rests on walferry's own
//! connections. One blocking socket, the simple protocol, and the frames of a replication stream.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use walferry_core::lsn::{CommitLsn, Lsn, Position};
use walferry_core::wire::{self, Cell, Message, OldKind, Replication, RowView, Tuple, encode};
use walferry_tests::cluster::Cluster;
use walferry_tests::wait::wait_for;

pub(crate) const LIMIT: Duration = Duration::from_secs(30);

const FRAME_MAX: usize = 1 << 30;

/// Rows as the server prints them.
pub(crate) type Rows = Vec<Vec<Option<String>>>;

/// What the server refused, or ended the session with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) code: String,
    pub(crate) message: String,
}

/// Columns and rows of the last statement of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Name and type OID.
    pub(crate) columns: Vec<(String, u32)>,
    pub(crate) rows: Rows,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Client {
    socket: TcpStream,
    input: Vec<u8>,
    pid: i32,
    key: i32,
}

/// One message of the output plugin with the position in the header around it.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub(crate) header: Lsn,
    bytes: Vec<u8>,
}

/// What a stream delivers.
#[derive(Clone, Debug)]
pub(crate) enum Sent {
    Data(Data),
    Keepalive(Position),
}

impl Data {
    pub(crate) fn message(&self) -> Message<'_> {
        Message::decode(&self.bytes, 0).unwrap()
    }
}

impl Client {
    /// An ordinary session.
    pub(crate) fn sql(cluster: &Cluster, database: &str) -> Self {
        Self::connect(cluster, &[("user", "postgres"), ("database", database)])
    }

    /// A session that takes replication commands.
    pub(crate) fn walsender(cluster: &Cluster, database: &str) -> Self {
        Self::walsender_as(cluster, database, "postgres")
    }

    pub(crate) fn walsender_as(cluster: &Cluster, database: &str, role: &str) -> Self {
        let parameters = [("user", role), ("database", database), ("replication", "database")];
        Self::connect(cluster, &parameters)
    }

    pub(crate) fn connect(cluster: &Cluster, parameters: &[(&str, &str)]) -> Self {
        let socket = TcpStream::connect(("127.0.0.1", cluster.port())).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.set_nodelay(true).unwrap();
        let mut client = Self { socket, input: Vec::new(), pid: 0, key: 0 };
        let mut body = 0x0003_0000_i32.to_be_bytes().to_vec();
        for (name, value) in parameters {
            body.extend([name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
        }
        body.push(0);
        client.write(&[&length_of(&body)[..], &body].concat());
        client.answer().unwrap();
        client
    }

    /// The backend's process.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Runs statements and returns the rows of the last one.
    #[track_caller]
    pub(crate) fn query(&mut self, sql: &str) -> Rows {
        self.send(sql);
        match self.answer() {
            Ok(answer) => answer.rows,
            Err(refused) => panic!("{refused:?} to {sql}"),
        }
    }

    /// As [`Client::query`], and the server may refuse.
    pub(crate) fn try_query(&mut self, sql: &str) -> Result<Rows, Refused> {
        self.send(sql);
        Ok(self.answer()?.rows)
    }

    /// The only value of the only row.
    #[track_caller]
    pub(crate) fn value(&mut self, sql: &str) -> String {
        let rows = self.query(sql);
        let [row] = rows.as_slice() else { panic!("{} rows from {sql}", rows.len()) };
        let [Some(value)] = row.as_slice() else { panic!("{row:?} from {sql}") };
        value.clone()
    }

    #[track_caller]
    pub(crate) fn lsn(&mut self, sql: &str) -> Lsn {
        self.value(sql).parse().unwrap()
    }

    /// Sends statements and does not wait for what comes of them.
    pub(crate) fn send(&mut self, sql: &str) {
        self.write(&encode::frame(b'Q', &[sql.as_bytes(), b"\0"].concat()));
    }

    /// Waits until the server is ready for the next query, or has ended the session.
    pub(crate) fn answer(&mut self) -> Result<Answer, Refused> {
        let (mut answer, mut refused) = (Answer::default(), None);
        loop {
            let Some((tag, body)) = self.frame() else {
                let closed = Refused { code: String::new(), message: "closed".to_owned() };
                return Err(refused.unwrap_or(closed));
            };
            match tag {
                b'T' => answer = Answer { columns: columns(&body), rows: Vec::new() },
                b'D' => answer.rows.push(row(&body)),
                b'E' => refused = Some(error(&body)),
                b'K' => {
                    self.pid = int(&body, 0);
                    self.key = int(&body, 4);
                }
                b'Z' => return refused.map_or(Ok(answer), Err),
                // Sign-in, parameters, notices, ends of statements.
                b'R' | b'S' | b'N' | b'C' | b'I' => {}
                _ => panic!("unexpected answer {:?}", char::from(tag)),
            }
        }
    }

    /// Asks the server, on another connection, to give up what this session does.
    pub(crate) fn cancel(&self) {
        let body = [80_877_102, self.pid, self.key].map(i32::to_be_bytes).concat();
        let mut socket = TcpStream::connect(self.socket.peer_addr().unwrap()).unwrap();
        socket.write_all(&[&length_of(&body)[..], &body].concat()).unwrap();
        // The server closes it when it has passed the wish on.
        assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    }

    /// Starts streaming publication `p`; waits while the slot's former session is still ending.
    #[track_caller]
    pub(crate) fn stream(cluster: &Cluster, slot: &str, from: Lsn) -> Self {
        wait_for(LIMIT, "the slot to be free", || {
            let mut client = Self::walsender(cluster, "postgres");
            match client.start_stream(slot, from) {
                Ok(()) => Some(client),
                Err(refused) if refused.code == "55006" => None,
                Err(refused) => panic!("{refused:?}"),
            }
        })
    }

    /// Turns a walsender's session into a stream.
    pub(crate) fn start_stream(&mut self, slot: &str, from: Lsn) -> Result<(), Refused> {
        self.send(&format!(
            "START_REPLICATION SLOT {slot} LOGICAL {from} \
             (proto_version '1', publication_names 'p')"
        ));
        loop {
            match self.frame().unwrap() {
                (b'W', _) => return Ok(()),
                (b'E', body) => return Err(error(&body)),
                (b'N', body) => panic!("not silent: {:?}", error(&body)),
                _ => {}
            }
        }
    }

    /// The next thing of a stream. Keepalives that ask for an answer get none: no test is as long as
    /// the server's patience.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Sent {
        match self.frame() {
            Some((b'd', body)) => match Replication::decode(&body, 0).unwrap() {
                Replication::XLogData { start, message, .. } => {
                    Sent::Data(Data { header: start, bytes: message.to_vec() })
                }
                Replication::Keepalive { wal_end, .. } => Sent::Keepalive(wal_end),
            },
            Some((b'N', body)) => panic!("not silent: {:?}", error(&body)),
            Some((b'E', body)) => panic!("{:?}", error(&body)),
            other => panic!("the stream ended: {other:?}"),
        }
    }

    /// The messages up to and with the commit that is the `count`-th from here.
    #[track_caller]
    pub(crate) fn transactions(&mut self, count: usize) -> Vec<Data> {
        let (mut all, mut commits) = (Vec::new(), 0);
        while commits < count {
            if let Sent::Data(data) = self.next() {
                commits += usize::from(matches!(data.message(), Message::Commit { .. }));
                all.push(data);
            }
        }
        all
    }

    pub(crate) fn confirm(&mut self, position: Position, ask_reply: bool) {
        let status = wire::standby_status(position, 0, ask_reply);
        self.write(&encode::frame(wire::COPY_DATA, &status));
    }

    fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// The next frame; `None` when the server has closed the connection.
    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some(frame) = wire::next_frame(&self.input, FRAME_MAX).unwrap() {
                let (tag, body, size) = (frame.tag, frame.body.to_vec(), frame.size());
                self.input.drain(..size);
                return Some((tag, body));
            }
            let mut buffer = [0; 16 << 10];
            match self.socket.read(&mut buffer).expect("the server answers in time") {
                0 => return None,
                length => self.input.extend_from_slice(&buffer[..length]),
            }
        }
    }
}

fn length_of(body: &[u8]) -> [u8; 4] {
    i32::try_from(body.len() + 4).unwrap().to_be_bytes()
}

fn int(body: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(body[at..at + 4].try_into().unwrap())
}

fn text(body: &[u8]) -> String {
    String::from_utf8(body.to_vec()).unwrap()
}

fn columns(body: &[u8]) -> Vec<(String, u32)> {
    // After each name: table, number in it, type, its size and modifier, format.
    const REST: usize = 18;
    let mut rest = &body[2..];
    let mut all = Vec::new();
    while let Some(end) = rest.iter().position(|byte| *byte == 0) {
        all.push((text(&rest[..end]), int(rest, end + 7).cast_unsigned()));
        rest = &rest[end + 1 + REST..];
    }
    all
}

fn row(body: &[u8]) -> Vec<Option<String>> {
    let mut rest = &body[2..];
    let mut values = Vec::new();
    while !rest.is_empty() {
        let length = usize::try_from(int(rest, 0)).ok();
        rest = &rest[4..];
        values.push(length.map(|length| text(&rest[..length])));
        rest = &rest[length.unwrap_or_default()..];
    }
    values
}

fn error(body: &[u8]) -> Refused {
    let fields = body.split(|byte| *byte == 0).filter_map(|field| field.split_first());
    let mut refused = Refused { code: String::new(), message: String::new() };
    for (kind, value) in fields {
        match kind {
            b'C' => refused.code = text(value),
            b'M' => refused.message = text(value),
            _ => {}
        }
    }
    refused
}

/// Commit positions and ends of the transactions, in the order they came.
pub(crate) fn boundaries(all: &[Data]) -> Vec<(CommitLsn, Position)> {
    all.iter()
        .filter_map(|data| {
            let Message::Commit { commit, end, .. } = data.message() else { return None };
            Some((commit, end))
        })
        .collect()
}

/// Messages as a person would write them down, a line for each: `update t key (1, null) new (2, u)`.
/// Long values are shown as their length.
pub(crate) fn lines(all: &[Data]) -> Vec<String> {
    let mut names = std::collections::BTreeMap::new();
    all.iter()
        .map(|data| match data.message() {
            Message::Begin { .. } => "begin".to_owned(),
            Message::Commit { .. } => "commit".to_owned(),
            Message::Relation(relation) => {
                let columns: Vec<_> = relation.columns.iter().map(|c| c.name.as_str()).collect();
                let line = format!("relation {} ({})", relation.name, columns.join(", "));
                names.insert(relation.table, relation.name);
                line
            }
            Message::Row { kind, table, row } => {
                let view = RowView::parse(kind, row).unwrap();
                let mut line = format!("{kind:?} {}", names[&table]).to_lowercase();
                if let Some((kind, old)) = view.old {
                    let word = if kind == OldKind::Key { "key" } else { "old" };
                    line += &format!(" {word} {}", cells(old));
                }
                if let Some(new) = view.new {
                    line += &format!(" new {}", cells(new));
                }
                line
            }
            Message::Truncate { tables, flags } => {
                let mut tables: Vec<_> = tables.iter().map(|table| names[table].as_str()).collect();
                tables.sort_unstable();
                let mut line = format!("truncate {}", tables.join(", "));
                line += if flags.cascade { " cascade" } else { "" };
                line += if flags.restart_identity { " restart" } else { "" };
                line
            }
            other @ (Message::Origin { .. } | Message::Type { .. } | Message::Logical { .. }) => {
                format!("{other:?}")
            }
        })
        .collect()
}

/// As [`lines`], without the begins and commits.
pub(crate) fn changes(all: &[Data]) -> Vec<String> {
    let mut lines = lines(all);
    lines.retain(|line| line != "begin" && line != "commit");
    lines
}

fn cells(tuple: Tuple<'_>) -> String {
    const SHOWN_MAX: usize = 12;
    let all: Vec<_> = tuple
        .cells()
        .map(|cell| match cell {
            Cell::Null => "null".to_owned(),
            Cell::Unchanged => "u".to_owned(),
            Cell::Text(value) if value.len() > SHOWN_MAX => format!("<{}>", value.len()),
            Cell::Text(value) => text(value),
            Cell::Binary(_) => panic!("nobody asked for the binary form"),
        })
        .collect();
    format!("({})", all.join(", "))
}
