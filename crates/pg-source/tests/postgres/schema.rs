//! What the catalog tells about a table, and the facts about PostgreSQL that rest on it (D-08, D-15).

use walferry_cluster::cluster::Cluster;
use walferry_core::event::Event;
use walferry_core::ids::TableId;
use walferry_core::schema::TableSchema;
use walferry_core::source::Described;
use walferry_pg_source::Source;

use crate::skip;
use crate::support::{commits, events_until, oid, with_table};

async fn described(source: &Source, table: TableId) -> Described {
    source.describe_table(table).await.unwrap().unwrap()
}

fn numbered(schema: &TableSchema) -> Vec<(i16, &str)> {
    schema.columns.iter().map(|column| (column.number, column.name.as_str())).collect()
}

fn missing<'a>(described: &'a Described, column: &str) -> Option<&'a str> {
    let found = described.missing.iter().find(|(name, _)| name == column);
    found.and_then(|(_, value)| value.as_deref())
}

fn alter(cluster: &Cluster, what: &str) {
    cluster.psql("app", &format!("ALTER TABLE t {what}"));
}

// D-08, D-06: one snapshot with all columns; the schema of a copy has the same stamp
fn a_table_is_described(major: u32) {
    let cluster = skip::require(major);
    let source = with_table(&cluster);
    let table = TableId(oid(&cluster, "t"));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        cluster.psql("app", "INSERT INTO t VALUES (1, 'a')");
        let (attempt, snapshot) = source.open_snapshot(table, "copy_1", false).await.unwrap();
        attempt.open_reader(0).await.unwrap();
        let copied = attempt.read_schema().await.unwrap().schema;
        attempt.close().await.unwrap();
        let found = described(&source, table).await;
        assert_eq!(found.schema, copied);
        assert!(found.schema.storage.is_some() && found.missing.is_empty());
        assert!(found.position >= snapshot.slot.consistent);

        alter(&cluster, "DROP note, ADD a int NOT NULL DEFAULT 5, ADD b int");
        let later = described(&source, table).await;
        assert_eq!(numbered(&later.schema), [(1, "id"), (3, "a"), (4, "b")]);
        assert!(later.schema.columns[1].not_null);
        assert_eq!(later.schema.columns[1].default.as_deref(), Some("5"));
        assert_eq!(later.schema.storage, found.schema.storage, "nothing was rewritten");
        assert!(later.position > found.position);

        let publication = "ALTER PUBLICATION \"Pub of \"\"it\"\"\"";
        if major >= 15 {
            cluster.psql("app", &format!("{publication} SET TABLE t (id, b)"));
            let listed = described(&source, table).await;
            assert_eq!(numbered(&listed.schema), [(1, "id"), (4, "b")]);
            assert_eq!(listed.schema.unpublished[0].name, "a");
        }
        cluster.psql("app", &format!("{publication} DROP TABLE t"));
        let unpublished = described(&source, table).await;
        assert_eq!(numbered(&unpublished.schema), numbered(&later.schema));
        cluster.psql("app", "DROP TABLE t");
        assert_eq!(source.describe_table(table).await.unwrap(), None);
    });
}
on_servers!(a_table_is_described: v15 = 15, v18 = 18);

// PG-29, D-15: what existing rows show is stored until a rewrite, which changes the stamp
fn a_stored_value_is_cleared_by_a_rewrite(major: u32) {
    let cluster = skip::require(major);
    let source = with_table(&cluster);
    let table = TableId(oid(&cluster, "t"));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        cluster.psql("app", "INSERT INTO t VALUES (1, 'a')");
        let before = described(&source, table).await.schema.storage;
        alter(
            &cluster,
            "ADD n int DEFAULT 5, ADD x text DEFAULT E'a\"b\\\\,{}', ADD l int[] DEFAULT '{1,2}', \
             ADD y bytea DEFAULT '\\x00ff', ADD e text",
        );
        let found = described(&source, table).await;
        assert_eq!(missing(&found, "n"), Some("5"));
        assert_eq!(missing(&found, "x"), Some("a\"b\\,{}"));
        assert_eq!(missing(&found, "l"), Some("{1,2}"));
        assert_eq!(missing(&found, "y"), Some("\\x00ff"));
        assert_eq!(missing(&found, "e"), None);
        assert_eq!(found.schema.storage, before);

        alter(&cluster, "ALTER n SET DEFAULT 6");
        assert_eq!(missing(&described(&source, table).await, "n"), Some("5"));
        cluster.psql("app", "VACUUM FULL t");
        let rewritten = described(&source, table).await;
        assert_eq!((missing(&rewritten, "n"), rewritten.missing.len()), (None, 0));
        assert_ne!(rewritten.schema.storage, before);
        assert_eq!(cluster.psql("app", "SELECT n FROM t"), "5", "and yet it is not NULL");

        alter(&cluster, "ADD v float DEFAULT random()");
        let volatile = described(&source, table).await;
        assert_eq!(missing(&volatile, "v"), None);
        assert_ne!(volatile.schema.storage, rewritten.schema.storage);
    });
}
on_servers!(a_stored_value_is_cleared_by_a_rewrite: v15 = 15, v18 = 18);

// D-15: widening keeps the storage, everything else that changes values does not
fn only_widening_keeps_the_storage(major: u32) {
    let cluster = skip::require(major);
    let source = with_table(&cluster);
    let table = TableId(oid(&cluster, "t"));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        alter(&cluster, "ADD c varchar(5), ADD b varbit(5), ADD n numeric(8,2), ADD i int");
        let mut stamp = described(&source, table).await.schema.storage;
        let cases = [
            ("c TYPE varchar(9)", true),
            ("c TYPE varchar", true),
            ("b TYPE varbit(9)", true),
            ("b TYPE varbit", true),
            ("n TYPE numeric(9,2)", true),
            ("n TYPE numeric", true),
            ("n TYPE numeric(9,3)", false),
            ("i TYPE bigint", false),
        ];
        for (what, keeps) in cases {
            alter(&cluster, &format!("ALTER {what}"));
            let after = described(&source, table).await.schema.storage;
            assert_eq!(after == stamp, keeps, "{what}");
            stamp = after;
        }
    });
}
on_servers!(only_widening_keeps_the_storage: v15 = 15, v18 = 18);

// PG-29: of a partitioned table the leaves count
fn leaves_speak_for_their_root(major: u32) {
    let cluster = skip::require(major);
    let source = with_table(&cluster);
    cluster.psql(
        "app",
        "CREATE TABLE p(id int) PARTITION BY LIST (id); \
         CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); \
         CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2); \
         INSERT INTO p VALUES (1), (2); ALTER TABLE p ADD n int DEFAULT 5;",
    );
    let table = TableId(oid(&cluster, "p"));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let found = described(&source, table).await;
        assert_eq!(missing(&found, "n"), Some("5"));
        cluster.psql("app", "VACUUM FULL p2");
        let later = described(&source, table).await;
        assert_eq!(missing(&later, "n"), None, "one leaf cannot tell any more");
        assert_ne!(later.schema.storage, found.schema.storage);
    });
}
on_servers!(leaves_speak_for_their_root: v15 = 15, v18 = 18);

// PG-14: RELATION shows the table as of the change, also when it is read after later DDL
fn relation_shows_the_table_of_its_time(major: u32) {
    let cluster = skip::require(major);
    let source = with_table(&cluster);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let from = source.create_slot("main_1", false).await.unwrap().consistent;
        cluster.psql("app", "INSERT INTO t VALUES (1, 'a')");
        alter(&cluster, "RENAME note TO old; ALTER TABLE t ADD note int");
        cluster.psql("app", "INSERT INTO t VALUES (2, 'b', 3)");
        cluster.psql("app", "DROP TABLE t");
        let (_, handle, mut messages) = source.open_stream("main_1", from).await.unwrap();
        let enough = |events: &[Event<_>]| {
            events.iter().filter(|event| matches!(event, Event::Row { .. })).count() == 2
                && commits(events) >= 2
        };
        let events = events_until(&mut messages, "two rows", enough).await;
        let announced: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::Relation(relation) => Some(relation),
                _ => None,
            })
            .map(|relation| relation.columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>())
            .collect();
        assert_eq!(announced, [vec!["id", "note"], vec!["id", "old", "note"]]);
        handle.close().await.unwrap();
    });
}
on_servers!(relation_shows_the_table_of_its_time: v15 = 15, v18 = 18);

// D-05: a message of an event trigger comes inside its transaction, before the rows behind it
fn a_schema_message_comes_before_its_rows(major: u32) {
    let cluster = skip::require(major);
    let source = with_table(&cluster);
    let table = oid(&cluster, "t");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let from = source.create_slot("main_1", false).await.unwrap().consistent;
        let message = format!(
            r#"{{"command":"ALTER TABLE","schema":"public","table":"t","oid":{table},
               "identity":{{"replica_identity":"f"}},
               "columns":[{{"number":1,"name":"id","type":23,"modifier":-1,"not_null":true}}]}}"#
        );
        cluster.psql(
            "app",
            &format!(
                "BEGIN; SELECT pg_logical_emit_message(true, 'walferry_ddl', '{message}'); \
                 INSERT INTO t VALUES (1); COMMIT"
            ),
        );
        let (_, handle, mut messages) = source.open_stream("main_1", from).await.unwrap();
        let events = events_until(&mut messages, "the commit", |all| commits(all) == 1).await;
        let told = events.iter().position(|event| {
            matches!(event, Event::Ddl(Ok(message)) if message.schema.table == TableId(table))
        });
        let row = events.iter().position(|event| matches!(event, Event::Row { .. }));
        assert!(told.is_some() && told < row, "{events:?}");
        handle.close().await.unwrap();
    });
}
on_servers!(a_schema_message_comes_before_its_rows: v15 = 15, v18 = 18);
