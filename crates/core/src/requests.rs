//! What a person may ask of the tables of a record (Y-09), as a pure function: the command line
//! applies it to a record that no run owns (L-06).

use std::sync::Arc;

use thiserror::Error;

use crate::ids::Epoch;
use crate::record::{Phase, Policy, Record, TableEntry};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableRequest {
    /// A new attempt of a table that is Errored.
    Retry,
    /// A new copy of a table, whatever its phase.
    Resync,
}

/// Why it is refused. Nothing was changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such table.
    #[error("the state knows no table {0}")]
    Unknown(String),
    /// Only Errored tables are retried.
    #[error("table {name} is {phase}, not errored")]
    NotErrored {
        /// The table.
        name: String,
        /// Where it stands.
        phase: &'static str,
    },
    /// A retry would fail again.
    #[error("table {0} can only be copied anew: resync it")]
    OnlyResync(String),
}

/// The record with every named table Pending again and its tries forgotten; for a retry without
/// names, every Errored table. The epoch is raised, as by every new owner. Also the names.
///
/// # Errors
/// The first table for which it is refused.
pub fn apply(
    record: &Record,
    request: TableRequest,
    names: &[String],
) -> Result<(Record, Vec<String>), Refusal> {
    let mut tables = (*record.tables).clone();
    let mut done = Vec::new();
    for name in names {
        if !tables.values().any(|entry| is_named(entry, name)) {
            return Err(Refusal::Unknown(name.clone()));
        }
    }
    for entry in tables.values_mut() {
        let named = names.iter().any(|name| is_named(entry, name));
        let all = names.is_empty() && request == TableRequest::Retry;
        let wanted = named || (all && matches!(entry.phase, Phase::Errored { .. }));
        if !wanted {
            continue;
        }
        if request == TableRequest::Retry {
            may_retry(entry)?;
        }
        let entry = Arc::make_mut(entry);
        reset(entry);
        done.push(entry.name.clone());
    }
    let epoch = Epoch(record.epoch.0 + 1);
    Ok((Record { epoch, tables: Arc::new(tables), ..record.clone() }, done))
}

/// The table is Pending again and its tries are forgotten; its attempt stays known, so that the copy
/// is a recopy.
pub(crate) fn reset(entry: &mut TableEntry) {
    entry.phase = Phase::Pending;
    entry.schema = None;
    entry.tries = 0;
    entry.deaths = 0;
}

/// A name as it is stored, `schema.table`; without a schema, public is meant.
fn is_named(entry: &TableEntry, name: &str) -> bool {
    entry.name == name || entry.name.strip_prefix("public.") == Some(name)
}

/// Whether a retry is allowed (Y-09).
pub(crate) fn may_retry(entry: &TableEntry) -> Result<(), Refusal> {
    let name = entry.name.clone();
    match &entry.phase {
        Phase::Errored { policy: Policy::None, .. } => Err(Refusal::OnlyResync(name)),
        Phase::Errored { policy: Policy::Manual | Policy::Timed, .. } => Ok(()),
        Phase::Pending | Phase::Copying | Phase::Catchup { .. } | Phase::Ready { .. } => {
            Err(Refusal::NotErrored { name, phase: entry.phase.word() })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::ids::{Attempt, TableId};
    use crate::lsn::{Lsn, Position};
    use crate::record::{FORMAT, Identity, Stamp};

    fn record(phases: &[(&str, Phase)]) -> Record {
        let entry = |(index, (name, phase)): (usize, &(&str, Phase))| {
            let stamp = Stamp { publication: 1, membership: 1 };
            let mut entry = TableEntry::pending((*name).to_owned(), stamp, Some(Attempt(1)));
            entry.phase = phase.clone();
            (entry.tries, entry.deaths) = (3, 2);
            (TableId(u32::try_from(index).unwrap() + 1), Arc::new(entry))
        };
        Record {
            format: FORMAT,
            epoch: Epoch(4),
            identity: Identity {
                system_id: "7".to_owned(),
                timeline: 1,
                database: "app".to_owned(),
                slot: format!("walferry_{}", "a".repeat(24)),
                publication: "app".to_owned(),
            },
            slot_prefix: "walferry".to_owned(),
            destination_id: "null:".to_owned(),
            initial_lsn: Some(Position(Lsn(10))),
            checkpoint: Some(Position(Lsn(20))),
            write_horizon: None,
            recreate: false,
            attempt_seq: 1,
            tables: Arc::new(phases.iter().enumerate().map(entry).collect::<BTreeMap<_, _>>()),
            tombstones: Arc::default(),
        }
    }

    // Y-09, L-06
    #[test]
    fn a_retry_without_names_takes_every_errored_table_and_leaves_the_rest() {
        let ready = Phase::Ready { handover: Position(Lsn(15)) };
        let before = record(&[
            ("public.a", Phase::errored("no rights", Policy::Manual)),
            ("public.b", ready.clone()),
        ]);
        let (after, done) = apply(&before, TableRequest::Retry, &[]).unwrap();
        assert_eq!(done, ["public.a"]);
        assert_eq!(after.epoch, Epoch(5));
        let a = &after.tables[&TableId(1)];
        assert_eq!((&a.phase, a.tries, a.deaths), (&Phase::Pending, 0, 0));
        assert_eq!(a.attempt, Some(Attempt(1)), "so that the copy is a recopy");
        assert_eq!(after.tables[&TableId(2)].phase, ready);
    }

    // Y-09
    #[test]
    fn what_may_not_be_retried_is_refused_with_the_reason_and_may_be_resynced() {
        let before = record(&[
            ("public.a", Phase::errored("poison", Policy::None)),
            ("sales.b", Phase::Pending),
        ]);
        let retry = |name: &str| apply(&before, TableRequest::Retry, &[name.to_owned()]);
        assert_eq!(retry("a").unwrap_err(), Refusal::OnlyResync("public.a".to_owned()));
        assert_eq!(retry("b").unwrap_err(), Refusal::Unknown("b".to_owned()));
        let refused = Refusal::NotErrored { name: "sales.b".to_owned(), phase: "pending" };
        assert_eq!(retry("sales.b").unwrap_err(), refused);
        let (after, done) = apply(&before, TableRequest::Resync, &["a".to_owned()]).unwrap();
        assert_eq!(done, ["public.a"]);
        assert_eq!(after.tables[&TableId(1)].phase, Phase::Pending);
    }
}
