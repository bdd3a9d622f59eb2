//! The write horizon: with slot failover on, the record holds an upper bound of
//! everything that the main lane has ever offered, so that a promotion knows whether the sink may
//! hold events that the new timeline does not have (P-06).

use super::Pipeline;
use super::life::Life;
use crate::batch::Batch;
use crate::lsn::{Lsn, Position};

impl<R> Pipeline<R> {
    /// whether the next batch may be offered. If not, a save that raises the horizon is due.
    pub(super) fn horizon_allows_offer(&mut self) -> bool {
        if !self.config.limits.policies.slot_failover {
            return true;
        }
        let Some(value) = self.main_lane.next_batch().and_then(horizon_value) else { return true };
        // A save in flight may lower what is persisted.
        if self.ledger.saved_horizon().is_some_and(|saved| saved >= value) {
            self.horizon_offered = self.horizon_offered.max(Some(value));
            return true;
        }
        let reserved = round_up(value, self.config.limits.horizon_step_bytes);
        if self.ledger.record().write_horizon < Some(reserved) {
            self.ledger.edit_head(|record| record.write_horizon = Some(reserved));
        }
        false
    }

    /// a save made while nothing is offered and nothing waits carries the exact value.
    pub(super) fn make_horizon_exact(&mut self) {
        let on = self.config.limits.policies.slot_failover;
        let idle = !self.main_lane.is_writing_anything() && !self.main_lane.has_waiting();
        let exact = self.horizon_offered;
        if on && idle && exact.is_some() && self.ledger.record().write_horizon != exact {
            self.ledger.edit_head(|record| record.write_horizon = exact);
        }
    }

    /// the save of an orderly end, of P-11 and of I-03 always does.
    pub(super) fn settle_horizon(&mut self) -> bool {
        let before = self.ledger.version();
        let ends = matches!(self.life, Life::Leaving(_) | Life::Stopping(_));
        if self.life.has_started() && ends && self.main.queue.commits() == 0 {
            self.make_horizon_exact();
        }
        self.ledger.version() != before
    }
}

/// End of the last transaction with something left, or just past its commit record if its end is
/// not inside.
fn horizon_value<R>(batch: &Batch<R>) -> Option<Position> {
    let last = batch.changes.last()?;
    let part = batch.transactions.get(last.transaction as usize)?;
    Some(part.end.unwrap_or_else(|| part.commit.after_start()))
}

/// The next multiple of `step` at or past the position.
const fn round_up(position: Position, step: u64) -> Position {
    Position(Lsn(position.0.0.div_ceil(step).saturating_mul(step)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Change, ChangeBody, TransactionPart};
    use crate::event::TruncateFlags;
    use crate::ids::{Epoch, Lane};
    use crate::lsn::CommitLsn;

    //
    #[test]
    fn a_reservation_covers_its_value_and_at_most_a_step_more() {
        let up = |lsn| round_up(Position(Lsn(lsn)), 100).0.0;
        assert_eq!([up(1), up(99), up(100), up(101)], [100, 100, 100, 200]);
        assert!(up(u64::MAX) >= u64::MAX - 100);
    }

    //
    #[test]
    fn the_value_is_that_of_the_last_transaction_with_something_left() {
        let part = |commit, end: Option<u64>| TransactionPart {
            commit: CommitLsn(Lsn(commit)),
            time_us: 0,
            begins: true,
            end: end.map(|lsn| Position(Lsn(lsn))),
        };
        let change = |transaction| Change {
            transaction,
            ordinal: 0,
            body: ChangeBody::Truncate { table: 0, flags: TruncateFlags::default() },
        };
        let mut batch: Batch<u32> = Batch {
            lane: Lane::Main,
            epoch: Epoch(1),
            tables: Vec::new(),
            transactions: vec![part(10, Some(12)), part(20, None), part(30, Some(33))],
            changes: vec![change(0), change(1)],
            bytes: 0,
        };
        assert_eq!(horizon_value(&batch), Some(Position(Lsn(21))), "its commit is not inside");
        batch.changes.pop();
        assert_eq!(horizon_value(&batch), Some(Position(Lsn(12))));
        batch.changes.clear();
        assert_eq!(horizon_value(&batch), None);
    }
}
