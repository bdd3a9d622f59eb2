//! A connection that is kept between calls, and opened again by the next call after it broke.
//!
//! Owns nothing but that. Opening again is no retry: the call that failed has failed.

use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::error::SourceError;
use crate::session::{Canceller, Connector, Role, Session};

/// The place of one kept session. One call at a time uses it.
#[derive(Debug)]
pub(crate) struct Kept {
    role: Role,
    session: Mutex<Option<Session>>,
}

impl Kept {
    pub(crate) fn new(role: Role) -> Self {
        Self { role, session: Mutex::new(None) }
    }

    /// Runs `work` in the session. It stays only if it is idle afterwards: when the future is
    /// dropped, or the exchange did not end, it is closed and what runs in it is cancelled.
    pub(crate) async fn run<T>(
        &self,
        connector: &Connector,
        work: impl AsyncFnOnce(&mut Session) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let mut place = self.session.lock().await;
        let mut kept = place.take();
        if let Some(session) = &mut kept
            && !session.is_alive().await
        {
            kept = None;
        }
        let mut session = match kept {
            Some(session) => session,
            None => connector.connect(self.role).await?,
        };
        let mut cancel = CancelOnDrop(session.canceller());
        let result = work(&mut session).await;
        if session.is_idle() {
            cancel.0 = None;
            *place = Some(session);
        }
        result
    }

    /// Says goodbye, if there is anybody to say it to.
    pub(crate) async fn close(&self) {
        if let Some(session) = self.session.lock().await.take() {
            session.end().await;
        }
    }
}

/// Cancels what runs in a session that is given up. A backend that waits for a lock does not notice
/// that its client has gone, and the slot it creates would stay.
struct CancelOnDrop(Option<Canceller>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let (Some(canceller), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            drop(runtime.spawn(async move { canceller.cancel().await }));
        }
    }
}
