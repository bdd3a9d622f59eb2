//! Creating, dropping and waiting for slots.
//!
//! Owns the commands. Must never know why a slot is wanted or whose it is.

use std::time::Duration;

use walferry_core::lsn::Position;
use walferry_core::source::{Blocker, CreatedSlot};

use crate::error::SourceError;
use crate::message::Row;
use crate::session::Session;
use crate::sql::{ident, literal};

const PLUGIN: &str = "pgoutput";

/// Creates a persistent logical slot without a snapshot (M-04). Servers before 15 do not know the
/// list of options, those before 17 not the property.
pub(crate) async fn create(
    session: &mut Session,
    slot: &str,
    failover: bool,
) -> Result<CreatedSlot, SourceError> {
    let options =
        if failover { "(SNAPSHOT 'nothing', FAILOVER true)" } else { "NOEXPORT_SNAPSHOT" };
    let command = format!("CREATE_REPLICATION_SLOT {} LOGICAL {PLUGIN} {options}", ident(slot));
    let (created, _) = run(session, slot, &command).await?;
    Ok(created)
}

/// Creates a slot and exports its snapshot, whose name is the second value. The slot is temporary,
/// or with `failover` a persistent one (PG-32). The session must do nothing else until the snapshot
/// is imported (PG-26).
pub(crate) async fn create_with_snapshot(
    session: &mut Session,
    slot: &str,
    failover: bool,
) -> Result<(CreatedSlot, String), SourceError> {
    let slot_name = ident(slot);
    let command = if failover {
        format!(
            "CREATE_REPLICATION_SLOT {slot_name} LOGICAL {PLUGIN} \
             (SNAPSHOT 'export', FAILOVER true)"
        )
    } else {
        format!("CREATE_REPLICATION_SLOT {slot_name} TEMPORARY LOGICAL {PLUGIN} EXPORT_SNAPSHOT")
    };
    let (created, row) = run(session, slot, &command).await?;
    Ok((created, row.required(2)?.to_owned()))
}

async fn run(
    session: &mut Session,
    slot: &str,
    command: &str,
) -> Result<(CreatedSlot, Row), SourceError> {
    let during = format!("creating slot {slot}");
    let rows = session.query(&during, command).await?;
    let row = rows.into_iter().next().ok_or_else(|| SourceError::unexpected(&during, "no row"))?;
    let created = CreatedSlot {
        slot: row.required(0)?.to_owned(),
        plugin: row.required(3)?.to_owned(),
        consistent: Position(row.value(1)?),
    };
    Ok((created, row))
}

/// Gives a slot the failover property (M-09, PG-33).
pub(crate) async fn enable_failover(session: &mut Session, slot: &str) -> Result<(), SourceError> {
    let command = format!("ALTER_REPLICATION_SLOT {} (FAILOVER true)", ident(slot));
    session.query(&format!("altering slot {slot}"), &command).await.map(drop)
}

/// Drops a slot. An absent one is success; an active one is the server's error 55006.
pub(crate) async fn drop_slot(session: &mut Session, slot: &str) -> Result<(), SourceError> {
    const ABSENT: &str = "42704";
    let command = format!("DROP_REPLICATION_SLOT {}", ident(slot));
    match session.query(&format!("dropping slot {slot}"), &command).await {
        Ok(_) => Ok(()),
        Err(SourceError::Server { error, .. }) if error.code == ABSENT => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whom the session waits for that creates `slot` (M-06, PG-30).
pub(crate) async fn blockers(
    session: &mut Session,
    slot: &str,
) -> Result<Vec<Blocker>, SourceError> {
    let sql = format!(
        "SELECT b.pid, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 \
         FROM pg_replication_slots s, unnest(pg_blocking_pids(s.active_pid)) AS b(pid) \
         LEFT JOIN pg_stat_activity a ON a.pid = b.pid WHERE s.slot_name = {} ORDER BY 1",
        literal(slot)
    );
    let rows = session.query(&format!("looking for blockers of slot {slot}"), &sql).await?;
    rows.iter()
        .map(|row| {
            let age: Option<f64> = row.optional(1)?;
            let age = age.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            Ok(Blocker { pid: row.value(0)?, age })
        })
        .collect()
}
