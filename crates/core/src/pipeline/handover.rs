//! Handover (group H): ownership of a table passes from its private stream to main, in one step of
//! the core and so ordered with every projection decision without a lock.

use std::sync::Arc;

use super::attempt::CopyRun;
use super::{Pipeline, Step};
use crate::ledger::Version;
use crate::lsn::Position;
use crate::notice::Notice;
use crate::record::Phase;

impl<R> Pipeline<R> {
    /// H-02. The caller has made sure of H-01: the private lane is empty and durable, no private
    /// transaction is dispatched in part, and `at >= m`.
    pub(super) fn hand_over(&mut self, run: &mut CopyRun<R>, at: Position) {
        let main_at = self.main.dispatched;
        assert!(at >= main_at, "handover at {at}, below the main position {main_at} (H-I2)");
        assert!(run.lane.is_settled(), "handover with work outstanding (H-01)");
        let ready = at == main_at;
        let table = run.table;
        let Some(mut owned) = run.owned.remove(&table) else { return };
        // D-10: main goes on with the newest private schema.
        owned.from = at;
        owned.following.hand_over();
        let history = owned.following.history();
        let schema = Arc::clone(history.newest());
        // An adopted schema was read later than the rows that main owns from here on (K-18).
        let schema_from = Position(history.newest_position().commit.0);
        let schema_from = (schema_from > at).then_some(schema_from);
        self.fence.handed_over(table);
        self.ledger.edit_table(table, |entry| {
            entry.phase =
                if ready { Phase::Ready { handover: at } } else { Phase::Catchup { handover: at } };
            entry.schema = Some(schema);
            entry.schema_from = schema_from;
            entry.handed_over = entry.attempt;
            entry.tries = 0;
            entry.deaths = 0;
        });
        self.owned.insert(table, owned);
        if !ready {
            self.catchup.insert(table, at);
        }
        if let Some(stream) = &mut run.stream {
            // What was read and not dispatched goes with the private stream: main owns it.
            stream.queue.clear();
        }
        run.step = Step::HandedOver(self.ledger.version());
        self.report(Notice::HandedOver { table, attempt: run.number, handover: at, ready });
    }

    /// H-02: slot and lane are released once the handover is saved, or when the table has left
    /// Catchup and Ready before.
    pub(super) fn release_if_saved(&mut self, run: &mut CopyRun<R>, version: Version) -> bool {
        let left = !self.owned.contains_key(&run.table);
        let due = self.ledger.has_persisted(version) || left;
        if due && run.is_quiet() {
            self.close_copy(run);
        } else if due {
            // The private stream may still be opening; its completion must find the attempt.
            self.cancel_attempt(run);
        }
        due
    }
}
