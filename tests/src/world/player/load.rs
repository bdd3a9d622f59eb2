//! What the users of the source do: transactions that run beside each other, DDL, and changes of the
//! publication.

use walferry_core::ids::TableId;

use super::Player;
use crate::world::source::{Alter, Edit, Filled};

/// Transactions that run beside each other.
const OPEN_MAX: usize = 3;

impl Player {
    /// One step of somebody's work.
    pub(super) fn load(&mut self) {
        let running = self.world.source.running();
        match self.dice.below(10) {
            0..=4 => self.commit(),
            5 if running.len() < OPEN_MAX && self.transactions_left > 0 => {
                self.world.source.begin();
            }
            6 if self.uses.listings => self.change_members(),
            7 if self.transactions_left > 0 => {
                let prefix = if self.dice.chance(50) { "audit" } else { "walferry_heartbeat_x" };
                self.world.source.loose_message(prefix);
            }
            _ => {
                let Some(&xid) = self.dice.pick(&running) else {
                    self.commit();
                    return;
                };
                self.go_on(xid);
            }
        }
    }

    fn go_on(&mut self, xid: u32) {
        match self.dice.below(10) {
            0..=3 => {
                if let Some(edit) = self.edit(Some(xid)) {
                    self.world.source.execute(xid, edit);
                }
            }
            4 => self.world.source.savepoint(xid),
            5 => self.world.source.rollback_to_savepoint(xid),
            6 => {
                self.world.source.abort(xid);
                crate::coverage::reached("O-2");
            }
            _ if self.transactions_left > 0 => {
                self.transactions_left -= 1;
                let (gap, length) = self.distance();
                self.world.source.commit_open(xid, gap, length, self.row_bytes);
            }
            _ => self.world.source.abort(xid),
        }
    }

    /// A commit right behind the one before, and records of one byte: positions that touch.
    fn distance(&mut self) -> (u64, u64) {
        (self.dice.below(3), self.dice.between(1, 3))
    }

    /// A whole transaction at once.
    pub(super) fn commit(&mut self) {
        if self.transactions_left == 0 {
            return;
        }
        self.transactions_left -= 1;
        let mut edits = Vec::new();
        let mut dropped = Vec::new();
        for _ in 0..self.dice.below(7) {
            let edit = self.edit(None).filter(|edit| !touches(edit, &dropped));
            if let Some(Edit::Drop(table)) = edit {
                dropped.push(table);
            }
            edits.extend(edit);
        }
        let (gap, length) = self.distance();
        self.world.source.commit(&edits, gap, length, self.row_bytes);
    }

    /// A statement that does not have to wait.
    fn edit(&mut self, by: Option<u32>) -> Option<Edit> {
        let tables = self.world.source.living();
        let table = self.dice.pick(&tables).copied()?;
        let key = u32::try_from(self.dice.between(1, 6)).unwrap_or(1);
        let edit = match self.dice.below(100) {
            0..=9 => self.truncate(by),
            10..=19 if self.uses.schema => self.alter(table),
            20..=21 => Edit::Message("audit"),
            22..=40 => Edit::Delete(table, key),
            _ => Edit::Put(table, key),
        };
        self.world.source.may_run(&edit, by).then_some(edit)
    }

    fn truncate(&mut self, by: Option<u32>) -> Edit {
        let free = |table: &TableId| self.world.source.may_run(&Edit::Truncate(vec![*table]), by);
        let mut all: Vec<_> = self.world.source.living().into_iter().filter(free).collect();
        if self.dice.chance(50) {
            all.truncate(1);
        }
        if all.is_empty() { Edit::Message("audit") } else { Edit::Truncate(all) }
    }

    fn alter(&mut self, table: TableId) -> Edit {
        let number = usize::try_from(self.dice.below(4)).unwrap_or(0);
        let alter = match self.dice.below(10) {
            0 => Alter::Add(Filled::Null),
            1 => Alter::Add(Filled::Constant),
            2 => Alter::Add(Filled::Volatile),
            3 => Alter::Drop(number),
            4..=5 => Alter::Rename(number),
            6 => Alter::Type(number),
            7 => Alter::Default(number),
            8 => Alter::RenameTable,
            _ => Alter::Vacuum,
        };
        Edit::Alter(table, alter)
    }

    /// A table leaves the publication, joins it again, is dropped or made (T).
    pub(super) fn change_members(&mut self) {
        let source = &mut self.world.source;
        let (living, members) = (source.living(), source.members());
        let Some(table) = self.dice.pick(&living).copied() else { return };
        match self.dice.below(6) {
            0..=1 => source.join(table),
            2 if members.len() > 1 => source.leave(table),
            3 if living.len() < 5 => {
                source.create_table(true);
            }
            4 if members.len() > 1 && source.may_run(&Edit::Drop(table), None) => {
                source.commit(&[Edit::Drop(table)], 1, 1, 100);
                let known = self.world.store.persisted().map(|record| &record.tables);
                let unknown = known.is_some_and(|tables| !tables.contains_key(&table));
                if unknown && !self.world.source.tables[&table].history.is_empty() {
                    crate::coverage::reached("T-F3");
                }
            }
            _ => {
                // Between two listings: the stamp alone tells (T-11).
                source.leave(table);
                source.join(table);
                crate::coverage::reached("T-F4");
            }
        }
    }
}

fn touches(edit: &Edit, dropped: &[TableId]) -> bool {
    match edit {
        Edit::Put(table, _)
        | Edit::Delete(table, _)
        | Edit::Alter(table, _)
        | Edit::Drop(table) => dropped.contains(table),
        Edit::Truncate(tables) => tables.iter().any(|table| dropped.contains(table)),
        Edit::Message(_) => false,
    }
}
