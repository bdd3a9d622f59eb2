//! Saves on a blocking thread: the store syncs, and the loop must not wait for it.

use std::sync::{Arc, Mutex};

use walferry_core::effect::Changed;
use walferry_core::fault::{Fault, FaultKind, Origin};
use walferry_core::input::Answer;
use walferry_core::record::Record;
use walferry_store::{Owned, OwnedFile};

#[derive(Clone, Debug)]
pub(crate) struct Saves(Arc<Mutex<OwnedFile>>);

impl Saves {
    pub(crate) fn new(owned: OwnedFile) -> Self {
        Self(Arc::new(Mutex::new(owned)))
    }

    pub(crate) async fn save(self, record: Arc<Record>, changed: Changed) -> Result<Answer, Fault> {
        let saved = tokio::task::spawn_blocking(move || {
            // A save that panicked left an unknown result, which is what a failed save is.
            let mut owned = self.0.lock().map_err(|_| unknown("an earlier save panicked"))?;
            owned.save(&record, &changed).map_err(Fault::from)
        });
        match saved.await {
            Ok(Ok(())) => Ok(Answer::Done),
            Ok(Err(fault)) => Err(fault),
            Err(error) => Err(unknown(&error.to_string())),
        }
    }

    /// Whether this run still owns the record (V-09).
    pub(crate) async fn check(self) -> Result<Answer, Fault> {
        let checked = tokio::task::spawn_blocking(move || {
            let mut owned = self.0.lock().map_err(|_| unknown("an earlier save panicked"))?;
            owned.check().map_err(Fault::from)
        });
        match checked.await {
            Ok(Ok(())) => Ok(Answer::Done),
            Ok(Err(fault)) => Err(fault),
            Err(error) => Err(unknown(&error.to_string())),
        }
    }

    /// Gives the place up once no save is running any more.
    pub(crate) fn release(self) {
        let Some(owned) = Arc::into_inner(self.0) else { return };
        let released = owned.into_inner().map(Owned::release);
        if let Ok(Err(error)) = released {
            tracing::warn!(error = %error.chain(), "the state could not be released in order");
        }
    }
}

fn unknown(message: &str) -> Fault {
    Fault::new(Origin::Store, FaultKind::StoreFailed, message)
}
