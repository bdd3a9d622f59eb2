//! What the server says about itself, its slots and a publication.
//!
//! Owns the queries. Must never compare what they answer with anything: the core does.

use walferry_core::fault::Fault;
use walferry_core::ids::TableId;
use walferry_core::lsn::{Lsn, Position};
use walferry_core::source::{
    ListedTable, Listing, MonitorFacts, ServerFacts, SlotFacts, SlotHolder, SlotReport, SourceSeen,
    TimelineSwitch,
};

use crate::error::SourceError;
use crate::message::Row;
use crate::session::Session;
use crate::sql::literal;

/// Columns of `seen` on an ordinary connection (PG-46). A standby has no insert position, so there
/// the timeline comes from the control file, which may be late.
const SEEN: &str = "(SELECT system_identifier FROM pg_control_system()), \
     CASE WHEN pg_is_in_recovery() THEN (SELECT to_hex(timeline_id) FROM pg_control_checkpoint()) \
     ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END, \
     current_database()";

/// End of the WAL that the server can send.
const WAL_END: &str = "CASE WHEN pg_is_in_recovery() \
     THEN coalesce(pg_last_wal_replay_lsn(), '0/0') ELSE pg_current_wal_flush_lsn() END";

/// The first object that is not the server's own.
const FIRST_NORMAL_OBJECT: u32 = 16_384;

fn one(during: &str, rows: Vec<Row>) -> Result<Row, SourceError> {
    rows.into_iter().next().ok_or_else(|| SourceError::unexpected(during, "no row"))
}

fn seen_of(row: &Row) -> Result<SourceSeen, SourceError> {
    let timeline = row.required(1)?;
    Ok(SourceSeen {
        system_id: row.required(0)?.to_owned(),
        timeline: u32::from_str_radix(timeline, 16).map_err(|_| {
            SourceError::unexpected("identifying the server", format!("timeline {timeline:?}"))
        })?,
        database: row.required(2)?.to_owned(),
    })
}

/// Who answers on an ordinary connection (S-06).
pub(crate) async fn seen(session: &mut Session) -> Result<SourceSeen, SourceError> {
    const DURING: &str = "identifying the server";
    let rows = session.query(DURING, &format!("SELECT {SEEN}")).await?;
    seen_of(&one(DURING, rows)?)
}

/// Who answers on a replication connection (S-02, PG-37).
pub(crate) async fn identify_system(session: &mut Session) -> Result<SourceSeen, SourceError> {
    const DURING: &str = "IDENTIFY_SYSTEM";
    let row = one(DURING, session.query(DURING, DURING).await?)?;
    Ok(SourceSeen {
        system_id: row.required(0)?.to_owned(),
        timeline: row.value(1)?,
        database: row.text(3).unwrap_or_default().to_owned(),
    })
}

/// Everything `Identify` answers, on a replication connection.
pub(crate) async fn server(session: &mut Session) -> Result<ServerFacts, SourceError> {
    const DURING: &str = "reading the server's settings";
    const RISKS: [(&str, &str); 2] =
        [("max_slot_wal_keep_size", "-1"), ("idle_replication_slot_timeout", "0")];
    let seen = identify_system(session).await?;
    let sql = "SELECT current_setting('server_version_num'), pg_is_in_recovery(), \
               current_setting('wal_level'), current_setting('max_slot_wal_keep_size'), \
               current_setting('idle_replication_slot_timeout', true)";
    let row = one(DURING, session.query(DURING, sql).await?)?;
    let risks = RISKS.iter().zip(3..).filter_map(|((name, off), column)| {
        let value = row.text(column)?;
        (value != *off).then(|| format!("{name} = {value}"))
    });
    Ok(ServerFacts {
        seen,
        version: row.value(0)?,
        in_recovery: row.flag(1)?,
        wal_level: row.required(2)?.to_owned(),
        copy_slot_risks: risks.collect(),
        idle_slot_timeout: row.text(4).is_some_and(|value| value != "0"),
    })
}

/// Slots as rows: their columns differ by version (PG-35).
fn slots(version: u32) -> String {
    let reason = match version {
        170_000.. => {
            "coalesce(s.invalidation_reason, CASE WHEN s.conflicting THEN 'conflicting' END)"
        }
        160_000.. => "CASE WHEN s.conflicting THEN 'conflicting' END",
        _ => "NULL",
    };
    let failover = if version >= 170_000 { "s.failover" } else { "false" };
    format!(
        "SELECT s.slot_name, s.plugin, s.database, s.slot_type, s.temporary, s.active_pid, \
         a.application_name, s.restart_lsn, s.confirmed_flush_lsn, s.wal_status, s.safe_wal_size, \
         {reason} AS reason, {failover} AS failover \
         FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid"
    )
}

/// The slot in the columns from `first` on, if its name is not null.
fn slot_of(row: &Row, first: usize) -> Result<Option<SlotFacts>, SourceError> {
    let text = |column: usize| row.text(first + column).unwrap_or_default().to_owned();
    let Some(name) = row.text(first) else { return Ok(None) };
    let pid: Option<i32> = row.optional(first + 5)?;
    Ok(Some(SlotFacts {
        name: name.to_owned(),
        plugin: text(1),
        database: text(2),
        logical: row.required(first + 3)? == "logical",
        temporary: row.flag(first + 4)?,
        active: pid.map(|pid| SlotHolder { pid, application: text(6) }),
        restart_lsn: row.optional(first + 7)?,
        confirmed_flush_lsn: row.optional(first + 8)?,
        wal_status: row.text(first + 9).map(str::to_owned),
        safe_wal_size: row.optional(first + 10)?,
        invalidation_reason: row.text(first + 11).map(str::to_owned),
        failover: row.flag(first + 12)?,
    }))
}

/// All slots whose name starts with `prefix`, compared here and not by a pattern (N-I3).
pub(crate) async fn list_slots(
    session: &mut Session,
    prefix: &str,
) -> Result<Vec<SlotFacts>, SourceError> {
    let sql = format!("{} ORDER BY s.slot_name", slots(session.version()));
    let rows = session.query("listing the slots", &sql).await?;
    let all = rows.iter().filter_map(|row| slot_of(row, 0).transpose());
    all.filter(|slot| slot.as_ref().map_or(true, |slot| slot.name.starts_with(prefix))).collect()
}

/// A slot and what A-03 compares with it, in one query.
pub(crate) async fn inspect_slot(
    session: &mut Session,
    slot: &str,
    publication: &str,
) -> Result<SlotReport, SourceError> {
    let during = format!("inspecting slot {slot}");
    let sql = format!(
        "SELECT {SEEN}, {WAL_END}, (SELECT oid FROM pg_publication WHERE pubname = {}), s.* \
         FROM (SELECT 1) AS always LEFT JOIN ({}) AS s ON s.slot_name = {}",
        literal(publication),
        slots(session.version()),
        literal(slot),
    );
    let row = one(&during, session.query(&during, &sql).await?)?;
    Ok(SlotReport {
        seen: seen_of(&row)?,
        wal_end: row.value(3)?,
        publication: row.optional(4)?,
        slot: slot_of(&row, 5)?,
    })
}

/// End of the server's WAL and one slot (G-06).
pub(crate) async fn monitor(
    session: &mut Session,
    slot: &str,
) -> Result<MonitorFacts, SourceError> {
    const DURING: &str = "looking at the main slot";
    let sql = format!(
        "SELECT {WAL_END}, s.* FROM (SELECT 1) AS always \
         LEFT JOIN ({}) AS s ON s.slot_name = {}",
        slots(session.version()),
        literal(slot),
    );
    let row = one(DURING, session.query(DURING, &sql).await?)?;
    Ok(MonitorFacts { wal_end: row.value(0)?, slot: slot_of(&row, 1)? })
}

/// End of the server's flushed WAL (L-08).
pub(crate) async fn wal_position(session: &mut Session) -> Result<Lsn, SourceError> {
    const DURING: &str = "reading the WAL position";
    one(DURING, session.query(DURING, &format!("SELECT {WAL_END}")).await?)?.value(0)
}

/// The history of a timeline, oldest entry first (PG-38). The first timeline has none.
pub(crate) async fn timeline_history(
    session: &mut Session,
    timeline: u32,
) -> Result<Vec<TimelineSwitch>, SourceError> {
    if timeline == 1 {
        return Ok(Vec::new());
    }
    let during = format!("TIMELINE_HISTORY {timeline}");
    let row = one(&during, session.query(&during, &during).await?)?;
    switches(row.required(1)?)
        .ok_or_else(|| SourceError::unexpected(&during, "a history that is not one of timelines"))
}

/// Lines of timeline, position and reason, with comments between.
fn switches(history: &str) -> Option<Vec<TimelineSwitch>> {
    let lines = history.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let switch = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let parent = words.next()?.parse().ok()?;
        let at = Position(words.next()?.parse().ok()?);
        Some(TimelineSwitch { parent, at })
    };
    lines.map(switch).collect()
}

/// Writes a transactional logical message.
pub(crate) async fn emit_message(
    session: &mut Session,
    prefix: &str,
    content: &str,
) -> Result<(), SourceError> {
    let (prefix, content) = (literal(prefix), literal(content));
    let sql = format!("SELECT pg_logical_emit_message(true, {prefix}, {content})");
    session.query("writing a heartbeat", &sql).await.map(drop)
}

/// Common table expressions of what a publication publishes, read from the catalog and so in the
/// snapshot of the query: functions and views of the server would look past an imported snapshot.
///
/// `up` has each relation with itself and its ancestors, `member` those that the publication names,
/// `listed` the relations under whose name changes are sent (PG-20). `only` restricts all of it to
/// one relation.
fn published(version: u32, publication: &str, only: Option<TableId>) -> String {
    let seed = only.map(|table| format!(" AND c.oid = {table}")).unwrap_or_default();
    let (schemas, schema_row) = if version >= 150_000 {
        let join = "LEFT JOIN pg_publication_namespace n \
                    ON n.pnpubid = pub.oid AND n.pnnspid = k.relnamespace";
        (join, "n.oid")
    } else {
        ("", "NULL::oid")
    };
    format!(
        "WITH RECURSIVE pub AS (SELECT * FROM pg_publication WHERE pubname = {name}), \
         up(leaf, relation) AS ( \
            SELECT c.oid, c.oid FROM pg_class c WHERE c.relkind IN ('r', 'p') \
               AND c.relpersistence = 'p' AND c.oid >= {FIRST_NORMAL_OBJECT}{seed} \
            UNION ALL \
            SELECT up.leaf, i.inhparent FROM up \
               JOIN pg_class c ON c.oid = up.relation AND c.relispartition \
               JOIN pg_inherits i ON i.inhrelid = up.relation), \
         member AS ( \
            SELECT up.leaf, up.relation, r.oid AS relation_row, {schema_row} AS schema_row \
            FROM up CROSS JOIN pub JOIN pg_class k ON k.oid = up.relation \
            LEFT JOIN pg_publication_rel r ON r.prpubid = pub.oid AND r.prrelid = up.relation \
            {schemas} \
            WHERE pub.puballtables OR r.oid IS NOT NULL OR {schema_row} IS NOT NULL), \
         listed AS ( \
            SELECT m.leaf AS oid, coalesce( \
               min(relation_row) FILTER (WHERE m.leaf = m.relation), min(relation_row), \
               min(schema_row) FILTER (WHERE m.leaf = m.relation), min(schema_row), 0) AS membership \
            FROM member m CROSS JOIN pub JOIN pg_class c ON c.oid = m.leaf \
            WHERE CASE WHEN pub.pubviaroot THEN m.leaf = m.relation AND NOT EXISTS ( \
                  SELECT FROM member above WHERE above.leaf = m.leaf AND above.relation <> m.leaf) \
               ELSE c.relkind = 'r' END \
            GROUP BY m.leaf) ",
        name = literal(publication),
    )
}

/// One consistent listing (T-01); `None` if there is no such publication.
pub(crate) async fn list_publication(
    session: &mut Session,
    publication: &str,
) -> Result<Option<Listing>, SourceError> {
    const ACTIONS: [&str; 4] = ["insert", "update", "delete", "truncate"];
    let during = format!("listing publication {publication}");
    // The position is a volatile call: it is evaluated after the snapshot was taken.
    let sql = format!(
        "{} SELECT pub.oid, pubinsert, pubupdate, pubdelete, pubtruncate, \
         pg_current_wal_insert_lsn(), t.oid, t.nspname, t.relname, t.membership \
         FROM pub LEFT JOIN (SELECT c.oid, s.nspname, c.relname, l.membership FROM listed l \
            JOIN pg_class c ON c.oid = l.oid JOIN pg_namespace s ON s.oid = c.relnamespace) AS t \
         ON true ORDER BY t.oid",
        published(session.version(), publication, None),
    );
    let rows = session.query(&during, &sql).await?;
    let Some(first) = rows.first() else { return Ok(None) };
    let mut missing_actions = Vec::new();
    for (action, column) in ACTIONS.into_iter().zip(1..) {
        if !first.flag(column)? {
            missing_actions.push(action);
        }
    }
    let mut tables = Vec::with_capacity(rows.len());
    for row in rows.iter().filter(|row| row.text(6).is_some()) {
        tables.push(ListedTable {
            table: TableId(row.value(6)?),
            namespace: row.required(7)?.to_owned(),
            name: row.required(8)?.to_owned(),
            membership: row.value(9)?,
        });
    }
    Ok(Some(Listing {
        publication: first.value(0)?,
        missing_actions,
        tables,
        position: Position(first.value(5)?),
    }))
}

/// How a publication shows one table, in the snapshot of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    /// Row filter as SQL.
    pub(crate) filter: Option<String>,
    /// Attribute numbers of the column list.
    pub(crate) columns: Option<Vec<i16>>,
    /// Whether stored generated columns are sent without being in a column list (18).
    pub(crate) generated: bool,
}

/// How `publication` shows `table`; `None` if it does not.
pub(crate) async fn membership(
    session: &mut Session,
    publication: &str,
    table: TableId,
) -> Result<Option<Membership>, SourceError> {
    let during = format!("looking for table {table} in publication {publication}");
    let version = session.version();
    // Filters and lists of a table count only if neither all tables nor its schema is published.
    let details = if version >= 150_000 {
        "LEFT JOIN pg_publication_rel r ON r.prpubid = pub.oid AND r.prrelid = l.oid \
            AND NOT pub.puballtables AND NOT EXISTS (SELECT FROM pg_publication_namespace n \
               JOIN pg_class c ON c.relnamespace = n.pnnspid \
               WHERE n.pnpubid = pub.oid AND c.oid = l.oid)"
    } else {
        ""
    };
    let columns = if version >= 150_000 {
        "pg_get_expr(r.prqual, r.prrelid), r.prattrs"
    } else {
        "NULL, NULL"
    };
    let generated = if version >= 180_000 { "pub.pubgencols = 's'" } else { "false" };
    let sql = format!(
        "{} SELECT {columns}, {generated} FROM listed l CROSS JOIN pub {details}",
        published(version, publication, Some(table)),
    );
    let rows = session.query(&during, &sql).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let list = |text: &str| text.split_ascii_whitespace().map(str::parse).collect();
    let columns: Option<Vec<i16>> = row.text(1).map(list).transpose().map_err(|_| {
        SourceError::unexpected(&during, "a column list that is not one of numbers")
    })?;
    Ok(Some(Membership {
        filter: row.text(0).map(str::to_owned),
        columns,
        generated: row.flag(2)?,
    }))
}

/// For callers outside: the same kinds everywhere.
pub(crate) fn fault<T>(result: Result<T, SourceError>) -> Result<T, Fault> {
    result.map_err(Fault::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    // PG-38
    #[test]
    fn a_history_is_read_line_by_line() {
        let at = |lsn| Position(Lsn(lsn));
        let text =
            "1\t0/3000000\tno recovery target specified\n\n# by hand\n  2\tA/B0 \tbefore 2\n";
        let found = switches(text).unwrap();
        let expected = [
            TimelineSwitch { parent: 1, at: at(0x300_0000) },
            TimelineSwitch { parent: 2, at: at(0xA_0000_00B0) },
        ];
        assert_eq!(found, expected);
        assert_eq!(switches(""), Some(Vec::new()));
        for text in ["x\t0/1\t", "1", "1\t0/1/2\t"] {
            assert_eq!(switches(text), None, "{text:?}");
        }
    }
}
