//! The PostgreSQL source: connections, slots, streams, copies and the catalog.
//!
//! **Boundary:** this crate does what it is asked once and says what it saw, as values or as a
//! [`Fault`]. It never repeats a failed call, never compares what two connections saw, and never
//! decides what may be confirmed, copied or dropped: the core does.
//!
//! | module | owns |
//! |---|---|
//! | `config`, `url`, `passfile` | where the source is and how to sign in |
//! | `transport`, `tls` | the bytes' way |
//! | `auth`, `message`, `session` | the protocol of one connection |
//! | `kept`, `worker` | where a session lives: between calls, or on its own thread |
//! | `catalog`, `table`, `slots` | queries and replication commands |
//! | `stream` | the replication stream |
//! | `copy`, `copy_out` | one copy attempt and its rows |
//! | `error`, `classify` | failures, and what they are called outside |
//!
//! Every future may be dropped at any time: what runs at the server is cancelled, and the connection
//! it ran on is not used again.

mod auth;
mod catalog;
mod classify;
mod config;
mod copy;
mod copy_out;
mod error;
mod kept;
mod message;
mod passfile;
mod session;
mod slots;
mod sql;
mod stream;
mod table;
mod tls;
mod transport;
mod url;
mod worker;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use walferry_core::fault::Fault;
use walferry_core::ids::TableId;
use walferry_core::lsn::{Lsn, Position};
use walferry_core::source::{
    Blocker, CreatedSlot, Described, Listing, MonitorFacts, ServerFacts, SlotFacts, SlotReport,
    SnapshotFacts, SourceSeen, TimelineSwitch,
};

use crate::catalog::fault;
pub use crate::config::{ChannelBinding, SourceConfig, SslMode};
pub use crate::copy::{CopyAttempt, CopyRange};
pub use crate::copy_out::CopyBlock;
use crate::error::SourceError;
use crate::kept::Kept;
use crate::session::{Connector, Role, Session};
pub use crate::stream::{StreamHandle, StreamMessage};
use crate::worker::Worker;

/// What every connection and stream of a source has in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceOptions {
    /// Name of the publication.
    pub publication: String,
    /// Longest time to open a connection; `connect_timeout` of the configuration may shorten it.
    pub connect_budget: Duration,
    /// Longest frame that is read, in bytes.
    pub frame_bytes: usize,
}

impl SourceOptions {
    /// The defaults of spec chapter 30.
    #[must_use]
    pub fn new(publication: impl Into<String>) -> Self {
        Self {
            publication: publication.into(),
            connect_budget: Duration::from_secs(30),
            frame_bytes: 1 << 30,
        }
    }
}

/// The source of one pipeline. Clones share two kept connections: one for replication commands, one
/// for the catalog. Each is opened by the first call that needs it.
#[derive(Clone, Debug)]
pub struct Source {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    connector: Connector,
    publication: String,
    command: Kept,
    meta: Kept,
    /// Who answered when the source was identified last.
    identified: Mutex<Option<SourceSeen>>,
}

impl Source {
    /// A source that has not connected yet.
    #[must_use]
    pub fn new(config: SourceConfig, options: SourceOptions) -> Self {
        let connector = Connector {
            config: Arc::new(config),
            connect_budget: options.connect_budget,
            frame_bytes: options.frame_bytes,
        };
        Self {
            shared: Arc::new(Shared {
                connector,
                publication: options.publication,
                command: Kept::new(Role::Main),
                meta: Kept::new(Role::Meta),
                identified: Mutex::new(None),
            }),
        }
    }

    /// Where it is and how it signs in.
    #[must_use]
    pub fn config(&self) -> &SourceConfig {
        &self.shared.connector.config
    }

    pub(crate) fn connector(&self) -> Connector {
        self.shared.connector.clone()
    }

    pub(crate) fn publication(&self) -> &str {
        &self.shared.publication
    }

    async fn command<T>(
        &self,
        work: impl AsyncFnOnce(&mut Session) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let expected = self.identified();
        self.shared.command.run(&self.shared.connector, expected.as_ref(), work).await
    }

    pub(crate) async fn meta<T>(
        &self,
        work: impl AsyncFnOnce(&mut Session) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let expected = self.identified();
        self.shared.meta.run(&self.shared.connector, expected.as_ref(), work).await
    }

    /// Whom every later call must reach (S-06).
    fn identified(&self) -> Option<SourceSeen> {
        self.shared.identified.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// S-06, for a connection of an attempt.
    pub(crate) fn check(&self, found: &SourceSeen) -> Result<(), SourceError> {
        kept::compare(self.identified().as_ref(), found)
    }

    /// Who the server is, on a replication connection (S-02), and what matters of its settings.
    ///
    /// # Errors
    /// What the server or the way to it says; so for every method.
    pub async fn identify(&self) -> Result<ServerFacts, Fault> {
        let shared = &self.shared;
        let read = async |session: &mut Session| catalog::server(session).await;
        let facts = fault(shared.command.run(&shared.connector, None, read).await)?;
        *shared.identified.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(facts.seen.clone());
        Ok(facts)
    }

    /// One consistent listing of the publication (T-01); `None` if it does not exist.
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn list_publication(&self) -> Result<Option<Listing>, Fault> {
        let name = self.publication();
        fault(self.meta(async |session| catalog::list_publication(session, name).await).await)
    }

    /// A slot and what A-03 compares with it.
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn inspect_slot(&self, slot: &str) -> Result<SlotReport, Fault> {
        let name = self.publication();
        // The report says who answers, and the core compares.
        let look = async |session: &mut Session| catalog::inspect_slot(session, slot, name).await;
        fault(self.shared.meta.run(&self.shared.connector, None, look).await)
    }

    /// All slots whose name starts with `prefix`.
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn list_slots(&self, prefix: &str) -> Result<Vec<SlotFacts>, Fault> {
        fault(self.meta(async |session| catalog::list_slots(session, prefix).await).await)
    }

    /// Creates a persistent logical slot without a snapshot (M-04), with the failover property if
    /// that is wanted (17 and newer). Waits for every transaction that is open now; dropping the
    /// future ends the wait, and no slot is left (PG-31).
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn create_slot(&self, slot: &str, failover: bool) -> Result<CreatedSlot, Fault> {
        fault(self.command(async |session| slots::create(session, slot, failover).await).await)
    }

    /// Gives a slot the failover property (M-09); servers before 17 answer with a syntax error.
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn enable_failover(&self, slot: &str) -> Result<(), Fault> {
        fault(self.command(async |session| slots::enable_failover(session, slot).await).await)
    }

    /// The history of a timeline, oldest entry first; none for the first timeline (PG-38).
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn read_timeline_history(&self, timeline: u32) -> Result<Vec<TimelineSwitch>, Fault> {
        let read = async |session: &mut Session| catalog::timeline_history(session, timeline).await;
        fault(self.command(read).await)
    }

    /// Writes a transactional logical message, which streams deliver like a change.
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn write_heartbeat(&self, prefix: &str, content: &str) -> Result<(), Fault> {
        let write =
            async |session: &mut Session| catalog::emit_message(session, prefix, content).await;
        fault(self.meta(write).await)
    }

    /// Drops a slot; an absent one is success, an active one the server's error 55006.
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn drop_slot(&self, slot: &str) -> Result<(), Fault> {
        fault(self.command(async |session| slots::drop_slot(session, slot).await).await)
    }

    /// Whom the session waits for that creates `slot` (M-06).
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn read_blockers(&self, slot: &str) -> Result<Vec<Blocker>, Fault> {
        fault(self.meta(async |session| slots::blockers(session, slot).await).await)
    }

    /// End of the server's flushed WAL (L-08).
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn read_wal_position(&self) -> Result<Lsn, Fault> {
        fault(self.meta(async |session| catalog::wal_position(session).await).await)
    }

    /// End of the server's WAL and the state of the main slot (G-06).
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn monitor(&self, slot: &str) -> Result<MonitorFacts, Fault> {
        fault(self.meta(async |session| catalog::monitor(session, slot).await).await)
    }

    /// A table's columns and storage as the catalog shows them (D-08); `None` if it is gone.
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn describe_table(&self, table: TableId) -> Result<Option<Described>, Fault> {
        let name = self.publication();
        fault(self.meta(async |session| table::describe(session, name, table).await).await)
    }

    /// Starts streaming from a slot, on a new connection with a thread of its own.
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn open_stream(
        &self,
        slot: &str,
        from: Position,
    ) -> Result<(SourceSeen, StreamHandle, mpsc::Receiver<StreamMessage>), Fault> {
        fault(self.start_stream(slot, from).await)
    }

    async fn start_stream(
        &self,
        slot: &str,
        from: Position,
    ) -> Result<(SourceSeen, StreamHandle, mpsc::Receiver<StreamMessage>), SourceError> {
        let connector = self.connector();
        let (worker, seen) = Worker::start("main-stream", async move || {
            let mut session = connector.connect(Role::Main).await?;
            let seen = catalog::identify_system(&mut session).await?;
            Ok((session, seen))
        })
        .await?;
        let worker = Arc::new(worker);
        let (handle, messages) = stream::start(worker, slot, from, self.publication()).await?;
        Ok((seen, handle, messages))
    }

    /// Begins a copy attempt: creates its slot and exports a snapshot (K-08). The slot is temporary,
    /// with `failover` persistent and left for the caller to drop (K-05). Waits as
    /// [`Source::create_slot`] does.
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn open_snapshot(
        &self,
        table: TableId,
        slot: &str,
        failover: bool,
    ) -> Result<(CopyAttempt, SnapshotFacts), Fault> {
        fault(CopyAttempt::open(self.clone(), table, slot.to_owned(), failover).await)
    }

    /// Says goodbye on the kept connections.
    pub async fn close(&self) {
        self.shared.command.close().await;
        self.shared.meta.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent<T: Send>(value: T) -> T {
        value
    }

    #[tokio::test]
    async fn calls_may_run_on_any_thread() {
        let none = |_: &str| None;
        let config = SourceConfig::parse("host=127.0.0.1 port=1 user=u", &none).unwrap();
        let source = Source::new(config, SourceOptions::new("p"));
        let from = Position::default();
        drop(sent(source.identify()));
        drop(sent(source.list_publication()));
        drop(sent(source.inspect_slot("s")));
        drop(sent(source.list_slots("s")));
        drop(sent(source.create_slot("s", false)));
        drop(sent(source.enable_failover("s")));
        drop(sent(source.read_timeline_history(2)));
        drop(sent(source.write_heartbeat("p", "c")));
        drop(sent(source.drop_slot("s")));
        drop(sent(source.read_blockers("s")));
        drop(sent(source.read_wal_position()));
        drop(sent(source.monitor("s")));
        drop(sent(source.open_stream("s", from)));
        drop(sent(source.open_snapshot(TableId(1), "s", false)));
        sent(source.close()).await;
    }
}
