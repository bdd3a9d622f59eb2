//! Draws the view.

use super::Pipeline;
use super::attempt::CopyRun;
use super::attempt_steps::Step;
use crate::view::{CopyView, Positions, TableView, View};

impl<R> Pipeline<R> {
    /// A picture of the whole pipeline; its cost grows with the number of tables.
    #[must_use]
    pub fn view(&self) -> View {
        let positions = Positions {
            confirmed: self.main.confirmed,
            checkpoint: self.ledger.persisted_checkpoint().unwrap_or_default(),
            frontier: self.main.frontier,
            dispatched: self.main.dispatched,
            received: self.main.received,
        };
        let tables = self.ledger.record().tables.iter().map(|(&table, entry)| TableView {
            table,
            name: entry.name.clone(),
            phase: entry.phase.clone(),
            copy: self.copies.get(&table).map(copy_view),
        });
        let copies: u64 = self.copies.values().map(CopyRun::held).sum();
        View {
            lifecycle: self.life.word(self.is_entered_again),
            ready: self.is_ready(),
            stalled: self.stalled_by(),
            epoch: self.epoch(),
            positions,
            tables: tables.collect(),
            held_bytes: self.main.queue.bytes() + self.main_lane.bytes() + copies,
            outstanding: self.pending.len(),
        }
    }
}

fn copy_view<R>(run: &CopyRun<R>) -> CopyView {
    CopyView {
        attempt: run.number,
        step: match run.step {
            Step::AwaitSave(_)
            | Step::SlotBusy
            | Step::Preparing
            | Step::BeginDue
            | Step::Beginning => "preparing",
            Step::Reading => "reading",
            Step::FinishDue
            | Step::Finishing
            | Step::FlushDue
            | Step::Flushing
            | Step::ClosingReaders => "finishing",
            Step::Replaying => "replaying",
            Step::HandedOver(_)
            | Step::Ending
            | Step::Closing
            | Step::SlotLeft
            | Step::DroppingSlot => "closing",
        },
        rows: run.rows_total(),
        bytes: run.bytes_total(),
        heap_bytes: run.heap_bytes(),
        position: run.stream.as_ref().map_or(run.cutoff, |stream| stream.frontier),
    }
}
