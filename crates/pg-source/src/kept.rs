//! A connection that is kept between calls, and opened again by the next call after it broke.
//!
//! Owns nothing but that, and the knowledge of which server it leads to (S-06). Opening again is no
//! retry: the call that failed has failed.

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use walferry_core::source::SourceSeen;

use crate::catalog;
use crate::error::SourceError;
use crate::session::{Canceller, Connector, Role, Session};

/// The place of one kept session. One call at a time uses it.
#[derive(Debug)]
pub(crate) struct Kept {
    role: Role,
    session: Mutex<Option<Known>>,
}

/// A session, and who answers on it.
#[derive(Debug)]
struct Known {
    session: Session,
    seen: SourceSeen,
}

impl Kept {
    pub(crate) fn new(role: Role) -> Self {
        Self { role, session: Mutex::new(None) }
    }

    /// Runs `work` in the session. It stays only if it is idle afterwards: when the future is
    /// dropped, or the exchange did not end, it is closed and what runs in it is cancelled.
    ///
    /// With `expected`, `work` runs on that server or not at all: an address that leads elsewhere by
    /// now must not have a slot made or dropped there, or its tables listed.
    pub(crate) async fn run<T>(
        &self,
        connector: &Connector,
        expected: Option<&SourceSeen>,
        work: impl AsyncFnOnce(&mut Session) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let mut place = self.session.lock().await;
        let mut kept = place.take();
        if let Some(known) = &mut kept
            && (expected.is_some_and(|expected| known.seen != *expected)
                || !known.session.is_alive().await)
        {
            kept = None;
        }
        let Known { mut session, seen } = match kept {
            Some(known) => known,
            None => self.open(connector).await?,
        };
        compare(expected, &seen)?;
        let mut cancel = CancelOnDrop(session.canceller());
        let result = work(&mut session).await;
        if session.is_idle() {
            cancel.0 = None;
            *place = Some(Known { session, seen });
        }
        result
    }

    async fn open(&self, connector: &Connector) -> Result<Known, SourceError> {
        let mut session = connector.connect(self.role).await?;
        let seen = match self.role {
            Role::Main => catalog::identify_system(&mut session).await?,
            Role::Meta | Role::Copy(_) | Role::Read(_) => catalog::seen(&mut session).await?,
        };
        Ok(Known { session, seen })
    }

    /// Says goodbye, if there is anybody to say it to.
    pub(crate) async fn close(&self) {
        if let Some(known) = self.session.lock().await.take() {
            known.session.end().await;
        }
    }
}

/// S-06: whether the server that answers is the one that was identified.
pub(crate) fn compare(
    expected: Option<&SourceSeen>,
    found: &SourceSeen,
) -> Result<(), SourceError> {
    match expected {
        Some(expected) if expected != found => Err(SourceError::AnotherServer {
            expected: Box::new(expected.clone()),
            found: Box::new(found.clone()),
        }),
        Some(_) | None => Ok(()),
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
