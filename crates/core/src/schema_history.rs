//! The schemas of one table on one stream, as far as they are still needed (D-01..D-03).
//!
//! Owns which of them is in force at a position. Knows nothing of how one follows from another.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::EventKey;
use crate::lsn::Position;
use crate::schema::TableSchema;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    /// Key of the first event decoded with it; of a snapshot schema (cutoff, 0).
    position: EventKey,
    schema: Arc<TableSchema>,
}

/// The newest schema, and the older ones that a save may still have to carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SchemaHistory {
    newest: Version,
    /// Oldest first.
    older: VecDeque<Version>,
}

impl SchemaHistory {
    pub(crate) const fn new(position: EventKey, schema: Arc<TableSchema>) -> Self {
        Self { newest: Version { position, schema }, older: VecDeque::new() }
    }

    pub(crate) const fn newest(&self) -> &Arc<TableSchema> {
        &self.newest.schema
    }

    pub(crate) const fn newest_position(&self) -> EventKey {
        self.newest.position
    }

    /// From the event with this key on the table has another schema.
    pub(crate) fn push(&mut self, position: EventKey, schema: Arc<TableSchema>) {
        debug_assert!(position >= self.newest.position, "schema positions grow");
        let before = core::mem::replace(&mut self.newest, Version { position, schema });
        self.older.push_back(before);
    }

    /// The schema of the events right at a boundary: of a stream that starts there (D-03).
    pub(crate) fn in_force_at(&self, boundary: Position) -> &Arc<TableSchema> {
        if boundary.covers(self.newest.position.commit) {
            return &self.newest.schema;
        }
        let begun = self.older.iter().rev().find(|v| boundary.covers(v.position.commit));
        begun.or_else(|| self.older.front()).map_or(&self.newest.schema, |v| &v.schema)
    }

    pub(crate) fn has_older(&self) -> bool {
        !self.older.is_empty()
    }

    /// D-02: an older one goes once its successor's position is below the checkpoint.
    pub(crate) fn prune(&mut self, checkpoint: Position) {
        while !self.older.is_empty() {
            let successor = self.older.get(1).unwrap_or(&self.newest);
            if !checkpoint.covers(successor.position.commit) {
                break;
            }
            self.older.pop_front();
        }
    }

    /// D-10: main starts with the newest one; what came before lies below the handover.
    pub(crate) fn forget_older(&mut self) {
        self.older.clear();
    }

    /// back to the schema that is in force at the boundary where the stream starts again.
    pub(crate) fn rewind(&mut self, boundary: Position) {
        while !boundary.covers(self.newest.position.commit) {
            let Some(before) = self.older.pop_back() else { break };
            self.newest = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::ids::TableId;
    use crate::lsn::{CommitLsn, Lsn};
    use crate::schema::ReplicaIdentity;

    fn key(commit: u64, ordinal: u64) -> EventKey {
        EventKey { commit: CommitLsn(Lsn(commit)), ordinal }
    }

    fn at(lsn: u64) -> Position {
        Position(Lsn(lsn))
    }

    /// Told apart by its name.
    fn schema(number: usize) -> Arc<TableSchema> {
        Arc::new(TableSchema {
            table: TableId(1),
            namespace: "public".to_owned(),
            name: number.to_string(),
            identity: ReplicaIdentity::Default,
            columns: Vec::new(),
            unpublished: Vec::new(),
            storage: None,
        })
    }

    // D-01, D-03: an event at the boundary is not below it
    #[test]
    fn a_schema_is_in_force_behind_the_transaction_that_brought_it() {
        let mut history = SchemaHistory::new(key(10, 0), schema(0));
        history.push(key(20, 3), schema(1));
        let name = |boundary| history.in_force_at(at(boundary)).name.clone();
        assert_eq!([5, 10, 11, 20, 21].map(name), ["0", "0", "0", "0", "1"]);
        assert_eq!(history.newest_position(), key(20, 3));
    }

    proptest! {
        // D-02, D-03, X-13: pruning never loses what a later save or a restart needs
        #[test]
        fn what_is_pruned_is_never_needed_again(
            gaps in vec(0_u64..4, 0..8), checkpoint in 0_u64..30, later in 0_u64..30,
        ) {
            let mut whole = SchemaHistory::new(key(1, 0), schema(0));
            let mut commit = 1;
            for (number, gap) in gaps.into_iter().enumerate() {
                commit += gap;
                whole.push(key(commit, 7 + number as u64), schema(number + 1));
            }
            let mut pruned = whole.clone();
            pruned.prune(at(checkpoint));
            let later = checkpoint + later;
            prop_assert_eq!(pruned.in_force_at(at(later)), whole.in_force_at(at(later)));
            let needed = pruned.older.iter().skip(1).chain([&pruned.newest]);
            prop_assert!(pruned.older.is_empty()
                || needed.clone().all(|v| !at(checkpoint).covers(v.position.commit)));
            let mut rewound = pruned.clone();
            rewound.rewind(at(later));
            prop_assert_eq!(rewound.newest(), whole.in_force_at(at(later)));
        }
    }
}
