//! The relations announced in a session, as far as rows are checked against them (D-09).
//!
//! Knows how many columns each has and nothing else: who needs the shape gets the announcement.

use std::collections::BTreeMap;

use crate::ids::TableId;
use crate::schema::Relation;

use super::error::DecodeReason;

/// Columns of each relation as last announced.
#[derive(Clone, Debug)]
pub(super) struct Announced {
    columns: BTreeMap<TableId, u16>,
    /// The last one asked for: rows of one table come in runs.
    recent: Option<(TableId, u16)>,
    limit: usize,
}

impl Announced {
    /// Remembers up to `limit` relations.
    pub(super) const fn new(limit: usize) -> Self {
        Self { columns: BTreeMap::new(), recent: None, limit }
    }

    pub(super) fn announce(&mut self, relation: &Relation) -> Result<(), DecodeReason> {
        let limit = self.limit;
        if self.columns.len() >= limit && !self.columns.contains_key(&relation.table) {
            return Err(DecodeReason::TooManyRelations { limit });
        }
        // The message had at most 1,600 columns.
        let columns = u16::try_from(relation.columns.len()).unwrap_or(u16::MAX);
        self.columns.insert(relation.table, columns);
        self.recent = Some((relation.table, columns));
        Ok(())
    }

    /// Columns of `table`.
    #[inline]
    pub(super) fn columns(&mut self, table: TableId) -> Result<u16, DecodeReason> {
        match self.recent {
            Some((recent, columns)) if recent == table => Ok(columns),
            Some(_) | None => self.look_up(table),
        }
    }

    fn look_up(&mut self, table: TableId) -> Result<u16, DecodeReason> {
        let columns = self.columns.get(&table).copied();
        let columns = columns.ok_or(DecodeReason::UnknownRelation { table })?;
        self.recent = Some((table, columns));
        Ok(columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{RelationColumn, ReplicaIdentity};

    fn relation(table: u32, columns: usize) -> Relation {
        let name = String::new;
        let column = |_| RelationColumn { key: false, name: name(), type_oid: 23, modifier: -1 };
        Relation {
            table: TableId(table),
            namespace: name(),
            name: name(),
            identity: ReplicaIdentity::Default,
            columns: (0..columns).map(column).collect(),
        }
    }

    // D-09, PG-13
    #[test]
    fn the_last_announcement_counts() {
        let mut announced = Announced::new(9);
        let unknown = DecodeReason::UnknownRelation { table: TableId(1) };
        assert_eq!(announced.columns(TableId(1)), Err(unknown));
        for (table, columns) in [(1, 3), (2, 4), (1, 5)] {
            assert_eq!(announced.announce(&relation(table, columns)), Ok(()));
        }
        for (table, columns) in [(1, 5), (2, 4), (2, 4), (1, 5)] {
            assert_eq!(announced.columns(TableId(table)), Ok(columns));
        }
    }

    // Z-02
    #[test]
    fn one_relation_above_the_limit_is_refused_and_a_repeated_one_is_not() {
        let mut announced = Announced::new(2);
        let mut announce = |table| announced.announce(&relation(table, 1));
        assert_eq!((announce(1), announce(2), announce(1)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(announce(3), Err(DecodeReason::TooManyRelations { limit: 2 }));
    }
}
