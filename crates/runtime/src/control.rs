//! What others hold of a running pipeline: requests in, pictures and notices out (L-01).

use std::sync::Arc;

use tokio::sync::{broadcast, mpsc, watch};
use walferry_core::ids::TableId;
use walferry_core::input::Request;
use walferry_core::lsn::Position;
use walferry_core::notice::{Notice, Outcome};
use walferry_core::source::MonitorFacts;
use walferry_core::view::View;

/// A picture of a running pipeline; at most 200 ms old while anything moves.
#[derive(Clone, Debug)]
pub struct Status {
    /// What the core shows.
    pub view: View,
    /// What the monitor saw of the source last, if it has looked yet.
    pub monitored: Option<MonitorFacts>,
    /// Changes read from the main stream so far.
    pub changes: u64,
    /// How the run ended, once it has.
    pub outcome: Option<Outcome>,
}

/// Controls a pipeline; cheap to clone, and usable after the run has ended.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) requests: mpsc::UnboundedSender<Request>,
    pub(crate) status: watch::Receiver<Arc<Status>>,
    pub(crate) notices: broadcast::Sender<Notice>,
}

impl Handle {
    /// Asks for an orderly stop: drain, save, confirm, shut down. Idempotent; returns at once.
    pub fn stop(&self) {
        self.request(Request::Stop);
    }

    /// Ends the run without waiting: as safe as a crash.
    pub fn stop_now(&self) {
        self.request(Request::StopNow);
    }

    /// Asks for a new attempt of a table that is Errored. Refused with `Notice::RequestRefused` if it
    /// is not, or if nothing but a resync can help it.
    pub fn retry(&self, table: TableId) {
        self.request(Request::Retry(table));
    }

    /// Asks for a new copy of a table, whatever its phase. An unknown one is refused with
    /// `Notice::RequestRefused`.
    pub fn resync(&self, table: TableId) {
        self.request(Request::Resync(table));
    }

    /// Asks for a new main slot and a new copy of every table: the remedy when the slot is lost or the
    /// WAL that it needs cannot be decoded any more.
    pub fn recreate(&self) {
        self.request(Request::Recreate);
    }

    /// Asks for main to hold at the next transaction boundary, so that the destination can be compared
    /// with the source; `Notice::Held` says where. It ends by `release` or with its time
    /// (`fence_ms_max`).
    pub fn hold(&self) {
        self.request(Request::Hold);
    }

    /// While main is held: asks for exactly the transactions that committed below `to`;
    /// `Notice::Advanced` says that they are durable.
    pub fn advance(&self, to: Position) {
        self.request(Request::Advance(to));
    }

    /// Ends the hold.
    pub fn release(&self) {
        self.request(Request::Release);
    }

    fn request(&self, request: Request) {
        // A run that has ended takes no requests, and needs none.
        if self.requests.send(request).is_err() {
            tracing::debug!("the run has already ended");
        }
    }

    /// The latest picture.
    #[must_use]
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.status.borrow())
    }

    /// Waits for a picture newer than the last one this handle saw; `None` once the run is over.
    pub async fn changed(&mut self) -> Option<Arc<Status>> {
        self.status.changed().await.ok()?;
        Some(Arc::clone(&self.status.borrow_and_update()))
    }

    /// What people are told from now on. A receiver that is 4,096 notices behind loses the oldest.
    #[must_use]
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }
}
