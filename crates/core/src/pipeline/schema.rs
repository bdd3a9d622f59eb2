//! What follows from a schema change that dispatch found (group D): catalog reads that dispatch waits
//! for, tables that are copied anew, and which schema the record carries.

use std::sync::Arc;

use super::attempt::CopyRun;
use super::attempt_steps::AttemptOp;
use super::{Pipeline, Purpose};
use crate::batch::Batch;
use crate::config::Config;
use crate::effect::Work;
use crate::fault::Fault;
use crate::following::{Change, Rules};
use crate::ids::{Session, TableId};
use crate::input::Answer;
use crate::lsn::Position;
use crate::notice::Notice;
use crate::projection::{self, SchemaFindings};
use crate::source::Described;

/// What the streams of a run may do about a schema change.
pub(super) fn schema_rules(config: &Config) -> Rules<'_> {
    Rules {
        support: config.destination.schema_changes,
        silent_rewrite: config.limits.policies.silent_rewrite,
        publication: &config.publication,
    }
}

impl<R> Pipeline<R> {
    /// D-08: whether main dispatch waits for a catalog read. A table that has left main holds nobody.
    pub(super) fn is_main_held_by_schema(&self) -> bool {
        self.describing.is_some_and(|(session, table)| {
            session == self.main.session && self.owned.contains_key(&table)
        })
    }

    /// What one dispatch of main found.
    pub(super) fn main_schemas_found(&mut self, batch: &mut Batch<R>, found: SchemaFindings) {
        let SchemaFindings { changes, recopies, ask, ignored, wants_listing } = found;
        for (table, change) in changes {
            self.changing.insert(table);
            self.report_change(table, change);
        }
        for (table, columns) in recopies {
            // X-15 covers what passed of the table before, too
            projection::strip(batch, table);
            self.report_silent_rewrite(table, columns);
            self.copy_anew(table);
        }
        for reason in ignored {
            self.report(Notice::DdlIgnored { reason });
        }
        if wants_listing {
            self.request_listing();
        }
        if let Some(table) = ask {
            let session = self.main.session;
            self.describing = Some((session, table));
            let purpose = Purpose::DescribeMain { session, table };
            let budget = Some(self.config.limits.query_ms);
            self.start(purpose, budget, Work::DescribeTable { table });
        }
    }

    /// The catalog's answer for main. One that failed is a failure of the stream, so that a lost
    /// connection never leads to a guess.
    pub(super) fn main_described(
        &mut self,
        session: Session,
        table: TableId,
        result: Result<Answer, Fault>,
    ) -> Result<(), ()> {
        if session != self.main.session {
            return Ok(());
        }
        self.describing = None;
        match result {
            Ok(Answer::Described(described)) => {
                if let Some(owned) = self.owned.get_mut(&table)
                    && let Some(relation) = self.main.relations.get(&table)
                {
                    owned.following.answer(Arc::clone(relation), described);
                }
                Ok(())
            }
            Ok(_) => Err(()),
            // Nobody needs the answer of a table that has left main.
            Err(_) if !self.owned.contains_key(&table) => Ok(()),
            Err(fault) => {
                self.main_failed("reading a table's columns from the catalog", fault);
                Ok(())
            }
        }
    }

    /// What one dispatch of a private stream found; whether the attempt is over. Schema messages that
    /// are ignored, and the listing they ask for, are left to main, which reads them as well.
    pub(super) fn private_schemas_found(
        &mut self,
        run: &mut CopyRun<R>,
        found: SchemaFindings,
    ) -> bool {
        let SchemaFindings { changes, recopies, ask, ignored: _, wants_listing: _ } = found;
        for (table, change) in changes {
            self.report_change(table, change);
        }
        if let Some((table, columns)) = recopies.into_iter().next() {
            self.report_silent_rewrite(table, columns);
            self.end_without_blame(run);
            return true;
        }
        if ask.is_some() {
            run.describing = true;
            let table = run.table;
            let budget = Some(self.config.limits.query_ms);
            let work = Work::DescribeTable { table };
            self.start_in_attempt(run, AttemptOp::Describe, budget, work);
        }
        false
    }

    fn report_change(&mut self, table: TableId, found: Change) {
        let Change { change, silent, identity_lost } = found;
        let (position, shape) = (change.position, change.schema.shape());
        self.report(Notice::SchemaChanged { table, position, shape });
        self.report_silent_rewrite(table, silent);
        if identity_lost {
            self.report(Notice::IdentityLost { table });
        }
    }

    fn report_silent_rewrite(&mut self, table: TableId, columns: Vec<String>) {
        for column in columns {
            self.report(Notice::SilentRewrite { table, column });
        }
    }

    /// D-03: each table's entry carries the schema in force at max(checkpoint, handover).
    pub(super) fn record_schemas_at(&mut self, checkpoint: Position) {
        for &table in &self.changing {
            let Some(owned) = self.owned.get(&table) else { continue };
            let schema = owned.following.history().in_force_at(checkpoint.max(owned.from));
            let recorded = self.ledger.table(table).and_then(|entry| entry.schema.as_ref());
            if recorded.is_none_or(|recorded| !Arc::ptr_eq(recorded, schema)) {
                self.ledger.edit_table(table, |entry| {
                    entry.schema = Some(Arc::clone(schema));
                    entry.schema_from = None;
                });
            }
        }
    }

    /// D-02, X-12: what no save can need any more goes.
    pub(super) fn prune_schemas(&mut self) {
        let Some(checkpoint) = self.ledger.persisted_checkpoint() else { return };
        let owned = &mut self.owned;
        self.changing.retain(|table| {
            let Some(owned) = owned.get_mut(table) else { return false };
            owned.following.prune(checkpoint);
            owned.following.history().has_older()
        });
    }

    /// the main schemas go back to those of the record. The caller has let saves complete until
    /// the persisted checkpoint equals the frontier, and opens a new session there.
    pub(super) fn rewind_schemas(&mut self) {
        let checkpoint = self.ledger.record().checkpoint.unwrap_or_default();
        self.describing = None;
        for owned in self.owned.values_mut() {
            owned.following.rewind(checkpoint.max(owned.from));
        }
        self.prune_schemas();
    }
}

/// The catalog's answer for a private stream.
pub(super) fn private_described<R>(run: &mut CopyRun<R>, described: Option<Described>) {
    run.describing = false;
    if let Some(owned) = run.owned.get_mut(&run.table)
        && let Some(stream) = &run.stream
        && let Some(relation) = stream.relations.get(&run.table)
    {
        owned.following.answer(Arc::clone(relation), described);
    }
}
