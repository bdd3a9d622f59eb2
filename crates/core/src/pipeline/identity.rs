//! Who the source is (group S): the order of comparisons at the start of each pass of start-up
//! (S-04), and what the record takes over from the first one.

use super::reopen::in_recovery;
use super::startup::StartupOp;
use super::{Pipeline, source_fault};
use crate::fault::{Fault, FaultKind};
use crate::notice::Notice;
use crate::policies::SlotLoss;
use crate::source::ServerFacts;

/// First version whose slots can survive a failover (M-08).
const FAILOVER_SINCE: u32 = 170_000;

impl<R> Pipeline<R> {
    /// S-04: destination, prefix, publication, system and database, and last the timeline.
    pub(super) fn identified(&mut self, facts: ServerFacts) -> Result<(), Fault> {
        let record = self.ledger.record();
        if record.destination_id != self.config.destination.id && record.attempt_seq > 0 {
            let found = &self.config.destination.id;
            return Err(mismatch("destination", &record.destination_id, found));
        }
        if record.slot_prefix != self.config.limits.slot_prefix {
            let found = &self.config.limits.slot_prefix;
            return Err(mismatch("slot_prefix", &record.slot_prefix, found));
        }
        if record.identity.publication != self.config.publication {
            let found = &self.config.publication;
            return Err(mismatch("publication", &record.identity.publication, found));
        }
        if facts.seen.database != self.config.database {
            return Err(mismatch("database", &self.config.database, &facts.seen.database));
        }
        self.adopt_or_compare_system(&facts)?;
        if facts.in_recovery {
            return Err(in_recovery());
        }
        self.check_settings(&facts)?;
        self.adopt_destination();
        self.report(Notice::SourceIdentified {
            version: facts.version,
            timeline: facts.seen.timeline,
        });
        if !facts.copy_slot_risks.is_empty() {
            self.report(Notice::CopySlotAtRisk { settings: facts.copy_slot_risks });
        }
        self.idle_slot_timeout = facts.idle_slot_timeout;
        let found = facts.seen.timeline;
        self.seen = Some(facts.seen);
        self.compare_timeline(found)
    }

    fn check_settings(&self, facts: &ServerFacts) -> Result<(), Fault> {
        let refuse = |setting, expected: &str, found: &str| {
            let (expected, found) = (expected.to_owned(), found.to_owned());
            Err(source_fault(FaultKind::Configuration { setting, expected, found }, ""))
        };
        if facts.wal_level != "logical" {
            return refuse("wal_level", "logical", &facts.wal_level);
        }
        if self.config.limits.policies.slot_failover && facts.version < FAILOVER_SINCE {
            let major = (facts.version / 10_000).to_string();
            return refuse(
                "slot_failover",
                &format!("off: PostgreSQL {major} keeps no slots on standbys, 17 and newer do"),
                "on",
            );
        }
        Ok(())
    }

    /// S-04: until an attempt has begun nothing was offered to any destination, so another one may
    /// take its place: a mistyped one can be put right.
    fn adopt_destination(&mut self) {
        let id = self.config.destination.id.clone();
        if self.ledger.record().destination_id != id {
            self.ledger.edit_head(|record| record.destination_id = id);
        }
    }

    fn adopt_or_compare_system(&mut self, facts: &ServerFacts) -> Result<(), Fault> {
        if self.ledger.persisted().is_none() {
            let seen = facts.seen.clone();
            self.ledger.edit_head(|record| {
                record.identity.system_id = seen.system_id;
                record.identity.timeline = seen.timeline;
            });
            return Ok(());
        }
        let identity = &self.ledger.record().identity;
        if identity.system_id != facts.seen.system_id {
            let (expected, found) = (&identity.system_id, &facts.seen.system_id);
            return Err(mismatch("system identifier", expected, found));
        }
        if identity.database != facts.seen.database {
            return Err(mismatch("database", &identity.database, &facts.seen.database));
        }
        Ok(())
    }

    /// U-06: without a position nothing was offered, and the new timeline simply goes into save A.
    fn compare_timeline(&mut self, found: u32) -> Result<(), Fault> {
        let record = self.ledger.record();
        let recorded = record.identity.timeline;
        if recorded == found {
            return self.identity_settled();
        }
        if !self.config.limits.policies.slot_failover {
            return Err(mismatch("timeline", &recorded.to_string(), &found.to_string()));
        }
        if record.initial_lsn.is_some() {
            if found < recorded {
                // P-02: an old primary, whose history may not even exist (PG-38).
                let expected = format!("{recorded} or one that descends from it");
                return Err(mismatch("timeline", &expected, &found.to_string()));
            }
            return self.go_on(StartupOp::History { timeline: found });
        }
        self.ledger.edit_head(|record| record.identity.timeline = found);
        self.identity_settled()
    }

    /// U-07, U-08.
    pub(super) fn identity_settled(&mut self) -> Result<(), Fault> {
        let record = self.ledger.record();
        let reject = self.config.limits.policies.slot_loss == SlotLoss::Reject;
        if record.recreate && reject && !self.recreate_wanted {
            return Err(source_fault(FaultKind::RecreationPending, ""));
        }
        let look = record.initial_lsn.is_some() && !self.is_recreating();
        self.go_on(if look { StartupOp::Inspect } else { StartupOp::ListLeftovers })
    }
}

fn mismatch(field: &'static str, expected: &str, found: &str) -> Fault {
    let (expected, found) = (expected.to_owned(), found.to_owned());
    source_fault(FaultKind::IdentityMismatch { field, expected, found }, "")
}
