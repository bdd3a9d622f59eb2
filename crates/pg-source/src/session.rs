//! One connection to the server: start-up, simple queries, and the frames of a copy.
//!
//! Owns the framing and the order of messages. Must never know catalogs, slots or rows.
//!
//! Backend messages are taken apart here and in `message`, over the bounded frames of the core;
//! what we send is encoded by `pgwire`. Every future of this module leaves the session in the middle
//! of an exchange when it is dropped: `is_idle` says whether a session may be used again.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pgwire::messages::Message as _;
use pgwire::messages::cancel::CancelRequest;
use pgwire::messages::simplequery::Query;
use pgwire::messages::startup::{SecretKey, Startup};
use pgwire::messages::terminate::Terminate;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use walferry_core::wire::{frame_size, next_frame};

use crate::auth;
use crate::config::SourceConfig;
use crate::error::{ServerError, SourceError};
use crate::message::{self, Row};
use crate::transport::{self, Transport};

/// Bytes of rows that a query of ours may answer (Z).
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Room for the next read of an ordinary exchange.
const READ_BYTES: usize = 16 << 10;
/// How long the goodbye of a session may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// What a connection is for (N-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Main,
    Meta,
    Copy(u32),
    Read(u32),
}

impl Role {
    fn application_name(self) -> String {
        match self {
            Self::Main => "walferry:main".to_owned(),
            Self::Meta => "walferry:meta".to_owned(),
            Self::Copy(table) => format!("walferry:copy:{table}"),
            Self::Read(table) => format!("walferry:read:{table}"),
        }
    }

    /// Whether replication commands are given on it.
    const fn replicates(self) -> bool {
        match self {
            Self::Main | Self::Copy(_) => true,
            Self::Meta | Self::Read(_) => false,
        }
    }
}

/// How connections are opened.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    pub(crate) config: Arc<SourceConfig>,
    pub(crate) connect_budget: Duration,
    pub(crate) frame_bytes: usize,
}

/// One backend message.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) tag: u8,
    pub(crate) body: Bytes,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Session {
    transport: Transport,
    input: BytesMut,
    connector: Connector,
    /// What a cancel request must show.
    key: Option<(i32, Bytes)>,
    /// `server_version_num` without its minor part: 150000.
    version: u32,
    /// Whether the last exchange is over.
    settled: bool,
    in_transaction: bool,
    /// Whether it is in a copy both ways.
    streams: bool,
}

impl Connector {
    /// Opens a connection, signs in and makes its settings those of Z-03.
    pub(crate) async fn connect(&self, role: Role) -> Result<Session, SourceError> {
        let budget =
            self.config.connect_timeout.map_or(self.connect_budget, |t| t.min(self.connect_budget));
        match timeout(budget, self.open(role)).await {
            Ok(result) => result,
            Err(_) => Err(SourceError::Timeout {
                action: format!("connect to {}", self.config.server()),
                budget,
            }),
        }
    }

    async fn open(&self, role: Role) -> Result<Session, SourceError> {
        let mut session = Session {
            transport: Transport::connect(&self.config).await?,
            input: BytesMut::with_capacity(READ_BYTES),
            connector: self.clone(),
            key: None,
            version: 0,
            settled: true,
            in_transaction: false,
            streams: false,
        };
        session.send(&startup(&self.config, role), "signing in").await?;
        auth::sign_in(&mut session, &self.config).await?;
        session.finish_start().await?;
        session.query("setting up the session", &settings(session.version)).await?;
        Ok(session)
    }
}

fn startup(config: &SourceConfig, role: Role) -> Startup {
    let mut startup = Startup::new();
    let mut set = |name: &str, value: &str| {
        startup.parameters.insert(name.to_owned(), value.to_owned());
    };
    set("user", &config.user);
    set("database", &config.database);
    set("client_encoding", "UTF8");
    set("application_name", &role.application_name());
    if let Some(options) = &config.options {
        set("options", options);
    }
    if role.replicates() {
        set("replication", "database");
    }
    startup
}

/// The fixed settings of every connection (Z-03), with the timeouts of K-10 and M-03 off.
fn settings(version: u32) -> String {
    let mut fixed = BTreeMap::from([
        ("bytea_output", "hex"),
        ("client_encoding", "'UTF8'"),
        ("client_min_messages", "warning"),
        ("datestyle", "'ISO'"),
        ("extra_float_digits", "3"),
        ("idle_in_transaction_session_timeout", "0"),
        ("idle_session_timeout", "0"),
        ("intervalstyle", "'postgres'"),
        ("lock_timeout", "0"),
        ("search_path", "pg_catalog"),
        ("standard_conforming_strings", "on"),
        ("statement_timeout", "0"),
        ("timezone", "'UTC'"),
    ]);
    if version >= 170_000 {
        fixed.insert("transaction_timeout", "0");
    }
    fixed.iter().map(|(name, value)| format!("SET {name} = {value};")).collect()
}

impl Session {
    /// Whether the last exchange is over: nothing of it is still to come.
    pub(crate) const fn is_settled(&self) -> bool {
        self.settled
    }

    /// Whether the session may be used for something else: settled, and outside of a transaction.
    pub(crate) const fn is_idle(&self) -> bool {
        self.settled && !self.in_transaction
    }

    /// `server_version_num`, exact to the major version.
    pub(crate) const fn version(&self) -> u32 {
        self.version
    }

    pub(crate) const fn transport(&self) -> &Transport {
        &self.transport
    }

    pub(crate) const fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Reads the rest of the start-up, after sign-in.
    async fn finish_start(&mut self) -> Result<(), SourceError> {
        loop {
            let message = self.answer("start-up").await?;
            match message.tag {
                b'S' => {
                    if let Some((b"server_version", value)) = message::parameter(&message.body) {
                        self.version = message::version(value);
                    }
                }
                b'K' => self.key = message::key(&message.body),
                b'Z' => break,
                b'v' => {}
                tag => return Err(unexpected("start-up", tag)),
            }
        }
        if self.version < 140_000 {
            return Err(SourceError::Setting {
                setting: "source",
                expected: "PostgreSQL 14 or newer".to_owned(),
                found: format!("version {}", self.version),
                message: format!("the server's version {} is too old", self.version),
            });
        }
        Ok(())
    }

    /// Encodes and sends a message.
    pub(crate) async fn send(
        &mut self,
        message: &impl pgwire::messages::Message,
        during: &str,
    ) -> Result<(), SourceError> {
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes).map_err(|error| SourceError::Limit {
            name: "message to the server",
            message: format!("{during}: {error}"),
        })?;
        self.send_bytes(&bytes, during).await
    }

    pub(crate) async fn send_bytes(
        &mut self,
        bytes: &[u8],
        during: &str,
    ) -> Result<(), SourceError> {
        let sent = async {
            self.transport.write_all(bytes).await?;
            self.transport.flush().await
        };
        let result = sent.await;
        result.map_err(|error| self.broken(during, error))
    }

    /// Reads once, appending to `input`.
    pub(crate) async fn read(&mut self, during: &str) -> Result<usize, SourceError> {
        match self.transport.read_buf(&mut self.input).await {
            Ok(0) => Err(SourceError::Closed { during: during.to_owned() }),
            Ok(read) => Ok(read),
            Err(error) => Err(self.broken(during, error)),
        }
    }

    fn broken(&self, during: &str, error: std::io::Error) -> SourceError {
        if transport::is_tls(&error) {
            return SourceError::Tls { host: self.connector.config.server(), source: error };
        }
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            return SourceError::Closed { during: during.to_owned() };
        }
        SourceError::io(format!("talk to {}", self.connector.config.server()), error)
    }

    /// Bytes read and not yet taken, for readers that split frames themselves.
    pub(crate) const fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// Whether nothing says that an idle session has ended. Takes what the server has sent meanwhile.
    pub(crate) async fn is_alive(&mut self) -> bool {
        loop {
            let read = {
                let mut next = pin!(self.read("nothing"));
                poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await
            };
            match read {
                Poll::Pending => break,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return false,
            }
        }
        while !self.input.is_empty() {
            match self.message("nothing").await {
                Ok(message) if message.tag != b'E' => {}
                Ok(_) | Err(_) => return false,
            }
        }
        true
    }

    /// The next message, whatever it is.
    pub(crate) async fn message(&mut self, during: &str) -> Result<Message, SourceError> {
        let limit = self.connector.frame_bytes;
        let decode = |source| SourceError::Decode { what: "the server's messages", source };
        loop {
            if let Some(frame) = next_frame(&self.input, limit).map_err(decode)? {
                let (tag, size, body) = (frame.tag, frame.size(), frame.body.len());
                let mut body_bytes = self.input.split_to(size).freeze();
                let body = body_bytes.split_off(size - body);
                return Ok(Message { tag, body });
            }
            let missing = frame_size(&self.input, limit).map_err(decode)?.unwrap_or_default();
            self.input.reserve(missing.saturating_sub(self.input.len()).clamp(READ_BYTES, 1 << 20));
            self.read(during).await?;
        }
    }

    /// The next message that answers something: no notices. An error of the server becomes one.
    pub(crate) async fn answer(&mut self, during: &str) -> Result<Message, SourceError> {
        loop {
            let message = self.message(during).await?;
            match message.tag {
                b'N' | b'A' => {}
                b'E' => {
                    let error = ServerError::parse(&message.body);
                    return Err(SourceError::Server { during: during.to_owned(), error });
                }
                _ => return Ok(message),
            }
        }
    }

    /// Runs statements and returns all their rows.
    pub(crate) async fn query(&mut self, during: &str, sql: &str) -> Result<Vec<Row>, SourceError> {
        self.start_query(during, sql).await?;
        let mut rows = Vec::new();
        let mut bytes = 0;
        loop {
            let message = match self.answer(during).await {
                Err(error) => return Err(self.after_error(error).await),
                Ok(message) => message,
            };
            match message.tag {
                b'D' => {
                    bytes += message.body.len();
                    if bytes > ANSWER_BYTES_MAX {
                        return Err(SourceError::Limit {
                            name: "control query answer",
                            message: format!(
                                "{during}: more than {ANSWER_BYTES_MAX} bytes of rows"
                            ),
                        });
                    }
                    rows.push(Row::parse(during, &message.body)?);
                }
                b'Z' => {
                    self.settle(message.body.first());
                    return Ok(rows);
                }
                b'T' | b'C' | b'I' | b'S' => {}
                tag => return Err(unexpected(during, tag)),
            }
        }
    }

    /// Sends statements whose answer the caller reads.
    pub(crate) async fn start_query(&mut self, during: &str, sql: &str) -> Result<(), SourceError> {
        self.settled = false;
        self.send(&Query::new(sql.to_owned()), during).await
    }

    /// An exchange is over; `status` is what ReadyForQuery says about the transaction.
    pub(crate) fn settle(&mut self, status: Option<&u8>) {
        self.settled = true;
        self.in_transaction = status != Some(&b'I');
    }

    /// Reads up to the end of an exchange that failed, so that the session can be used again. An
    /// error that ends the session, or any other, is passed on as it is.
    pub(crate) async fn after_error(&mut self, error: SourceError) -> SourceError {
        let SourceError::Server { during, error: ref server } = error else { return error };
        if !server.is_fatal() {
            while let Ok(message) = self.message(&during).await {
                if message.tag == b'Z' {
                    self.settle(message.body.first());
                    break;
                }
            }
        }
        SourceError::Server { during, error: server.clone() }
    }

    /// Sends a command that turns the session into a copy, `tag` being the answer that says so:
    /// `H` out of the server, `W` both ways.
    pub(crate) async fn start_copy(
        &mut self,
        during: &str,
        command: &str,
        tag: u8,
    ) -> Result<(), SourceError> {
        self.start_query(during, command).await?;
        match self.answer(during).await {
            Err(error) => Err(self.after_error(error).await),
            Ok(message) if message.tag == tag => {
                self.streams = tag == b'W';
                Ok(())
            }
            Ok(message) => Err(unexpected(during, message.tag)),
        }
    }

    /// Says goodbye and waits for the server to close the connection: then its locks and temporary
    /// slots are gone.
    pub(crate) async fn end(mut self) {
        const DURING: &str = "closing";
        let goodbye = async {
            self.send(&Terminate::new(), DURING).await?;
            loop {
                self.input.clear();
                self.input.reserve(READ_BYTES);
                self.read(DURING).await?;
            }
        };
        // Whatever comes of it: the connection is closed either way.
        drop::<Result<Result<Infallible, SourceError>, _>>(timeout(GOODBYE, goodbye).await);
    }

    /// What is needed to cancel the command that runs in this session. A stream needs none: the
    /// server listens while it sends.
    pub(crate) fn canceller(&self) -> Option<Canceller> {
        if self.streams {
            return None;
        }
        let (pid, secret) = self.key.clone()?;
        Some(Canceller { connector: self.connector.clone(), pid, secret })
    }
}

/// Cancels the command that runs in a session.
#[derive(Debug)]
pub(crate) struct Canceller {
    connector: Connector,
    pid: i32,
    secret: Bytes,
}

impl Canceller {
    /// Asks the server, over a connection of its own. Best effort: there is no answer.
    pub(crate) async fn cancel(&self) {
        let request = CancelRequest::new(self.pid, SecretKey::Bytes(self.secret.clone()));
        let mut bytes = BytesMut::new();
        if request.encode(&mut bytes).is_err() {
            return;
        }
        let asked = async {
            let mut transport = Transport::connect(&self.connector.config).await.ok()?;
            transport.write_all(&bytes).await.ok()?;
            transport.flush().await.ok()?;
            // The server closes the connection when it has read the request.
            transport.read_u8().await.ok()
        };
        drop(timeout(GOODBYE, asked).await);
    }
}

pub(crate) fn unexpected(during: &str, tag: u8) -> SourceError {
    SourceError::unexpected(during, format!("message {:?}", char::from(tag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    // N-13
    #[test]
    fn roles_have_names_and_kinds() {
        let cases = [
            (Role::Main, "walferry:main", true),
            (Role::Meta, "walferry:meta", false),
            (Role::Copy(u32::MAX), "walferry:copy:4294967295", true),
            (Role::Read(7), "walferry:read:7", false),
        ];
        for (role, name, replicates) in cases {
            assert_eq!(role.application_name(), name);
            assert_eq!(role.replicates(), replicates);
        }
    }

    // Z-03, K-10
    #[test]
    fn the_newest_timeout_is_set_where_it_exists() {
        assert!(!settings(160_000).contains("transaction_timeout ="));
        assert!(settings(170_000).contains("SET transaction_timeout = 0;"));
        assert!(settings(140_000).contains("SET idle_session_timeout = 0;"));
    }
}
