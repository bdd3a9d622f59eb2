//! What a table looks like from a row on whose relation differs from the newest schema (D-08).
//!
//! Pure: RELATION says which columns the rows have and how they are called and typed; a schema
//! message or a catalog read, if it agrees with that, adds numbers, nullability, defaults and the
//! columns that are not published. Knows nothing of streams or of what a destination can do.

use crate::schema::{
    Column, DdlMessage, Existing, Relation, RelationColumn, SchemaCause, SchemaStep, TableSchema,
};
use crate::schema_plan;
use crate::silent_rewrite;
use crate::source::Described;

/// What the catalog has answered for this relation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Looked<'a> {
    /// Nobody has asked yet.
    NotYet,
    /// The answer; `None` if there is no such table any more.
    Answer(Option<&'a Described>),
}

/// The outcome.
#[derive(Debug)]
pub(crate) enum Resolved {
    /// The catalog has to be asked first.
    Ask,
    /// The new schema and the way to it.
    New { schema: TableSchema, steps: Vec<SchemaStep>, cause: SchemaCause },
}

/// The schema of rows announced by `relation`, after `old`.
pub(crate) fn resolve(
    old: &TableSchema,
    relation: &Relation,
    message: Option<&DdlMessage>,
    looked: Looked<'_>,
) -> Resolved {
    let described = match looked {
        Looked::NotYet => None,
        Looked::Answer(found) => found.filter(|found| agrees(&found.schema.columns, relation)),
    };
    let told = message.and_then(|message| subset(&message.schema.columns, relation));
    let mut schema = match (told, described) {
        (Some((columns, hidden)), _) => shaped(relation, columns, hidden),
        (None, Some(found)) => {
            let columns = merged(&found.schema.columns, relation);
            shaped(relation, columns, found.schema.unpublished.clone())
        }
        (None, None) if matches!(looked, Looked::NotYet) => return Resolved::Ask,
        (None, None) => alone(old, relation),
    };
    // The stamp of an earlier read stays true: it says that nothing was rewritten since then.
    schema.storage = described.map_or(old.storage, |found| found.schema.storage);
    let existing = |column: &Column| silent_rewrite::existing(column, old, described);
    let steps = schema_plan::steps(old, &schema, existing);
    // A message does not say what existing rows show in a column (D-15).
    let adds = steps
        .iter()
        .any(|step| matches!(step, SchemaStep::Add { existing: Existing::Unknown, .. }));
    if adds && matches!(looked, Looked::NotYet) {
        return Resolved::Ask;
    }
    let cause = schema_plan::cause(old, &schema);
    Resolved::New { schema, steps, cause }
}

/// The shape of rows by their relation alone: numbers are not known. Nothing is promised about NULL.
pub(crate) fn alone(old: &TableSchema, relation: &Relation) -> TableSchema {
    let column = |announced: &RelationColumn| {
        let before = old.columns.iter().find(|column| column.name == announced.name);
        Column {
            number: 0,
            name: announced.name.clone(),
            type_oid: announced.type_oid,
            modifier: announced.modifier,
            not_null: false,
            default: before.and_then(|column| column.default.clone()),
            key: announced.key,
        }
    };
    let columns: Vec<_> = relation.columns.iter().map(column).collect();
    let is_announced = |column: &Column| columns.iter().any(|shown| shown.name == column.name);
    let hidden = old.unpublished.iter().filter(|column| !is_announced(column)).cloned().collect();
    let mut schema = shaped(relation, columns, hidden);
    schema.storage = old.storage;
    schema
}

fn shaped(relation: &Relation, columns: Vec<Column>, unpublished: Vec<Column>) -> TableSchema {
    TableSchema {
        table: relation.table,
        namespace: relation.namespace.clone(),
        name: relation.name.clone(),
        identity: relation.identity,
        columns,
        unpublished,
        storage: None,
    }
}

fn is_the(column: &Column, announced: &RelationColumn) -> bool {
    column.name == announced.name && column.type_oid == announced.type_oid
}

/// Names, types and order.
fn agrees(columns: &[Column], relation: &Relation) -> bool {
    columns.len() == relation.columns.len()
        && columns.iter().zip(&relation.columns).all(|(column, shown)| is_the(column, shown))
}

fn merge(column: &Column, announced: &RelationColumn) -> Column {
    Column { modifier: announced.modifier, key: announced.key, ..column.clone() }
}

fn merged(columns: &[Column], relation: &Relation) -> Vec<Column> {
    columns.iter().zip(&relation.columns).map(|(column, shown)| merge(column, shown)).collect()
}

/// The announced columns among all of a message, in order, and the others; `None` if one is not
/// there.
fn subset(all: &[Column], relation: &Relation) -> Option<(Vec<Column>, Vec<Column>)> {
    let mut announced = relation.columns.iter().peekable();
    let (mut published, mut hidden) = (Vec::new(), Vec::new());
    for column in all {
        match announced.next_if(|shown| is_the(column, shown)) {
            Some(shown) => published.push(merge(column, shown)),
            None => hidden.push(column.clone()),
        }
    }
    announced.peek().is_none().then_some((published, hidden))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ids::TableId;
    use crate::lsn::Position;
    use crate::schema::ReplicaIdentity;

    fn column(number: i16, name: &str, type_oid: u32) -> Column {
        Column {
            number,
            name: name.to_owned(),
            type_oid,
            modifier: -1,
            not_null: true,
            default: Some("1".to_owned()),
            key: number == 1,
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
            storage: Some(7),
        }
    }

    fn relation(columns: &[(&str, u32, i32)]) -> Relation {
        let column = |&(name, type_oid, modifier): &(&str, u32, i32)| RelationColumn {
            key: name == "id",
            name: name.to_owned(),
            type_oid,
            modifier,
        };
        Relation {
            table: TableId(1),
            namespace: "public".to_owned(),
            name: "t".to_owned(),
            identity: ReplicaIdentity::Default,
            columns: columns.iter().map(column).collect(),
        }
    }

    fn old() -> TableSchema {
        schema(vec![column(1, "id", 23), column(2, "a", 25)])
    }

    fn described(columns: Vec<Column>) -> Described {
        let missing = vec![("b".to_owned(), Some("5".to_owned()))];
        Described { schema: schema(columns), missing, position: Position::default() }
    }

    fn new(resolved: Resolved) -> (TableSchema, Vec<SchemaStep>, SchemaCause) {
        match resolved {
            Resolved::New { schema, steps, cause } => (schema, steps, cause),
            Resolved::Ask => panic!("asks the catalog"),
        }
    }

    // D-08: the answer is used only if it agrees with the relation in names, types and order
    #[test]
    fn a_catalog_answer_that_disagrees_is_not_used() {
        let shown = relation(&[("id", 23, -1), ("a", 25, 9), ("b", 23, -1)]);
        assert!(matches!(resolve(&old(), &shown, None, Looked::NotYet), Resolved::Ask));
        let columns = vec![column(1, "id", 23), column(2, "a", 25), column(4, "b", 23)];
        let good = described(columns.clone());
        let (schema, steps, cause) =
            new(resolve(&old(), &shown, None, Looked::Answer(Some(&good))));
        assert_eq!(schema.columns.iter().map(|c| c.number).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(schema.columns[1].modifier, 9, "the modifier is the relation's");
        assert_eq!((schema.storage, cause), (Some(7), SchemaCause::Table));
        assert!(schema.agrees_with(&shown));
        assert_eq!(steps.len(), 2, "{steps:?}");
        let five = Existing::Known(Some("5".to_owned()));
        assert!(matches!(&steps[0], SchemaStep::Add { existing, .. } if *existing == five));
        let mut wrong = [columns.clone(), columns.clone(), columns];
        wrong[0][2].type_oid = 20;
        wrong[1][2].name.push('x');
        wrong[2].swap(1, 2);
        let answers = wrong.map(described);
        for answer in answers.iter().map(Some).chain([None]) {
            let (schema, steps, _) = new(resolve(&old(), &shown, None, Looked::Answer(answer)));
            assert!(schema.columns.iter().all(|column| column.number == 0), "{answer:?}");
            assert!(schema.agrees_with(&shown));
            let unknown = Existing::Unknown;
            assert!(matches!(&steps[0], SchemaStep::Add { existing, .. } if *existing == unknown));
        }
    }

    fn message(columns: Vec<Column>) -> DdlMessage {
        let schema = Arc::new(schema(columns));
        DdlMessage { command: "ALTER TABLE".to_owned(), publication: None, schema }
    }

    // D-08, D-05: columns from the message; what it lacks is hidden; a rename needs no catalog
    #[test]
    fn a_message_that_agrees_is_enough() {
        let shown = relation(&[("id", 23, -1), ("z", 25, -1)]);
        let told = message(vec![column(1, "id", 23), column(2, "z", 25), column(3, "x", 16)]);
        let (schema, steps, _) = new(resolve(&old(), &shown, Some(&told), Looked::NotYet));
        let rename = SchemaStep::Rename { from: "a".to_owned(), to: "z".to_owned() };
        assert_eq!(steps, [rename]);
        assert_eq!(schema.unpublished, [column(3, "x", 16)]);
        assert_eq!(schema.storage, Some(7), "the stamp of the read before stays true");
        let other = message(vec![column(1, "id", 23), column(2, "y", 25)]);
        let asks = resolve(&old(), &shown, Some(&other), Looked::NotYet);
        assert!(matches!(asks, Resolved::Ask), "a message that disagrees is not used");
    }

    // D-15: what existing rows show is asked of the catalog also with a message
    #[test]
    fn a_message_with_an_added_column_asks_for_its_value() {
        let shown = relation(&[("id", 23, -1), ("a", 25, -1), ("b", 23, -1)]);
        let columns = vec![column(1, "id", 23), column(2, "a", 25), column(3, "b", 23)];
        let told = message(columns.clone());
        let asks = resolve(&old(), &shown, Some(&told), Looked::NotYet);
        assert!(matches!(asks, Resolved::Ask));
        let found = described(columns);
        let answer = Looked::Answer(Some(&found));
        let (_, steps, _) = new(resolve(&old(), &shown, Some(&told), answer));
        let five = Existing::Known(Some("5".to_owned()));
        assert!(matches!(&steps[..], [SchemaStep::Add { existing, .. }] if *existing == five));
        let (schema, ..) = new(resolve(&old(), &shown, Some(&told), Looked::Answer(None)));
        assert_eq!(schema.columns[2].number, 3, "its columns are still known");
    }
}
