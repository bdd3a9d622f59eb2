//! What a person does: commands to a running pipeline, and to a record that no run owns (L-06).

use std::sync::Arc;

use walferry_core::config::Until;
use walferry_core::fault::FaultKind;
use walferry_core::input::Request;
use walferry_core::policies::{PromotionLoss, SlotLoss};
use walferry_core::record::{Phase, Policy, Record};
use walferry_core::requests::{TableRequest, apply};

use super::World;
use super::features::BUILT;
use crate::coverage::reached;

impl World {
    /// Tables that wait for a person, with whether a retry is enough.
    fn errored(record: &Record) -> Vec<(walferry_core::ids::TableId, String, bool)> {
        let tables = record.tables.iter();
        let wanted = tables.filter_map(|(&id, entry)| match &entry.phase {
            Phase::Errored { policy: Policy::Manual, .. } => Some((id, entry.name.clone(), true)),
            Phase::Errored { policy: Policy::None, .. } => Some((id, entry.name.clone(), false)),
            Phase::Errored { policy: Policy::Timed, .. }
            | Phase::Pending
            | Phase::Copying
            | Phase::Catchup { .. }
            | Phase::Ready { .. } => None,
        });
        wanted.collect()
    }

    /// The operator retries manual tables and resyncs the hopeless ones; whether there was one.
    pub fn bring_back_tables(&mut self) -> bool {
        let Some(record) = self.store.persisted() else { return false };
        let errored = Self::errored(record);
        let Some((table, name, retry)) = errored.into_iter().next() else { return false };
        reached("Y-09");
        if self.is_alive() && BUILT.requests {
            let request = if retry { Request::Retry(table) } else { Request::Resync(table) };
            self.request(request);
            return true;
        }
        if self.is_alive() {
            // Only a record without a run can be changed from outside.
            self.stop();
            return true;
        }
        let request = if retry { TableRequest::Retry } else { TableRequest::Resync };
        self.apply_offline(request, &[name]);
        true
    }

    /// A run was refused for something that names an operator action (O-12): it is done here.
    pub fn answer_refusal(&mut self) {
        let Some(kind) = self.refused.take() else { return };
        let policies = &mut self.config.limits.policies;
        if let FaultKind::HorizonBeyondFork { .. } = kind {
            policies.promotion_loss = PromotionLoss::Resync;
        } else if let FaultKind::SlotMissing { .. }
        | FaultKind::SlotInvalidated { .. }
        | FaultKind::RecreationPending = kind
        {
            policies.slot_loss = SlotLoss::Recreate;
        } else if let FaultKind::PublicationMissing { .. } = kind {
            if self.source.publication.is_none() {
                self.source.create_publication();
            } else {
                // The WAL from before it was made again cannot be decoded (PG-24).
                self.config.until = Some(Until::Recreated);
            }
        } else if let FaultKind::IdentityMismatch { field: "timeline", .. } = kind
            && self.source.is_left_behind()
        {
            self.reach_old_primary();
        } else {
            return;
        }
        reached("O-12");
    }

    /// A command while no run owns the record: acquire, load, one save, release (L-06).
    ///
    /// # Panics
    /// If it is refused.
    pub fn apply_offline(&mut self, request: TableRequest, names: &[String]) {
        let Some(record) = self.store.persisted() else { return };
        match apply(record, request, names) {
            Ok((record, _)) => self.store.replace(Arc::new(record)),
            Err(refusal) => panic!("the operator is refused: {refusal}"),
        }
        reached("L-06");
    }
}
