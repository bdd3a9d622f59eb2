//! Follows the shape of one table on one stream: whether a row's relation is the newest schema, an
//! older shape, or a change (D-08).
//!
//! Owns the comparison, made once for each announcement and schema. Knows nothing of batches.

use std::sync::Arc;

use crate::ids::EventKey;
use crate::lsn::{CommitLsn, Position};
use crate::policies::Doubt;
use crate::schema::{DdlMessage, Relation, SchemaChange, SchemaSupport, TableSchema};
use crate::schema_change::{self, Looked, Resolved};
use crate::schema_history::SchemaHistory;
use crate::schema_plan;
use crate::silent_rewrite;
use crate::source::Described;

/// What a stream may do about a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules<'a> {
    /// What the destination declared (DS-01).
    pub(crate) support: SchemaSupport,
    /// D-15.
    pub(crate) silent_rewrite: Doubt,
    /// Schema messages of another publication are ignored (D-05).
    pub(crate) publication: &'a str,
}

/// What a row's relation is to the schemas of its table.
#[derive(Debug)]
pub(crate) enum Shape {
    /// The newest schema.
    Newest,
    /// A shape older than the newest schema; the row keeps it (Adopt, DS-21).
    Older(Arc<TableSchema>),
    /// A difference that the catalog has to explain first.
    Ask,
    /// A change, which is in force from here on.
    Changed(Box<Change>),
    /// A change that the destination cannot follow, for people.
    Refused(String),
}

/// A schema change that was found.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) change: Arc<SchemaChange>,
    /// Columns in which existing rows may differ (D-15).
    pub(crate) silent: Vec<String>,
    /// The table has no usable identity any more (D-16).
    pub(crate) identity_lost: bool,
}

/// A schema message that no change has used yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    commit: CommitLsn,
    message: Arc<DdlMessage>,
}

/// The catalog's answer for one announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answered {
    relation: Arc<Relation>,
    described: Option<Box<Described>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Following {
    history: SchemaHistory,
    /// The newest schema message since the newest schema.
    told: Option<Told>,
    /// The announcement that was found equal to the newest schema.
    agreed: Option<Arc<Relation>>,
    /// An announcement older than the newest schema, and its shape.
    older: Option<(Arc<Relation>, Arc<TableSchema>)>,
    answered: Option<Answered>,
}

impl Following {
    /// Starts with a schema at its position (D-01).
    pub(crate) const fn new(position: EventKey, schema: Arc<TableSchema>) -> Self {
        let history = SchemaHistory::new(position, schema);
        Self { history, told: None, agreed: None, older: None, answered: None }
    }

    pub(crate) const fn history(&self) -> &SchemaHistory {
        &self.history
    }

    /// D-05: columns of the table as they are behind a command.
    pub(crate) fn tell(&mut self, commit: CommitLsn, message: Arc<DdlMessage>) {
        self.told = Some(Told { commit, message });
    }

    /// The answer to `Shape::Ask`, for the announcement that was asked about.
    pub(crate) fn answer(&mut self, relation: Arc<Relation>, described: Option<Described>) {
        self.answered = Some(Answered { relation, described: described.map(Box::new) });
    }

    /// Compares a row's relation with the newest schema. A change takes effect at once.
    #[inline]
    pub(crate) fn shape(
        &mut self,
        relation: &Arc<Relation>,
        key: EventKey,
        rules: &Rules<'_>,
    ) -> Shape {
        match &self.agreed {
            Some(agreed) if Arc::ptr_eq(agreed, relation) => Shape::Newest,
            Some(_) | None => self.compare(relation, key, rules),
        }
    }

    fn compare(&mut self, relation: &Arc<Relation>, key: EventKey, rules: &Rules<'_>) -> Shape {
        if self.history.newest().agrees_with(relation) {
            self.agreed = Some(Arc::clone(relation));
            return Shape::Newest;
        }
        if key < self.history.newest_position() {
            return Shape::Older(self.older(relation));
        }
        let old = Arc::clone(self.history.newest());
        let refused = |why: &str| {
            let (announced, copied) = (relation.shape(), old.shape());
            Shape::Refused(format!(
                "the stream announces {announced} but the table was copied as {copied}: \
                 the destination cannot {why}, resync the table"
            ))
        };
        if rules.support == SchemaSupport::NONE {
            return refused("follow schema changes");
        }
        let looked = match &self.answered {
            Some(answered) if Arc::ptr_eq(&answered.relation, relation) => {
                Looked::Answer(answered.described.as_deref())
            }
            Some(_) | None => Looked::NotYet,
        };
        let message = self.told.as_ref().map(|told| told.message.as_ref());
        let (schema, steps, cause) = match schema_change::resolve(&old, relation, message, looked) {
            Resolved::Ask => return Shape::Ask,
            Resolved::New { schema, steps, cause } => (Arc::new(schema), steps, cause),
        };
        if let Some(why) = schema_plan::unsupported(&steps, rules.support) {
            return refused(&why);
        }
        let silent = silent_rewrite::columns(&steps);
        let has_key = |schema: &TableSchema| schema.columns.iter().any(|column| column.key);
        let identity_lost = has_key(&old) && !has_key(&schema);
        let change = SchemaChange { position: key, schema: Arc::clone(&schema), steps, cause };
        self.history.push(key, schema);
        self.told = None;
        self.answered = None;
        self.agreed = Some(Arc::clone(relation));
        let change = Arc::new(change);
        Shape::Changed(Box::new(Change { change, silent, identity_lost }))
    }

    fn older(&mut self, relation: &Arc<Relation>) -> Arc<TableSchema> {
        match &self.older {
            Some((known, shape)) if Arc::ptr_eq(known, relation) => Arc::clone(shape),
            Some(_) | None => {
                let shape = Arc::new(schema_change::alone(self.history.newest(), relation));
                self.older = Some((Arc::clone(relation), Arc::clone(&shape)));
                shape
            }
        }
    }

    /// D-02.
    pub(crate) fn prune(&mut self, checkpoint: Position) {
        self.history.prune(checkpoint);
    }

    /// D-10: another stream goes on with the newest schema; its session has announcements of its own.
    pub(crate) fn hand_over(&mut self) {
        self.history.forget_older();
        self.forget_session();
    }

    /// the stream starts again at `from`, where the schemas of the record are in force.
    pub(crate) fn rewind(&mut self, from: Position) {
        self.history.rewind(from);
        self.forget_session();
        // A message from there on comes again.
        self.told = self.told.take().filter(|told| from.covers(told.commit));
    }

    fn forget_session(&mut self) {
        self.agreed = None;
        self.older = None;
        self.answered = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TableId;
    use crate::lsn::Lsn;
    use crate::schema::{Column, RelationColumn, ReplicaIdentity};

    const RULES: Rules<'static> =
        Rules { support: SchemaSupport::ALL, silent_rewrite: Doubt::Recopy, publication: "app" };

    fn schema(columns: &[(i16, &str)]) -> TableSchema {
        let column = |&(number, name): &(i16, &str)| Column {
            number,
            name: name.to_owned(),
            type_oid: 23,
            modifier: -1,
            not_null: false,
            default: None,
            key: number == 1,
        };
        TableSchema {
            table: TableId(1),
            namespace: "public".to_owned(),
            name: "t".to_owned(),
            identity: ReplicaIdentity::Default,
            columns: columns.iter().map(column).collect(),
            unpublished: Vec::new(),
            storage: Some(7),
        }
    }

    fn announced(schema: &TableSchema) -> Arc<Relation> {
        let column = |column: &Column| RelationColumn {
            key: column.key,
            name: column.name.clone(),
            type_oid: column.type_oid,
            modifier: column.modifier,
        };
        Arc::new(Relation {
            table: schema.table,
            namespace: schema.namespace.clone(),
            name: schema.name.clone(),
            identity: schema.identity,
            columns: schema.columns.iter().map(column).collect(),
        })
    }

    fn key(commit: u64) -> EventKey {
        EventKey { commit: CommitLsn(Lsn(commit)), ordinal: 0 }
    }

    // D-08, DS-21, K-18: below the position of an adopted schema a row keeps its own shape
    #[test]
    fn a_row_older_than_the_schema_keeps_its_shape_without_a_change() {
        let adopted = Arc::new(schema(&[(1, "id"), (2, "a"), (3, "b")]));
        let mut following = Following::new(key(20), Arc::clone(&adopted));
        let narrow = announced(&schema(&[(1, "id"), (2, "a")]));
        for commit in [10, 19] {
            let Shape::Older(shape) = following.shape(&narrow, key(commit), &RULES) else {
                panic!("commit {commit}")
            };
            assert!(shape.agrees_with(&narrow));
        }
        let now = announced(&adopted);
        assert!(matches!(following.shape(&now, key(15), &RULES), Shape::Newest));
        assert_eq!(following.history().newest(), &adopted);
        assert!(matches!(following.shape(&narrow, key(20), &RULES), Shape::Ask), "not older");
    }

    // D-08: an answer counts for the announcement that was asked about, and for no other
    #[test]
    fn an_answer_belongs_to_its_announcement() {
        let mut following = Following::new(key(1), Arc::new(schema(&[(1, "id"), (2, "a")])));
        let wide = announced(&schema(&[(1, "id"), (2, "a"), (3, "b")]));
        following.answer(Arc::clone(&wide), None);
        let again = Arc::new(Relation::clone(&wide));
        assert!(matches!(following.shape(&again, key(5), &RULES), Shape::Ask));
        let Shape::Changed(found) = following.shape(&wide, key(5), &RULES) else { panic!() };
        assert_eq!(found.silent, ["b"]);
        assert!(matches!(following.shape(&wide, key(5), &RULES), Shape::Newest));
    }

    // X-13, D-05: a message from behind the restart position comes again, one from before does not
    #[test]
    fn a_rewind_keeps_the_messages_that_do_not_come_again() {
        let told = schema(&[(1, "id"), (2, "z")]);
        let message = DdlMessage {
            command: "ALTER TABLE".to_owned(),
            publication: None,
            schema: Arc::new(told.clone()),
        };
        for (restart, asks) in [(6, false), (5, true)] {
            let mut following = Following::new(key(1), Arc::new(schema(&[(1, "id"), (2, "a")])));
            following.tell(CommitLsn(Lsn(5)), Arc::new(message.clone()));
            following.rewind(Position(Lsn(restart)));
            let shape = following.shape(&announced(&told), key(9), &RULES);
            assert_eq!(matches!(shape, Shape::Ask), asks, "{shape:?}");
        }
    }
}
