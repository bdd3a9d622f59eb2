//! The laws as assertions: checked after every step in debug builds, tests and simulation.

use std::collections::BTreeSet;

use super::Pipeline;
use crate::record::Phase;

impl<R> Pipeline<R> {
    /// Panics if a law of the spec does not hold.
    ///
    /// # Panics
    /// On A-I1, C-I2, C-I5, D-03, H-I2, R-I5, R-I6 (as far as the core knows), T-I2, W-I2, X-15, X-I3.
    pub fn check_invariants(&self) {
        self.check_positions();
        self.check_tables();
        self.check_jobs();
        self.check_main_lane();
        self.check_fence();
        for (table, run) in self.copies.iter().filter(|_| self.life.has_started()) {
            let entry = self.ledger.table(*table);
            assert!(
                entry.is_some_and(|entry| entry.attempt == Some(run.number)) || run.is_ending(),
                "attempt {} of table {table} is not the one of the record",
                run.number
            );
            if let Some(stream) = run.stream.as_ref().filter(|_| !run.is_ending()) {
                stream.check_law(stream.frontier);
                assert!(stream.confirmed <= stream.frontier, "W-I3 of table {table}");
            }
        }
    }

    fn check_positions(&self) {
        if !self.life.has_started() {
            return;
        }
        let checkpoint = self.ledger.persisted_checkpoint().unwrap_or_default();
        self.main.check_law(checkpoint);
        if let Some(open) = self.main.dispatching {
            assert!(
                !self.main.frontier.covers(open.commit),
                "the frontier {} is past the transaction {} dispatched in part (X-I3)",
                self.main.frontier,
                open.commit
            );
        }
    }

    /// T-I2: each at most once, and never while an attempt of it lives.
    fn check_jobs(&self) {
        if !self.life.moves_data() {
            return;
        }
        let mut queued = BTreeSet::new();
        for (table, _) in &self.jobs {
            assert!(queued.insert(*table), "table {table} is queued twice (T-I2)");
            let phase = self.ledger.table(*table).map(|entry| &entry.phase);
            assert_eq!(phase, Some(&Phase::Pending), "table {table} is queued (T-I2)");
            let run = self.copies.get(table);
            let over = run.is_none_or(|run| run.is_over());
            assert!(over, "table {table} is queued while its attempt lives (T-I2)");
        }
    }

    /// what waits is offered only for tables that main owns in the attempt of the projection.
    fn check_main_lane(&self) {
        if !self.life.moves_data() {
            return;
        }
        for entry in self.main_lane.tables_waiting() {
            let owned = self.owned.get(&entry.table);
            assert_eq!(
                owned.map(|owned| owned.attempt),
                Some(entry.attempt),
                "a batch of main holds events of table {} (X-15)",
                entry.table
            );
        }
    }

    /// The projection's map, the catchup set and the record say the same.
    fn check_tables(&self) {
        if !self.life.has_started() {
            return;
        }
        let checkpoint = self.ledger.record().checkpoint;
        for (table, entry) in &*self.ledger.record().tables {
            let owned = self.owned.get(table);
            assert_eq!(
                owned.map(|owned| owned.from),
                entry.phase.handover(),
                "projection and record differ on table {table}"
            );
            if let (Some(owned), Some(checkpoint)) = (owned, checkpoint) {
                let boundary = checkpoint.max(owned.from);
                let schema = owned.following.history().in_force_at(boundary);
                assert_eq!(entry.schema.as_ref(), Some(schema), "D-03 of table {table}");
            }
            assert_eq!(
                self.catchup.get(table).copied(),
                match entry.phase {
                    Phase::Catchup { handover } => Some(handover),
                    Phase::Pending
                    | Phase::Copying
                    | Phase::Ready { .. }
                    | Phase::Errored { .. } => None,
                },
                "catchup set and record differ on table {table}"
            );
        }
    }
}
