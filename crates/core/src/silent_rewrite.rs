//! Which schema changes make rows at the source differ without any event (D-15), and what existing
//! rows are known to show in an added column (PG-29).
//!
//! Pure. Knows nothing of policies: what follows is decided elsewhere.

use crate::schema::{Column, Existing, SchemaStep, TableSchema};
use crate::source::Described;

const VARCHAR: u32 = 1043;
const VARBIT: u32 = 1562;
const NUMERIC: u32 = 1700;

/// Bytes of a modifier that are not part of the length.
const VARHDRSZ: i32 = 4;
/// Bits of a numeric modifier that hold the scale.
const SCALE: i32 = 0x7FF;

/// The columns in which existing rows may differ.
pub(crate) fn columns(steps: &[SchemaStep]) -> Vec<String> {
    steps
        .iter()
        .filter_map(|step| match step {
            SchemaStep::Type { column, from, to } if !is_widening(*from, *to) => Some(column),
            SchemaStep::Add { column, existing: Existing::Unknown } => Some(&column.name),
            SchemaStep::Type { .. }
            | SchemaStep::Add { .. }
            | SchemaStep::Drop { .. }
            | SchemaStep::Rename { .. }
            | SchemaStep::NotNull { .. }
            | SchemaStep::Default { .. }
            | SchemaStep::Key { .. }
            | SchemaStep::RenameTable { .. } => None,
        })
        .cloned()
        .collect()
}

/// Whether every value stays what it was: more room for the same values. Without a modifier there is
/// room for all.
const fn is_widening((from, before): (u32, i32), (to, after): (u32, i32)) -> bool {
    if from != to {
        return false;
    }
    match from {
        VARCHAR | VARBIT | NUMERIC if after == -1 => true,
        VARCHAR | VARBIT => before != -1 && after >= before,
        NUMERIC if before >= VARHDRSZ && after >= VARHDRSZ => {
            let (before, after) = (before - VARHDRSZ, after - VARHDRSZ);
            after & SCALE == before & SCALE && after >> 16 >= before >> 16
        }
        _ => false,
    }
}

/// What existing rows show in a column that was added after `old`. `described` is a catalog read
/// that agrees with the rows.
///
/// A value that the catalog stores for rows that lack the column is theirs. Without one it is NULL,
/// but only while the storage is still that of `old`: a rewrite since then has put the values into
/// the rows and cleared the stored one. And only if the numbers of `old` are known: else the column may
/// be one of them under another name, with values of its own.
pub(crate) fn existing(
    column: &Column,
    old: &TableSchema,
    described: Option<&Described>,
) -> Existing {
    // One that was there and not published has values of its own.
    let hidden = old.unpublished.iter().any(|hidden| {
        hidden.name == column.name || (hidden.number != 0 && hidden.number == column.number)
    });
    let numbered = old.columns.iter().all(|column| column.number != 0);
    let Some(described) = described.filter(|_| numbered && !hidden) else {
        return Existing::Unknown;
    };
    let same = |found: &&Column| found.name == column.name && found.number == column.number;
    if !described.schema.columns.iter().any(|found| same(&found)) {
        return Existing::Unknown;
    }
    if let Some((_, value)) = described.missing.iter().find(|(name, _)| *name == column.name) {
        return Existing::Known(value.clone());
    }
    let untouched = old.storage.is_some() && old.storage == described.schema.storage;
    if untouched { Existing::Known(None) } else { Existing::Unknown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TableId;
    use crate::lsn::Position;
    use crate::schema::ReplicaIdentity;

    const fn numeric(precision: i32, scale: i32) -> (u32, i32) {
        (NUMERIC, ((precision << 16) | (scale & SCALE)) + VARHDRSZ)
    }

    // D-15
    #[test]
    fn only_more_room_for_the_same_values_keeps_the_rows() {
        let cases = [
            ((VARCHAR, 14), (VARCHAR, 24), true),
            ((VARCHAR, 14), (VARCHAR, -1), true),
            ((VARCHAR, 24), (VARCHAR, 14), false),
            ((VARCHAR, -1), (VARCHAR, 14), false),
            ((VARBIT, 3), (VARBIT, 4), true),
            ((VARBIT, 4), (VARBIT, 3), false),
            (numeric(10, 2), numeric(12, 2), true),
            (numeric(10, 2), numeric(12, 3), false),
            (numeric(10, 2), numeric(9, 2), false),
            (numeric(10, -2), numeric(12, -2), true),
            (numeric(10, 2), (NUMERIC, -1), true),
            ((NUMERIC, -1), numeric(10, 2), false),
            ((VARCHAR, 14), (25, -1), false),
            ((1042, 14), (1042, 24), false),
            ((1114, 3), (1114, 6), false),
        ];
        for (from, to, expected) in cases {
            assert_eq!(is_widening(from, to), expected, "{from:?} to {to:?}");
        }
    }

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

    fn schema(columns: &[(i16, &str)], storage: Option<u64>) -> TableSchema {
        TableSchema {
            table: TableId(1),
            namespace: "public".to_owned(),
            name: "t".to_owned(),
            identity: ReplicaIdentity::Default,
            columns: columns.iter().map(|&(number, name)| column(number, name)).collect(),
            unpublished: Vec::new(),
            storage,
        }
    }

    // D-15, PG-29
    #[test]
    fn null_is_known_only_while_the_storage_is_the_same() {
        let mut old = schema(&[(1, "id")], Some(7));
        let mut now = Described {
            schema: schema(&[(1, "id"), (2, "a")], Some(7)),
            missing: Vec::new(),
            position: Position::default(),
        };
        let added = column(2, "a");
        assert_eq!(existing(&added, &old, None), Existing::Unknown, "no catalog answer");
        assert_eq!(existing(&added, &old, Some(&now)), Existing::Known(None));
        now.schema.storage = Some(8);
        assert_eq!(existing(&added, &old, Some(&now)), Existing::Unknown, "rewritten since");
        now.missing.push(("a".to_owned(), Some("5".to_owned())));
        let five = Existing::Known(Some("5".to_owned()));
        assert_eq!(existing(&added, &old, Some(&now)), five);
        assert_eq!(existing(&column(3, "a"), &old, Some(&now)), Existing::Unknown, "another a");
        now.missing.clear();
        now.schema.storage = None;
        old.storage = None;
        assert_eq!(existing(&added, &old, Some(&now)), Existing::Unknown, "never read");
    }

    // D-15, D-F8: a column that the publication only shows now has values of its own
    #[test]
    fn a_column_that_was_hidden_is_not_known() {
        let mut old = schema(&[(1, "id")], Some(7));
        old.unpublished.push(column(2, "b"));
        let now = Described {
            schema: schema(&[(1, "id"), (2, "a")], Some(7)),
            missing: vec![("a".to_owned(), Some("5".to_owned()))],
            position: Position::default(),
        };
        assert_eq!(existing(&column(2, "a"), &old, Some(&now)), Existing::Unknown);
        walferry_coverage::reached("D-F8");
    }

    // D-15: after a shape that the relation alone told, what looks added may be renamed
    #[test]
    fn without_the_old_numbers_nothing_is_known() {
        let old = schema(&[(0, "id"), (0, "c")], Some(7));
        let now = Described {
            schema: schema(&[(1, "id"), (3, "value")], Some(7)),
            missing: Vec::new(),
            position: Position::default(),
        };
        assert_eq!(existing(&column(3, "value"), &old, Some(&now)), Existing::Unknown);
    }

    // D-15
    #[test]
    fn the_columns_that_may_differ_are_named() {
        let steps = [
            SchemaStep::Drop { column: "x".to_owned() },
            SchemaStep::Add { column: column(2, "a"), existing: Existing::Unknown },
            SchemaStep::Add { column: column(3, "b"), existing: Existing::Known(None) },
            SchemaStep::Type { column: "c".to_owned(), from: (23, -1), to: (20, -1) },
            SchemaStep::Type { column: "d".to_owned(), from: (VARCHAR, 9), to: (VARCHAR, 10) },
            SchemaStep::NotNull { column: "e".to_owned(), not_null: true },
        ];
        assert_eq!(columns(&steps), ["a", "c"]);
    }
}
