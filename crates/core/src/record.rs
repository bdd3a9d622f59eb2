//! The one durable value of a pipeline, as plain data with its rules.
//!
//! Its byte form belongs to the store. Parts are shared, so that a save costs what changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::{Attempt, Epoch, TableId};
use crate::lsn::Position;
use crate::names;
use crate::schema::TableSchema;

/// Newest format of the record.
pub const FORMAT: u32 = 1;
/// Most tables, and as many tombstones: 65,536 with schemas of 4 KiB stay below the size of a record.
pub const TABLES_MAX: usize = 65_536;
/// Longest stored reason in bytes: readable, no dump.
pub const REASON_BYTES_MAX: usize = 1_000;

/// What the record was made for (S-01).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// System identifier in decimal.
    pub system_id: String,
    /// Timeline.
    pub timeline: u32,
    /// Database.
    pub database: String,
    /// Main slot.
    pub slot: String,
    /// Publication.
    pub publication: String,
}

/// The durable value (R).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Version of the encoding.
    pub format: u32,
    /// Ownership number, 1 at the first save.
    pub epoch: Epoch,
    /// What it was made for.
    pub identity: Identity,
    /// Prefix of the main slot's name.
    pub slot_prefix: String,
    /// What the destination declared.
    pub destination_id: String,
    /// Consistent point of the main slot; absent = only the intent to create it.
    pub initial_lsn: Option<Position>,
    /// Restart position; present iff `initial_lsn` is.
    pub checkpoint: Option<Position>,
    /// Upper bound of everything the main lane has ever offered; only with slot failover on.
    pub write_horizon: Option<Position>,
    /// A re-creation of the main slot is under way.
    pub recreate: bool,
    /// Highest attempt number given (N-10).
    pub attempt_seq: u64,
    /// The tables.
    pub tables: Arc<BTreeMap<TableId, Arc<TableEntry>>>,
    /// Tables that are gone and may still have changes in the WAL.
    pub tombstones: Arc<BTreeMap<TableId, Tombstone>>,
}

/// When the publication and the membership were made (T-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stamp {
    /// OID of the publication.
    pub publication: u32,
    /// OID of the membership row, 0 if there is none.
    pub membership: u32,
}

/// One table of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableEntry {
    /// `schema.table`, for people.
    pub name: String,
    /// Membership seen at the last listing.
    pub stamp: Stamp,
    /// Where it stands.
    pub phase: Phase,
    /// The latest attempt, if any.
    pub attempt: Option<Attempt>,
    /// Attempts begun since the last handover, minus those that ended without blame.
    pub tries: u32,
    /// Processes that died in an attempt (Y-10); reset with `tries`.
    pub deaths: u32,
    /// Schema in force at max(checkpoint, handover); present iff Catchup or Ready.
    pub schema: Option<Arc<TableSchema>>,
    /// WAL position of the catalog read that `schema` comes from, if that may lie past the handover
    /// (K-18): rows below it keep the shape of their relation (D-08). Means nothing without a schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_from: Option<Position>,
    /// The attempt of the last handover since the main slot was made: an adoption keeps its watermark
    /// (K-18). One that did not come to its handover has none worth keeping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_over: Option<Attempt>,
}

/// Phase of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "phase", deny_unknown_fields)]
pub enum Phase {
    /// Known, not copied.
    Pending,
    /// An attempt is under way.
    Copying,
    /// Handed over, and main has not reached the handover yet.
    Catchup {
        /// From here on main owns the table.
        handover: Position,
    },
    /// Handed over, and main is durable at or past the handover.
    Ready {
        /// From here on main owns the table.
        handover: Position,
    },
    /// Stopped; its changes are dropped.
    Errored {
        /// For people; no row values, no SQL text, no secrets.
        reason: String,
        /// Who may bring it back.
        policy: Policy,
    },
}

/// Who brings an Errored table back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Nobody: only a resync.
    None,
    /// A person.
    Manual,
    /// A timer.
    Timed,
}

/// Memory that a table is gone (T-09).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tombstone {
    /// For people.
    pub name: String,
    /// Frontier at the decision: destination data is exact up to here.
    pub ignored_from: Position,
    /// Position of the listing that lacked it.
    pub absent_at: Position,
    /// The latest attempt, if any.
    pub attempt: Option<Attempt>,
    /// The attempt of the last handover, if any (K-18).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_over: Option<Attempt>,
}

impl Phase {
    /// Where main takes the table over, if it has been handed over.
    #[must_use]
    pub const fn handover(&self) -> Option<Position> {
        match self {
            Self::Catchup { handover } | Self::Ready { handover } => Some(*handover),
            Self::Pending | Self::Copying | Self::Errored { .. } => None,
        }
    }

    /// The word of the glossary.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Copying => "copying",
            Self::Catchup { .. } => "catchup",
            Self::Ready { .. } => "ready",
            Self::Errored { .. } => "errored",
        }
    }

    /// An Errored phase whose reason is cut to the stored bound at a character boundary.
    #[must_use]
    pub fn errored(reason: &str, policy: Policy) -> Self {
        let end = reason.floor_char_boundary(REASON_BYTES_MAX);
        let cut = &reason[..end];
        let reason = if cut.is_empty() { "unknown" } else { cut };
        Self::Errored { reason: reason.to_owned(), policy }
    }
}

impl TableEntry {
    /// A table seen for the first time.
    #[must_use]
    pub const fn pending(name: String, stamp: Stamp, attempt: Option<Attempt>) -> Self {
        Self {
            name,
            stamp,
            phase: Phase::Pending,
            attempt,
            tries: 0,
            deaths: 0,
            schema: None,
            schema_from: None,
            handed_over: None,
        }
    }
}

/// A record that contradicts itself.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RecordError {
    /// Written by a newer walferry.
    #[error("format {found} is newer than {known}")]
    TooNew {
        /// Format found.
        found: u32,
        /// Newest known.
        known: u32,
    },
    /// A rule of does not hold.
    #[error("{0}")]
    Invalid(String),
}

impl Record {
    /// Checks: on every read and before every save.
    ///
    /// # Errors
    /// The first rule that does not hold, with the values.
    pub fn validate(&self) -> Result<(), RecordError> {
        if self.format > FORMAT {
            return Err(RecordError::TooNew { found: self.format, known: FORMAT });
        }
        self.validate_head().and_then(|()| self.validate_lists()).map_err(RecordError::Invalid)
    }

    fn validate_head(&self) -> Result<(), String> {
        let fail = |text: String| Err(text);
        if self.format == 0 {
            return fail("format is 0".to_owned());
        }
        if self.destination_id.is_empty() {
            return fail("destination_id is empty".to_owned());
        }
        if !names::valid_prefix(&self.slot_prefix) {
            return fail(format!("slot_prefix {:?} is not valid", self.slot_prefix));
        }
        if !names::is_main_slot(&self.slot_prefix, &self.identity.slot) {
            return fail(format!(
                "slot {:?} is not prefix {:?}, an underscore and 24 hex digits",
                self.identity.slot, self.slot_prefix
            ));
        }
        if self.identity.publication.is_empty() || self.identity.publication.len() > 63 {
            return fail(format!("publication {:?} is not valid", self.identity.publication));
        }
        match (self.initial_lsn, self.checkpoint) {
            (Some(initial), Some(checkpoint)) => {
                if initial.0.0 == 0 || checkpoint < initial {
                    return fail(format!("checkpoint {checkpoint} is below initial_lsn {initial}"));
                }
            }
            (None, None) => {
                let empty = self.tables.is_empty() && self.tombstones.is_empty();
                if !empty || self.write_horizon.is_some() || self.recreate {
                    return fail(
                        "without initial_lsn there are tables, a horizon or a flag".into(),
                    );
                }
            }
            (Some(_), None) | (None, Some(_)) => {
                return fail("only one of initial_lsn and checkpoint is present".to_owned());
            }
        }
        Ok(())
    }

    fn validate_lists(&self) -> Result<(), String> {
        if self.tables.len() > TABLES_MAX || self.tombstones.len() > TABLES_MAX {
            return Err(format!(
                "{} tables and {} tombstones, at most {TABLES_MAX} each",
                self.tables.len(),
                self.tombstones.len()
            ));
        }
        for (&table, entry) in &*self.tables {
            self.validate_table(table, entry).map_err(|e| format!("table {table}: {e}"))?;
        }
        for (&table, tombstone) in &*self.tombstones {
            if table.0 == 0 || self.tables.contains_key(&table) {
                return Err(format!("tombstone {table}: oid 0, or a table as well"));
            }
            if tombstone.attempt.is_some_and(|a| a.0 > self.attempt_seq) {
                return Err(format!("tombstone {table}: attempt above attempt_seq"));
            }
        }
        Ok(())
    }

    fn validate_table(&self, table: TableId, entry: &TableEntry) -> Result<(), String> {
        if table.0 == 0 {
            return Err("oid 0".to_owned());
        }
        if let Some(attempt) = entry.attempt.filter(|a| a.0 > self.attempt_seq) {
            return Err(format!("attempt {attempt} is above attempt_seq {}", self.attempt_seq));
        }
        if entry.handed_over > entry.attempt {
            return Err("handed over by an attempt that is not known".to_owned());
        }
        let handover = entry.phase.handover();
        if let (Some(handover), Some(initial)) = (handover, self.initial_lsn)
            && handover < initial
        {
            return Err(format!("handover {handover} is below initial_lsn {initial}"));
        }
        if handover.is_some() != entry.schema.is_some() {
            return Err(format!("schema does not fit phase {}", entry.phase.word()));
        }
        match &entry.phase {
            Phase::Copying if entry.tries == 0 => Err("copying with tries 0".to_owned()),
            Phase::Copying if entry.attempt.is_none() => Err("copying without attempt".to_owned()),
            Phase::Errored { reason, .. } if reason.is_empty() => Err("empty reason".to_owned()),
            Phase::Errored { reason, .. } if reason.len() > REASON_BYTES_MAX => {
                Err(format!("reason of {} bytes", reason.len()))
            }
            Phase::Pending
            | Phase::Copying
            | Phase::Catchup { .. }
            | Phase::Ready { .. }
            | Phase::Errored { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::lsn::Lsn;
    use crate::schema::ReplicaIdentity;

    /// An edit that breaks a rule, and a part of what is said of it.
    type Case<T> = (fn(&mut T), &'static str);

    pub(crate) fn position(lsn: u64) -> Position {
        Position(Lsn(lsn))
    }

    pub(crate) fn schema() -> TableSchema {
        TableSchema {
            table: TableId(1),
            namespace: "public".to_owned(),
            name: "t".to_owned(),
            identity: ReplicaIdentity::Default,
            columns: Vec::new(),
            unpublished: Vec::new(),
            storage: None,
        }
    }

    pub(crate) fn record() -> Record {
        Record {
            format: FORMAT,
            epoch: Epoch(1),
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
            attempt_seq: 3,
            tables: Arc::default(),
            tombstones: Arc::default(),
        }
    }

    fn with_table(edit: impl FnOnce(&mut TableEntry)) -> Record {
        let mut record = record();
        let stamp = Stamp { publication: 1, membership: 2 };
        let mut entry = TableEntry::pending("public.t".to_owned(), stamp, Some(Attempt(3)));
        edit(&mut entry);
        record.tables = Arc::new(BTreeMap::from([(TableId(5), Arc::new(entry))]));
        record
    }

    //
    #[test]
    fn each_broken_rule_is_named() {
        assert_eq!(record().validate(), Ok(()));
        assert_eq!(with_table(|_| ()).validate(), Ok(()));
        let head: [Case<Record>; 9] = [
            (|r| r.format = 0, "format"),
            (|r| r.destination_id.clear(), "destination_id"),
            (|r| r.slot_prefix = "Big".to_owned(), "slot_prefix"),
            (|r| r.identity.slot.push('0'), "24 hex digits"),
            (|r| r.identity.publication.clear(), "publication"),
            (|r| r.checkpoint = Some(Position(Lsn(9))), "below initial_lsn"),
            (|r| r.initial_lsn = Some(Position(Lsn(0))), "below initial_lsn"),
            (|r| r.checkpoint = None, "only one"),
            (
                |r| {
                    r.initial_lsn = None;
                    r.checkpoint = None;
                    r.recreate = true;
                },
                "without initial_lsn",
            ),
        ];
        for (edit, part) in head {
            let mut broken = record();
            edit(&mut broken);
            let error = broken.validate().unwrap_err().to_string();
            assert!(error.contains(part), "{error} lacks {part}");
        }
        let tables: [Case<TableEntry>; 5] = [
            (|t| t.attempt = Some(Attempt(4)), "above attempt_seq"),
            (|t| t.phase = Phase::Copying, "tries 0"),
            (|t| t.phase = Phase::Ready { handover: Position(Lsn(9)) }, "below initial_lsn"),
            (|t| t.phase = Phase::Ready { handover: Position(Lsn(30)) }, "schema does not fit"),
            (
                |t| t.phase = Phase::Errored { reason: String::new(), policy: Policy::Manual },
                "empty reason",
            ),
        ];
        for (edit, part) in tables {
            let error = with_table(edit).validate().unwrap_err().to_string();
            assert!(error.contains(part), "{error} lacks {part}");
        }
    }

    #[test]
    fn a_newer_format_is_refused_as_such() {
        let mut newer = record();
        newer.format = FORMAT + 1;
        assert_eq!(newer.validate(), Err(RecordError::TooNew { found: FORMAT + 1, known: FORMAT }));
    }

    //
    #[test]
    fn a_reason_is_cut_at_a_character() {
        let Phase::Errored { reason, .. } = Phase::errored(&"ä".repeat(999), Policy::Manual)
        else {
            unreachable!()
        };
        assert_eq!(reason.len(), 1_000);
    }
}
