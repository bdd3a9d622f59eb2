//! The simulated store: one record, one save in flight that a crash leaves in doubt.

use std::sync::Arc;

use walferry_core::ids::OpId;
use walferry_core::record::{Phase, Record};

/// The store.
#[derive(Clone, Debug, Default)]
pub struct Store {
    persisted: Option<Arc<Record>>,
    saving: Option<(OpId, Arc<Record>)>,
}

impl Store {
    /// What a load answers.
    #[must_use]
    pub fn persisted(&self) -> Option<&Record> {
        self.persisted.as_deref()
    }

    /// What a crash at this moment could leave behind.
    pub fn in_doubt(&self) -> impl Iterator<Item = &Record> {
        let saving = self.saving.as_ref().map(|(_, record)| record);
        self.persisted.iter().chain(saving).map(AsRef::as_ref)
    }

    /// A save begins.
    ///
    /// # Panics
    /// If another one is in flight, or the record breaks its rules or those of its transitions.
    pub fn begin(&mut self, op: OpId, record: Arc<Record>) {
        assert!(self.saving.is_none(), "two saves in flight (R-I7)");
        assert_eq!(record.validate(), Ok(()), "R-I2");
        if let Some(before) = &self.persisted {
            check_transition(before, &record);
        }
        self.saving = Some((op, record));
    }

    /// The save in flight took effect.
    pub fn saved(&mut self) {
        if let Some((_, record)) = self.saving.take() {
            self.persisted = Some(record);
        }
    }

    /// The save in flight ends, and whether it took effect is decided here.
    pub fn doubt(&mut self, took_effect: bool) {
        if took_effect {
            self.saved();
        }
        self.saving = None;
    }
}

/// R-I3 as far as several steps in one save allow, C-I1, R-I5.
fn check_transition(before: &Record, after: &Record) {
    assert!(before.epoch <= after.epoch, "the epoch went back");
    assert!(before.attempt_seq <= after.attempt_seq, "attempt numbers went back (N-I6)");
    assert!(before.checkpoint <= after.checkpoint, "the checkpoint went back (C-I1)");
    assert!(
        before.initial_lsn.is_none() || before.initial_lsn == after.initial_lsn,
        "initial_lsn changed (M-I1)"
    );
    for (table, old) in &*before.tables {
        let Some(new) = after.tables.get(table) else { continue };
        if old.attempt == new.attempt
            && let (Some(was), Some(is)) = (old.phase.handover(), new.phase.handover())
        {
            assert_eq!(was, is, "the handover of {table} changed (R-I5)");
            let back = matches!(old.phase, Phase::Ready { .. })
                && matches!(new.phase, Phase::Catchup { .. });
            assert!(!back, "table {table} went back to Catchup");
        }
        assert!(old.attempt <= new.attempt, "table {table} has an older attempt");
    }
}
