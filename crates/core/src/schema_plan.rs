//! The way from one schema of a table to the next (D-14), as single steps.
//!
//! A pure function of two schemas. Knows nothing of streams, of what a destination can do, or of
//! where a schema came from; what existing rows show in an added column is asked of the caller.

use std::collections::{BTreeMap, BTreeSet};

use crate::schema::{
    Column, Existing, ReplicaIdentity, SchemaCause, SchemaStep, SchemaSupport, TableSchema,
};

/// Names that a plan gives to columns whose own name is not free yet.
const TEMPORARY: &str = "walferry_renaming_";

/// The steps in the order in which they can be executed: drops, renames, adds, types, nullability,
/// defaults, the key, the table's name. No step meets a name that is taken (D-I4).
pub(crate) fn steps(
    old: &TableSchema,
    new: &TableSchema,
    existing: impl Fn(&Column) -> Existing,
) -> Vec<SchemaStep> {
    let partners = partners(&old.columns, &new.columns);
    let kept: Vec<(&Column, &Column)> = partners
        .iter()
        .zip(&new.columns)
        .filter_map(|(partner, new)| Some((old.columns.get((*partner)?)?, new)))
        .collect();
    let stays: BTreeSet<_> = partners.iter().flatten().copied().collect();
    let gone = old.columns.iter().enumerate().filter(|(index, _)| !stays.contains(index));
    let mut steps: Vec<_> =
        gone.map(|(_, column)| SchemaStep::Drop { column: column.name.clone() }).collect();
    renames(&kept, &mut steps);
    for (_, column) in partners.iter().zip(&new.columns).filter(|(partner, _)| partner.is_none()) {
        steps.push(SchemaStep::Add { column: column.clone(), existing: existing(column) });
    }
    alters(&kept, &mut steps);
    if key_changes(old, new, &kept) {
        let keys = new.columns.iter().filter(|column| column.key);
        steps.push(SchemaStep::Key { columns: keys.map(|column| column.name.clone()).collect() });
    }
    if (&old.namespace, &old.name) != (&new.namespace, &new.name) {
        steps.push(SchemaStep::RenameTable {
            from: (old.namespace.clone(), old.name.clone()),
            to: (new.namespace.clone(), new.name.clone()),
        });
    }
    steps
}

/// For each new column the old one it was: by number where both are known, else by name.
///
/// PostgreSQL appends columns and never moves them, so a column found by name behind its successors
/// is another one that was added under the same name.
fn partners(old: &[Column], new: &[Column]) -> Vec<Option<usize>> {
    let by_number: BTreeMap<i16, usize> = (old.iter().enumerate())
        .filter(|(_, column)| column.number != 0)
        .map(|(index, column)| (column.number, index))
        .collect();
    let by_name: BTreeMap<&str, usize> =
        old.iter().enumerate().map(|(index, column)| (column.name.as_str(), index)).collect();
    let numbered = |column: &Column| by_number.get(&column.number).copied();
    let mut used: BTreeSet<_> = new.iter().filter_map(numbered).collect();
    let mut last = None;
    let mut partners = Vec::with_capacity(new.len());
    for column in new {
        let named = || {
            let index = *by_name.get(column.name.as_str())?;
            let unknown = column.number == 0 || old.get(index)?.number == 0;
            (unknown && Some(index) > last && used.insert(index)).then_some(index)
        };
        let partner = numbered(column).or_else(named);
        last = last.max(partner);
        partners.push(partner);
    }
    partners
}

/// Renames whose target is free go first; a cycle is opened with a temporary name.
fn renames(kept: &[(&Column, &Column)], steps: &mut Vec<SchemaStep>) {
    let mut taken: BTreeSet<String> = kept.iter().map(|(old, _)| old.name.clone()).collect();
    let reserved: BTreeSet<&str> =
        kept.iter().flat_map(|(old, new)| [old.name.as_str(), new.name.as_str()]).collect();
    let mut waiting: Vec<(String, String)> = kept
        .iter()
        .filter(|(old, new)| old.name != new.name)
        .map(|(old, new)| (old.name.clone(), new.name.clone()))
        .collect();
    let mut temporary = 0;
    let mut rename = |from: &str, to: &str, taken: &mut BTreeSet<String>| {
        taken.remove(from);
        taken.insert(to.to_owned());
        steps.push(SchemaStep::Rename { from: from.to_owned(), to: to.to_owned() });
    };
    while !waiting.is_empty() {
        let before = waiting.len();
        waiting.retain(|(from, to)| {
            let free = !taken.contains(to);
            if free {
                rename(from, to, &mut taken);
            }
            !free
        });
        if waiting.len() == before
            && let Some((from, _)) = waiting.first_mut()
        {
            let name = loop {
                let name = format!("{TEMPORARY}{temporary}");
                temporary += 1;
                if !reserved.contains(name.as_str()) {
                    break name;
                }
            };
            rename(from, &name, &mut taken);
            *from = name;
        }
    }
}

/// One property for each step.
fn alters(kept: &[(&Column, &Column)], steps: &mut Vec<SchemaStep>) {
    for (old, new) in kept {
        let (from, to) = ((old.type_oid, old.modifier), (new.type_oid, new.modifier));
        if from != to {
            steps.push(SchemaStep::Type { column: new.name.clone(), from, to });
        }
    }
    for (_, new) in kept.iter().filter(|(old, new)| old.not_null != new.not_null) {
        let (column, not_null) = (new.name.clone(), new.not_null);
        steps.push(SchemaStep::NotNull { column, not_null });
    }
    for (_, new) in kept.iter().filter(|(old, new)| old.default != new.default) {
        let (column, default) = (new.name.clone(), new.default.clone());
        steps.push(SchemaStep::Default { column, default });
    }
}

/// Whether other columns identify the rows. With identity FULL on both sides it is every column
/// before and after, which needs no step.
fn key_changes(old: &TableSchema, new: &TableSchema, kept: &[(&Column, &Column)]) -> bool {
    if old.identity == ReplicaIdentity::Full && new.identity == ReplicaIdentity::Full {
        return false;
    }
    let keys = |columns: &[Column]| columns.iter().filter(|column| column.key).count();
    let same = kept.iter().filter(|(old, new)| old.key && new.key).count();
    same != keys(&old.columns) || same != keys(&new.columns)
}

/// Who changed. Without all numbers it cannot be told: a column may have been there, unpublished.
pub(crate) fn cause(old: &TableSchema, new: &TableSchema) -> SchemaCause {
    let all = |schema: &TableSchema| {
        let published = schema.columns.iter().map(|column| (column.number, (column.clone(), true)));
        let hidden =
            schema.unpublished.iter().map(|column| (column.number, (column.clone(), false)));
        published.chain(hidden).collect::<BTreeMap<_, _>>()
    };
    let (before, after) = (all(old), all(new));
    let told = old.storage.is_some() && !before.contains_key(&0) && !after.contains_key(&0);
    if !told {
        return SchemaCause::Unclear;
    }
    let same = |left: &Column, right: &Column| {
        let shape = |column: &Column| {
            (column.name.clone(), column.type_oid, column.modifier, column.not_null)
        };
        shape(left) == shape(right) && left.default == right.default
    };
    let mut table = before.keys().ne(after.keys());
    let mut publication = false;
    for (number, (left, was_published)) in &before {
        if let Some((right, is_published)) = after.get(number) {
            table |= !same(left, right);
            publication |= was_published != is_published;
        }
    }
    match (table, publication) {
        (true, true) => SchemaCause::Unclear,
        (false, true) => SchemaCause::Publication,
        // Only the key differs: the table's replica identity was altered.
        (true | false, false) => SchemaCause::Table,
    }
}

/// The first step that a destination did not declare (DS-01), for people.
pub(crate) fn unsupported(steps: &[SchemaStep], support: SchemaSupport) -> Option<String> {
    steps.iter().find_map(|step| {
        let (can, what) = match step {
            SchemaStep::Drop { column } => (support.drop, format!("drop column {column}")),
            SchemaStep::Rename { from, to } => {
                (support.rename, format!("rename column {from} to {to}"))
            }
            SchemaStep::Add { column, .. } => (support.add, format!("add column {}", column.name)),
            SchemaStep::Type { column, .. } => {
                (support.alter_type, format!("change the type of column {column}"))
            }
            SchemaStep::NotNull { column, .. } => {
                (support.alter_null, format!("change NOT NULL of column {column}"))
            }
            SchemaStep::Default { column, .. } => {
                (support.alter_default, format!("change the default of column {column}"))
            }
            SchemaStep::Key { .. } => (support.key, "change the key".to_owned()),
            SchemaStep::RenameTable { .. } => (support.rename, "rename the table".to_owned()),
        };
        (!can).then_some(what)
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::ids::TableId;

    fn column(number: i16, name: &str) -> Column {
        Column {
            number,
            name: name.to_owned(),
            type_oid: 23,
            modifier: -1,
            not_null: false,
            default: None,
            key: false,
        }
    }

    fn schema(columns: Vec<Column>) -> TableSchema {
        TableSchema {
            table: TableId(1),
            namespace: "public".to_owned(),
            name: "t".to_owned(),
            identity: ReplicaIdentity::Default,
            columns,
            unpublished: Vec::new(),
            storage: Some(1),
        }
    }

    fn of(columns: &[(i16, &str)]) -> TableSchema {
        schema(columns.iter().map(|&(number, name)| column(number, name)).collect())
    }

    fn plan(old: &TableSchema, new: &TableSchema) -> Vec<String> {
        let text = |step: SchemaStep| match step {
            SchemaStep::Drop { column } => format!("drop {column}"),
            SchemaStep::Rename { from, to } => format!("{from} > {to}"),
            SchemaStep::Add { column, .. } => format!("add {}", column.name),
            SchemaStep::Type { column, .. } => format!("type {column}"),
            SchemaStep::NotNull { column, not_null } => format!("not null {column} {not_null}"),
            SchemaStep::Default { column, .. } => format!("default {column}"),
            SchemaStep::Key { columns } => format!("key {}", columns.join(" ")),
            SchemaStep::RenameTable { to: (namespace, name), .. } => {
                format!("table {namespace}.{name}")
            }
        };
        steps(old, new, |_| Existing::Unknown).into_iter().map(text).collect()
    }

    /// A sink's columns under a plan; an error is a step that cannot be done, or does more than one
    /// thing or nothing.
    fn execute(old: &TableSchema, steps: &[SchemaStep]) -> Result<TableSchema, String> {
        let mut sink: BTreeMap<String, Column> =
            old.columns.iter().map(|c| (c.name.clone(), c.clone())).collect();
        let mut done = old.clone();
        for step in steps {
            let names: Vec<_> = sink.keys().cloned().collect();
            let fail = || Err(format!("{step:?} on {names:?}"));
            match step {
                SchemaStep::Drop { column } => {
                    if sink.remove(column).is_none() {
                        return fail();
                    }
                }
                SchemaStep::Rename { from, to } => {
                    if sink.contains_key(to) {
                        return fail();
                    }
                    let Some(mut column) = sink.remove(from) else { return fail() };
                    column.name.clone_from(to);
                    sink.insert(to.clone(), column);
                }
                SchemaStep::Add { column, .. } => {
                    if sink.insert(column.name.clone(), column.clone()).is_some() {
                        return Err(format!("{step:?}"));
                    }
                }
                SchemaStep::Type { column, from, to } => {
                    let Some(c) = sink.get_mut(column) else { return fail() };
                    if from == to || (c.type_oid, c.modifier) != *from {
                        return fail();
                    }
                    (c.type_oid, c.modifier) = *to;
                }
                SchemaStep::NotNull { column, not_null } => {
                    let Some(c) = sink.get_mut(column) else { return fail() };
                    if core::mem::replace(&mut c.not_null, *not_null) == *not_null {
                        return fail();
                    }
                }
                SchemaStep::Default { column, default } => {
                    let Some(c) = sink.get_mut(column) else { return fail() };
                    if core::mem::replace(&mut c.default, default.clone()) == *default {
                        return fail();
                    }
                }
                SchemaStep::Key { columns } => {
                    if !columns.iter().all(|name| sink.contains_key(name)) {
                        return fail();
                    }
                    sink.values_mut().for_each(|c| c.key = columns.contains(&c.name));
                }
                SchemaStep::RenameTable { from, to } => {
                    if *from != (done.namespace.clone(), done.name.clone()) {
                        return fail();
                    }
                    (done.namespace, done.name) = to.clone();
                }
            }
        }
        done.columns = sink.into_values().collect();
        Ok(done)
    }

    // D-14, D-F10: rename a to b and add a new a
    #[test]
    fn numbers_tell_a_rename_from_a_drop_and_an_add() {
        let old = of(&[(1, "id"), (2, "a")]);
        let new = of(&[(1, "id"), (2, "b"), (3, "a")]);
        assert_eq!(plan(&old, &new), ["a > b", "add a"]);
        let unknown = of(&[(0, "id"), (0, "b"), (0, "a")]);
        assert_eq!(plan(&old, &unknown), ["add b"], "by name nothing else can be told");
        let again = of(&[(1, "id"), (4, "a")]);
        assert_eq!(plan(&old, &again), ["drop a", "add a"], "another column of the same name");
        walferry_coverage::reached("D-F10");
    }

    // D-14: a column never moves, so one found behind its successors was added anew
    #[test]
    fn a_column_that_seems_to_move_was_added_anew() {
        let old = of(&[(1, "a"), (2, "b"), (3, "c")]);
        let new = of(&[(0, "b"), (0, "c"), (0, "a")]);
        assert_eq!(plan(&old, &new), ["drop a", "add a"]);
    }

    // D-14
    #[test]
    fn cycles_of_names_go_through_a_temporary_one() {
        let old = of(&[(1, "a"), (2, "b"), (3, "c"), (4, "walferry_renaming_0")]);
        let new = of(&[(1, "b"), (2, "a"), (3, "d"), (4, "walferry_renaming_0")]);
        let expected = ["c > d", "a > walferry_renaming_1", "b > a", "walferry_renaming_1 > b"];
        assert_eq!(plan(&old, &new), expected);
        let chain = of(&[(1, "b"), (2, "c"), (3, "x"), (4, "walferry_renaming_0")]);
        assert_eq!(plan(&old, &chain), ["c > x", "b > c", "a > b"]);
    }

    // D-14: one property per step, in the order of the rule
    #[test]
    fn each_step_changes_one_property_and_key_and_name_come_last() {
        let old = of(&[(1, "id"), (2, "a"), (3, "x")]);
        let mut new = of(&[(1, "id"), (2, "b"), (4, "y")]);
        new.columns[0].key = true;
        new.columns[1].type_oid = 20;
        new.columns[1].not_null = true;
        new.columns[1].default = Some("7".to_owned());
        new.name = "u".to_owned();
        let expected = [
            "drop x",
            "a > b",
            "add y",
            "type b",
            "not null b true",
            "default b",
            "key id",
            "table public.u",
        ];
        assert_eq!(plan(&old, &new), expected);
        let mut full = new.clone();
        full.identity = ReplicaIdentity::Full;
        full.columns.iter_mut().for_each(|column| column.key = true);
        let mut more = full.clone();
        more.columns.push(Column { key: true, ..column(5, "z") });
        assert_eq!(plan(&full, &more), ["add z"], "FULL before and after needs no key step");
    }

    // D-14, D-F8
    #[test]
    fn the_cause_is_told_only_when_all_columns_are_known() {
        let old = of(&[(1, "id"), (2, "a")]);
        let table = of(&[(1, "id"), (2, "b")]);
        assert_eq!(cause(&old, &table), SchemaCause::Table);
        let mut publication = of(&[(1, "id")]);
        publication.unpublished.push(column(2, "a"));
        assert_eq!(cause(&old, &publication), SchemaCause::Publication);
        publication.unpublished[0].type_oid = 20;
        assert_eq!(cause(&old, &publication), SchemaCause::Unclear);
        assert_eq!(cause(&old, &of(&[(0, "id")])), SchemaCause::Unclear);
        let mut key = old.clone();
        key.columns[0].key = true;
        assert_eq!(cause(&old, &key), SchemaCause::Table);
        walferry_coverage::reached("D-F8");
    }

    // DS-01
    #[test]
    fn what_a_destination_did_not_declare_is_named() {
        let old = of(&[(1, "id"), (2, "a")]);
        let new = of(&[(1, "id"), (2, "b"), (3, "c")]);
        let steps = steps(&old, &new, |_| Existing::Unknown);
        assert_eq!(unsupported(&steps, SchemaSupport::ALL), None);
        let no_add = SchemaSupport { add: false, ..SchemaSupport::ALL };
        assert_eq!(unsupported(&steps, no_add).as_deref(), Some("add column c"));
        let none = unsupported(&steps, SchemaSupport::NONE);
        assert_eq!(none.as_deref(), Some("rename column a to b"));
    }

    prop_compose! {
        fn columns()(
            names in btree_set(0_u8..6, 0..6), numbers in btree_set(1_i16..9, 6),
            unknown in any::<bool>(), seeds in vec(any::<[bool; 4]>(), 6), shuffle in any::<u8>(),
        ) -> Vec<Column> {
            let mut names: Vec<_> = names.into_iter().collect();
            let turn = usize::from(shuffle) % names.len().max(1);
            names.rotate_left(turn);
            names.into_iter().zip(numbers).zip(seeds).map(|((name, number), [a, b, c, d])| Column {
                number: if unknown { 0 } else { number },
                name: char::from(b'a' + name).to_string(),
                type_oid: if a { 23 } else { 20 },
                modifier: -1,
                not_null: b,
                default: c.then(|| "1".to_owned()),
                key: d,
            }).collect()
        }
    }

    proptest! {
        // D-I4
        #[test]
        fn executing_the_plan_gives_the_new_columns(
            old in columns(), new in columns(), renamed: bool, full in any::<[bool; 2]>(),
        ) {
            let whole = |columns: Vec<Column>, full: bool| {
                let mut schema = schema(columns);
                if full {
                    schema.identity = ReplicaIdentity::Full;
                    schema.columns.iter_mut().for_each(|column| column.key = true);
                }
                schema
            };
            let (old, mut new) = (whole(old, full[0]), whole(new, full[1]));
            if renamed {
                new.name.push('x');
            }
            let steps = steps(&old, &new, |_| Existing::Unknown);
            let done = execute(&old, &steps);
            prop_assert!(done.is_ok(), "{done:?}");
            let done = done.unwrap_or_else(|_| old.clone());
            // A kept column keeps what it is at the sink; its number is the source's business.
            let by_name = |schema: &TableSchema| {
                let columns = schema.columns.iter().map(|c| Column { number: 0, ..c.clone() });
                columns.map(|c| (c.name.clone(), c)).collect::<BTreeMap<_, _>>()
            };
            prop_assert_eq!(by_name(&done), by_name(&new));
            prop_assert_eq!(done.name, new.name);
            if !steps.is_empty() {
                walferry_coverage::reached("D-I4");
            }
        }
    }
}
