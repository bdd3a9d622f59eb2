//! The laws as assertions: checked after every step in debug builds, tests and simulation.

use super::Pipeline;
use crate::record::Phase;

impl<R> Pipeline<R> {
    /// Panics if a law of the spec does not hold.
    ///
    /// # Panics
    /// On A-I1, C-I2, C-I5, D-03, H-I2, R-I5, R-I6 (as far as the core knows), T-I2, X-I3.
    pub fn check_invariants(&self) {
        self.check_positions();
        self.check_tables();
        for (table, run) in self.copies.iter().filter(|_| self.life.moves_data()) {
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
        if !self.life.moves_data() {
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

    /// The projection's map, the catchup set and the record say the same.
    fn check_tables(&self) {
        if !self.life.moves_data() {
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
