//! The order of transactions in a stream, and the numbers of their events.
//!
//! Owns as far as they are about order, and J-02. Knows nothing of bytes.

use crate::lsn::{CommitLsn, Position};

use super::error::DecodeReason;

/// Where a stream stands between and inside its transactions.
#[derive(Clone, Debug)]
pub(super) struct Order {
    start: Position,
    /// End of the last transaction.
    end: Position,
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    commit: CommitLsn,
    /// Number of the next event.
    ordinal: u64,
}

impl Order {
    /// Of a stream that was started at `start`.
    pub(super) const fn new(start: Position) -> Self {
        Self { start, end: start, open: None }
    }

    pub(super) const fn in_transaction(&self) -> bool {
        self.open.is_some()
    }

    pub(super) fn begin(&mut self, commit: CommitLsn) -> Result<(), DecodeReason> {
        if let Some(Open { commit: open, .. }) = self.open {
            return Err(DecodeReason::NestedBegin { open, found: commit });
        }
        if self.start.covers(commit) {
            return Err(DecodeReason::BelowStart { commit, start: self.start });
        }
        if self.end.covers(commit) {
            return Err(DecodeReason::PositionBack { commit, previous: self.end });
        }
        self.open = Some(Open { commit, ordinal: 0 });
        Ok(())
    }

    pub(super) fn commit(&mut self, found: CommitLsn, end: Position) -> Result<(), DecodeReason> {
        let Some(Open { commit: open, .. }) = self.open else {
            return Err(DecodeReason::OutsideTransaction);
        };
        if open != found {
            return Err(DecodeReason::CommitContradictsBegin { open, found });
        }
        if !end.covers(found) {
            return Err(DecodeReason::EndNotPastCommit { commit: found, end });
        }
        self.open = None;
        self.end = end;
        Ok(())
    }

    /// Number of the row or truncate that comes now.
    #[inline]
    pub(super) fn number(&mut self) -> Result<u64, DecodeReason> {
        let open = self.open.as_mut().ok_or(DecodeReason::OutsideTransaction)?;
        let ordinal = open.ordinal;
        open.ordinal += 1;
        Ok(ordinal)
    }

    /// What has no number belongs inside a transaction all the same.
    pub(super) fn inside(&self) -> Result<(), DecodeReason> {
        self.open.map(|_| ()).ok_or(DecodeReason::OutsideTransaction)
    }

    /// A logical message belongs inside if it is transactional, else outside (PG-25).
    pub(super) fn logical(&self, transactional: bool) -> Result<(), DecodeReason> {
        match self.open {
            Some(Open { commit: open, .. }) if !transactional => {
                Err(DecodeReason::InsideTransaction { open })
            }
            None if transactional => Err(DecodeReason::OutsideTransaction),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    const fn at(lsn: u64) -> CommitLsn {
        CommitLsn(Lsn(lsn))
    }

    const fn end(lsn: u64) -> Position {
        Position(Lsn(lsn))
    }

    fn open(commit: u64) -> Order {
        let mut order = Order::new(end(100));
        assert_eq!(order.begin(at(commit)), Ok(()));
        order
    }

    //
    #[test]
    fn the_start_position_keeps_transactions_out() {
        let mut order = Order::new(end(100));
        let below = DecodeReason::BelowStart { commit: at(99), start: end(100) };
        assert_eq!(order.begin(at(99)), Err(below));
        assert_eq!(order.begin(at(100)), Ok(()));
    }

    //
    #[test]
    fn transactions_neither_nest_nor_go_back() {
        let mut order = open(100);
        let nested = DecodeReason::NestedBegin { open: at(100), found: at(101) };
        assert_eq!(order.begin(at(101)), Err(nested));
        assert_eq!(order.commit(at(100), end(110)), Ok(()));
        let back = |lsn| DecodeReason::PositionBack { commit: at(lsn), previous: end(110) };
        for lsn in [100, 109] {
            assert_eq!(order.begin(at(lsn)), Err(back(lsn)));
        }
        assert_eq!(order.begin(at(110)), Ok(()));
    }

    //
    #[test]
    fn commit_agrees_with_begin() {
        let contradicts = DecodeReason::CommitContradictsBegin { open: at(100), found: at(101) };
        assert_eq!(open(100).commit(at(101), end(102)), Err(contradicts));
        for lsn in [0, 100] {
            let not_past = DecodeReason::EndNotPastCommit { commit: at(100), end: end(lsn) };
            assert_eq!(open(100).commit(at(100), end(lsn)), Err(not_past));
        }
        assert_eq!(open(100).commit(at(100), end(101)), Ok(()));
    }

    // A-07, PG-25
    #[test]
    fn what_belongs_inside_is_refused_outside_and_the_other_way_round() {
        let mut order = Order::new(end(100));
        let outside = DecodeReason::OutsideTransaction;
        assert_eq!(order.number(), Err(outside));
        assert_eq!(order.inside(), Err(outside));
        assert_eq!(order.commit(at(100), end(101)), Err(outside));
        assert_eq!(order.logical(true), Err(outside));
        assert_eq!(order.logical(false), Ok(()));
        let order = open(100);
        assert_eq!(order.inside(), Ok(()));
        assert_eq!(order.logical(true), Ok(()));
        let inside = DecodeReason::InsideTransaction { open: at(100) };
        assert_eq!(order.logical(false), Err(inside));
    }

    // J-02
    #[test]
    fn numbers_start_again_in_each_transaction() {
        let mut order = open(100);
        assert_eq!((order.number(), order.number()), (Ok(0), Ok(1)));
        assert_eq!(order.commit(at(100), end(101)), Ok(()));
        assert_eq!(order.begin(at(101)), Ok(()));
        assert_eq!(order.number(), Ok(0));
    }
}
