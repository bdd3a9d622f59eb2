//! How often the main scope has failed without progress (Y-01, Y-02, Y-04): one count for failures
//! of the source, one for those of the destination.

use crate::fault::Origin;
use crate::lsn::Position;

/// Failures of the main scope, start-up included, since the last progress.
#[derive(Debug, Default)]
pub(crate) struct MainBudget {
    source: u64,
    destination: u64,
    /// The persisted checkpoint at the last failure.
    checkpoint: Option<Position>,
}

impl MainBudget {
    /// Counts a failure: its number, or `None` when more than `retries_max` came without progress.
    pub(crate) fn failed(
        &mut self,
        origin: Origin,
        checkpoint: Option<Position>,
        retries_max: u64,
    ) -> Option<u64> {
        self.checkpoint = checkpoint;
        let count = match origin {
            Origin::Destination => &mut self.destination,
            Origin::Source | Origin::Store | Origin::Core => &mut self.source,
        };
        *count += 1;
        (*count <= retries_max).then_some(*count)
    }

    /// A save has completed: one that moves the checkpoint past the last failure is progress.
    pub(crate) fn saved(&mut self, checkpoint: Option<Position>) {
        if checkpoint > self.checkpoint {
            *self = Self::default();
        }
    }

    /// The unit of start-up has completed.
    pub(crate) const fn started(&mut self) {
        self.source = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    fn at(lsn: u64) -> Option<Position> {
        Some(Position(Lsn(lsn)))
    }

    // Y-02, Y-I3
    #[test]
    fn each_origin_has_its_own_count() {
        let mut budget = MainBudget::default();
        assert_eq!(budget.failed(Origin::Source, None, 2), Some(1));
        assert_eq!(budget.failed(Origin::Destination, None, 2), Some(1));
        assert_eq!(budget.failed(Origin::Source, None, 2), Some(2));
        assert_eq!(budget.failed(Origin::Source, None, 2), None);
        assert_eq!(budget.failed(Origin::Destination, None, 2), Some(2));
        assert_eq!(MainBudget::default().failed(Origin::Source, None, 0), None);
        walferry_coverage::reached("Y-I3");
        walferry_coverage::reached("Y-F6");
    }

    // Y-04
    #[test]
    fn only_progress_past_the_last_failure_forgives() {
        let mut budget = MainBudget::default();
        assert_eq!(budget.failed(Origin::Destination, at(10), 3), Some(1));
        budget.saved(at(10));
        assert_eq!(budget.failed(Origin::Destination, at(10), 3), Some(2), "saved, no progress");
        budget.saved(at(11));
        assert_eq!(budget.failed(Origin::Destination, at(11), 3), Some(1));
        assert_eq!(budget.failed(Origin::Source, at(11), 3), Some(1));
        budget.started();
        assert_eq!(budget.failed(Origin::Source, at(11), 3), Some(1));
        assert_eq!(budget.failed(Origin::Destination, at(11), 3), Some(2), "not the destination's");
    }
}
