//! The publication and its members, each with an OID that says when it was made (PG-21..PG-24).

use walferry_core::ids::TableId;
use walferry_core::source::{ListedTable, Listing};

use super::Source;

/// The publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Its OID.
    pub oid: u32,
}

impl Publication {
    pub(super) const FIRST: Self = Self { oid: 9 };
}

impl Source {
    const fn next_oid(&mut self) -> u32 {
        self.last_oid += 1;
        self.last_oid
    }

    /// Whether the publication shows the changes of a table.
    #[must_use]
    pub fn shows(&self, table: TableId) -> bool {
        let member = self.tables.get(&table).is_some_and(|t| !t.dropped && t.member.is_some());
        self.publication.is_some() && member
    }

    /// ALTER PUBLICATION .. ADD TABLE, also for a member that was dropped from it in the same
    /// breath (PG-22).
    pub fn join(&mut self, table: TableId) {
        let oid = self.next_oid();
        if let Some(table) = self.tables.get_mut(&table).filter(|table| !table.dropped) {
            table.member = Some(oid);
            table.generation += 1;
        }
        self.unpublished(1);
    }

    /// ALTER PUBLICATION .. DROP TABLE.
    pub fn leave(&mut self, table: TableId) {
        if let Some(table) = self.tables.get_mut(&table) {
            table.member = None;
        }
        self.unpublished(1);
    }

    /// DROP PUBLICATION.
    pub fn drop_publication(&mut self) {
        self.publication = None;
        self.unpublished(1);
    }

    /// CREATE PUBLICATION for the tables that were members before.
    pub fn create_publication(&mut self) {
        self.publication = Some(Publication { oid: self.next_oid() });
        for id in self.living() {
            if self.tables.get(&id).is_some_and(|table| table.member.is_some()) {
                self.join(id);
            }
        }
        self.unpublished(1);
    }

    /// Tables that a listing names now.
    #[must_use]
    pub fn members(&self) -> Vec<TableId> {
        self.tables.keys().copied().filter(|&id| self.shows(id)).collect()
    }

    /// Answer to `ListPublication`.
    #[must_use]
    pub fn listing(&self) -> Option<Listing> {
        let publication = self.publication?.oid;
        let listed = |id: TableId| {
            let table = &self.tables[&id];
            let shape = table.shape();
            ListedTable {
                table: id,
                namespace: shape.namespace.clone(),
                name: shape.name.clone(),
                membership: table.member.unwrap_or_default(),
            }
        };
        Some(Listing {
            publication,
            missing_actions: Vec::new(),
            tables: self.members().into_iter().map(listed).collect(),
            position: self.head,
        })
    }
}
