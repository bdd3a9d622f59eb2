//! Heartbeats: logical messages of our own, which come back on the main stream and tell how long
//! that took.
//!
//! The core never looks inside a message, so the order tells which one came: the k-th written is the
//! k-th seen. A message from before a re-opening comes again and is known by its transaction. Heartbeats
//! of another pipeline of the same database come as well: one of them may be taken for ours and make a
//! single lag look shorter; with nothing of ours outstanding they are ignored.

use core::time::Duration;
use std::collections::VecDeque;

use super::{Pipeline, Purpose};
use crate::effect::Work;
use crate::fault::Fault;
use crate::input::Answer;
use crate::lsn::CommitLsn;
use crate::names::HEARTBEAT_PREFIX;
use crate::notice::Notice;
use crate::time::Instant;
use crate::timers::Wakeup;

#[derive(Debug, Default)]
pub(super) struct Heartbeats {
    writing: bool,
    /// When those were written that have not come yet, oldest first.
    written: VecDeque<Instant>,
    /// Transaction of the newest one seen.
    newest: Option<CommitLsn>,
}

impl<R> Pipeline<R> {
    pub(super) fn arm_heartbeat(&mut self) {
        let every = self.config.limits.heartbeat_ms;
        if every > 0 && self.life.is_running() && !self.heartbeats.writing {
            let at = self.now.after(Duration::from_millis(every));
            self.timers.set_if_unset(Wakeup::Heartbeat, at);
        }
    }

    pub(super) fn heartbeat_due(&mut self) {
        if !self.life.is_running() || !self.main.open {
            return;
        }
        self.heartbeats.writing = true;
        self.heartbeats.written.push_back(self.now);
        let content = self.now.0.to_string();
        let work = Work::WriteHeartbeat { prefix: HEARTBEAT_PREFIX, content };
        let budget = Some(self.config.limits.query_ms);
        self.start(Purpose::Heartbeat { written: self.now }, budget, work);
    }

    pub(super) fn heartbeat_written(
        &mut self,
        written: Instant,
        result: Result<Answer, Fault>,
    ) -> Result<(), ()> {
        self.heartbeats.writing = false;
        match result {
            Ok(Answer::Done) => Ok(()),
            Ok(_) => Err(()),
            Err(fault) => {
                // If it was written all the same it finds nothing that waits for it, or shortens
                // one measurement; waiting for it would lengthen every one that follows.
                self.heartbeats.written.retain(|&at| at != written);
                if self.life.is_running() {
                    self.report(Notice::SideTaskFailed { task: "heartbeat", fault });
                }
                Ok(())
            }
        }
    }

    /// Heartbeats that a dispatch of main took, by their transactions.
    pub(super) fn heartbeats_seen(&mut self, commits: Vec<CommitLsn>) {
        for commit in commits {
            if self.heartbeats.newest.is_some_and(|newest| commit <= newest) {
                continue;
            }
            self.heartbeats.newest = Some(commit);
            if let Some(at) = self.heartbeats.written.pop_front() {
                self.report(Notice::HeartbeatSeen { lag: self.now.since(at) });
            }
        }
    }
}
