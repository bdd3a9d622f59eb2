//! What a person asks of a running pipeline beside the stop (L-01, Y-09): refused with a reason, or
//! done with the pure functions that also serve a record that no run owns (L-06).

use super::Pipeline;
use super::life::Life;
use crate::ids::TableId;
use crate::input::Request;
use crate::notice::Notice;
use crate::requests::{self, Refusal};

/// More requests than this are not kept while the run starts.
const WAITING_MAX: usize = 1_000;

impl<R> Pipeline<R> {
    pub(super) fn requested(&mut self, request: Request) {
        match request {
            Request::Stop => self.request_stop(false),
            Request::StopNow => self.cut_short("a second stop request"),
            Request::Retry(table) | Request::Resync(table) => self.copy_requested(request, table),
            Request::Hold => self.hold_requested(),
            Request::Advance(to) => self.advance_requested(to),
            Request::Release => self.release_requested(),
            Request::Recreate => {
                if let Err(reason) = self.request_recreate() {
                    self.refuse(request, reason);
                }
            }
        }
    }

    /// Y-09.
    fn copy_requested(&mut self, request: Request, table: TableId) {
        match self.life {
            Life::Running | Life::Reopening(_) => (),
            // Nothing is known of the tables yet, or nothing may be changed: done once it is Running.
            Life::Starting | Life::Saving(_) | Life::Waiting(_) | Life::Leaving(_)
                if self.waiting_requests.len() < WAITING_MAX =>
            {
                self.waiting_requests.push((request, table));
                return;
            }
            Life::Starting
            | Life::Saving(_)
            | Life::Waiting(_)
            | Life::Leaving(_)
            | Life::Stopping(_)
            | Life::Failing(_)
            | Life::Ended => {
                let reason = format!("the run is {}", self.life.word(self.is_entered_again));
                self.refuse(request, reason);
                return;
            }
        }
        let allowed = match (self.ledger.table(table), request) {
            (None, _) => Err(Refusal::Unknown(table.to_string())),
            (Some(entry), Request::Retry(_)) => requests::may_retry(entry),
            (Some(_), _) => Ok(()),
        };
        match allowed {
            Ok(()) => self.copy_anew(table),
            Err(refusal) => self.refuse(request, refusal.to_string()),
        }
    }

    /// What was asked while start-up was under way.
    pub(super) fn answer_waiting_requests(&mut self) {
        for (request, table) in core::mem::take(&mut self.waiting_requests) {
            self.copy_requested(request, table);
        }
    }

    pub(super) fn refuse(&mut self, request: Request, reason: impl Into<String>) {
        self.report(Notice::RequestRefused { request, reason: reason.into() });
    }
}
