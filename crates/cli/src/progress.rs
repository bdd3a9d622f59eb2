//! What a run has done so far, and the texts that say so.
//!
//! Pure: the lines for bars, for the log, and for each notice of the core.

use core::time::Duration;
use std::collections::BTreeMap;

use tracing::Level;
use walferry_core::fault::Origin;
use walferry_core::ids::TableId;
use walferry_core::lsn::{Lsn, Position};
use walferry_core::notice::Notice;

use crate::units::{self, Rate};

/// A picture of the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// The word of the lifecycle.
    pub(crate) lifecycle: &'static str,
    pub(crate) tables: Vec<TableProgress>,
    /// Changes read since the start.
    pub(crate) changes: u64,
    /// Everything below is durable and saved.
    pub(crate) checkpoint: Option<Position>,
    /// End of the server's WAL as last heard.
    pub(crate) wal_end: Option<Lsn>,
}

/// One table of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableProgress {
    pub(crate) table: TableId,
    pub(crate) name: String,
    /// The word of its phase.
    pub(crate) phase: &'static str,
    /// Its running attempt.
    pub(crate) copy: Option<CopyProgress>,
}

/// A running attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyProgress {
    /// The word of what it does.
    pub(crate) step: &'static str,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// Size of the table at the source, 0 until it is known.
    pub(crate) heap_bytes: u64,
}

/// Rates, from one picture to the next.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    changes: Rate,
    tables: BTreeMap<TableId, (Rate, Rate)>,
}

/// One line of the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) level: Level,
    pub(crate) text: String,
    pub(crate) table: Option<String>,
    pub(crate) lsn: Option<Lsn>,
    pub(crate) slot: Option<String>,
}

impl Snapshot {
    /// Bytes of WAL that are not yet durable at the destination.
    pub(crate) fn lag(&self) -> Option<u64> {
        Some(self.wal_end?.bytes_past(self.checkpoint?.0))
    }

    /// Tables with a running attempt.
    pub(crate) fn copying(&self) -> impl Iterator<Item = (&TableProgress, CopyProgress)> {
        self.tables.iter().filter_map(|table| Some((table, table.copy?)))
    }
}

impl Rates {
    /// Takes in a picture, `elapsed` after the last one.
    pub(crate) fn read(&mut self, now: &Snapshot, elapsed: Duration) {
        self.changes.read(now.changes, elapsed);
        self.tables.retain(|table, _| now.copying().any(|(entry, _)| entry.table == *table));
        for (entry, copy) in now.copying() {
            let (rows, bytes) = self.tables.entry(entry.table).or_default();
            rows.read(copy.rows, elapsed);
            bytes.read(copy.bytes, elapsed);
        }
    }

    /// `public.orders  reading  1,234,567 rows  1.5 GiB of a 2.0 GiB heap  310,000 rows/s  60.0 MiB/s`.
    pub(crate) fn table_line(&self, entry: &TableProgress, copy: CopyProgress) -> String {
        let mut text = format!(
            "{}  {}  {} rows  {}",
            entry.name,
            copy.step,
            units::count(copy.rows),
            units::bytes(copy.bytes)
        );
        if copy.heap_bytes > 0 {
            text.push_str(&format!(" of a {} heap", units::bytes(copy.heap_bytes)));
        }
        if let Some((rows, bytes)) =
            self.tables.get(&entry.table).filter(|_| copy.step == "reading")
        {
            let (rows, bytes) = (units::count(rows.per_second()), units::bytes(bytes.per_second()));
            text.push_str(&format!("  {rows} rows/s  {bytes}/s"));
        }
        text
    }

    /// `3 of 5 tables stream  1,200 changes/s  lag 1.5 MiB`.
    pub(crate) fn stream_line(&self, now: &Snapshot) -> String {
        // From its handover on a table lives on the main stream, whether or not that has reached it.
        let streaming = count(now, "catchup") + count(now, "ready");
        let all = now.tables.len();
        let mut text = format!(
            "{}: {streaming} of {all} tables stream  {} changes/s",
            now.lifecycle,
            units::count(self.changes.per_second())
        );
        if let Some(lag) = now.lag() {
            text.push_str(&format!("  lag {}", units::bytes(lag)));
        }
        let errored = count(now, "errored");
        if errored > 0 {
            text.push_str(&format!("  {errored} errored"));
        }
        text
    }

    /// The summary that is logged now and then where there are no bars.
    pub(crate) fn summary(&self, now: &Snapshot) -> Line {
        let copying: Vec<_> =
            now.copying().map(|(entry, copy)| self.table_line(entry, copy)).collect();
        let mut text = self.stream_line(now);
        if !copying.is_empty() {
            text.push_str(&format!("; copying {}", copying.join(", ")));
        }
        Line { lsn: now.checkpoint.map(|position| position.0), ..Line::info(text) }
    }
}

fn count(now: &Snapshot, phase: &str) -> usize {
    now.tables.iter().filter(|table| table.phase == phase).count()
}

impl Line {
    fn info(text: impl Into<String>) -> Self {
        Self { level: Level::INFO, text: text.into(), table: None, lsn: None, slot: None }
    }

    fn warn(text: impl Into<String>) -> Self {
        Self { level: Level::WARN, ..Self::info(text) }
    }

    fn at(self, position: Position) -> Self {
        Self { lsn: Some(position.0), ..self }
    }

    fn of_slot(self, slot: &str) -> Self {
        Self { slot: Some(slot.to_owned()), ..self }
    }

    fn of_table(self, table: String) -> Self {
        Self { table: Some(table), ..self }
    }
}

/// What a notice says to people; `None` for those that only feed the picture. `name` names a table.
#[expect(clippy::too_many_lines, reason = "one arm for each notice")]
pub(crate) fn line(notice: &Notice, name: &dyn Fn(TableId) -> String) -> Option<Line> {
    let of_table = |table: TableId, line: Line| Some(line.of_table(name(table)));
    match notice {
        Notice::SourceIdentified { version, timeline } => Some(Line::info(format!(
            "connected to PostgreSQL {}.{}, timeline {timeline}",
            version / 10_000,
            version % 10_000
        ))),
        Notice::CopySlotAtRisk { settings } => Some(Line::warn(format!(
            "the server may end the slot of a long copy: {}",
            settings.join(", ")
        ))),
        Notice::ActionsMissing { actions } => Some(Line::warn(format!(
            "the publication leaves out {}: the destination will differ",
            actions.join(", ")
        ))),
        Notice::SlotCreationWaits { slot, blockers } => {
            let who: Vec<_> = blockers
                .iter()
                .map(|blocker| match blocker.age {
                    Some(age) => format!("pid {} ({})", blocker.pid, units::time(age)),
                    None => format!("pid {}", blocker.pid),
                })
                .collect();
            let text = format!("slot creation waits for running transactions: {}", who.join(", "));
            Some(Line::warn(text).of_slot(slot))
        }
        Notice::SlotBusy { slot, holder } => Some(
            Line::warn(format!(
                "the slot is in use by pid {} {:?}",
                holder.pid, holder.application
            ))
            .of_slot(slot),
        ),
        Notice::MainSlotCreated { slot, initial } => {
            Some(Line::info("replication slot created").of_slot(slot).at(*initial))
        }
        Notice::ForeignSlotLeft { slot } => {
            Some(Line::warn("a slot that looks like ours is not, and was left alone").of_slot(slot))
        }
        Notice::Streaming { epoch, from } => {
            Some(Line::info(format!("streaming, run {epoch} of this state")).at(*from))
        }
        Notice::TableAdded { name, .. } => Some(Line::info("table found").of_table(name.clone())),
        Notice::TableGone { name: gone, .. } => {
            Some(Line::warn("table has left the publication").of_table(gone.clone()))
        }
        Notice::MembershipChanged { table } => of_table(
            *table,
            Line::warn("table left the publication and came back: it is copied again"),
        ),
        Notice::CopyStarted { table, attempt } => {
            of_table(*table, Line::info(format!("copy started, attempt {attempt}")))
        }
        Notice::CopyRowsDone { table, rows, cutoff, .. } => {
            of_table(*table, Line::info(format!("{} rows copied", units::count(*rows))).at(*cutoff))
        }
        Notice::RewriteGuard { table, repeats } => of_table(
            *table,
            Line::warn(format!("table was rewritten during its copy, copied again ({repeats})")),
        ),
        Notice::HandedOver { table, handover, ready, .. } => {
            let text = if *ready { "table streams" } else { "table catches up" };
            of_table(*table, Line::info(text).at(*handover))
        }
        Notice::TableReady { table } => of_table(*table, Line::info("table streams")),
        Notice::TableErrored { table, reason, retry_in: Some(delay), .. } => {
            let delay = units::time(*delay);
            let text = format!("table failed, it is tried again in {delay}: {reason}");
            of_table(*table, Line::warn(text))
        }
        Notice::TableErrored { table, reason, retry_in: None, .. } => of_table(
            *table,
            Line { level: Level::ERROR, ..Line::info(format!("table stopped: {reason}")) },
        ),
        Notice::DiedCopying { table, deaths } => of_table(
            *table,
            Line::warn(format!("an earlier run died while it copied this table ({deaths})")),
        ),
        Notice::Monitored(_) | Notice::Copying { .. } | Notice::HeartbeatSeen { .. } => None,
        Notice::MainRetry { origin, failures, retry_in, fault } => {
            let who = match origin {
                Origin::Source => "source",
                Origin::Destination => "destination",
                Origin::Store => "state",
                Origin::Core => "run",
            };
            let delay = units::time(*retry_in);
            let text = format!("{who} failed ({failures}), tried again in {delay}: {fault}");
            Some(Line::warn(text))
        }
        Notice::Reopened { from } => Some(Line::info("streaming again").at(*from)),
        Notice::Quarantined { table } => of_table(
            *table,
            Line::warn(
                "table was set aside: the destination refuses its changes, the others go on",
            ),
        ),
        Notice::FenceClosed { .. } | Notice::FenceOpened { .. } => None,
        Notice::NotConverging { table, behind } => of_table(
            *table,
            Line::warn(format!(
                "replay has not come closer to the stream for 10 minutes, {} behind",
                units::bytes(*behind)
            )),
        ),
        Notice::TombstoneSkipped { table, changes } => of_table(
            *table,
            Line::info(format!(
                "{} changes of a table that is gone skipped",
                units::count(*changes)
            )),
        ),
        Notice::AdoptGap { table, from, to } => {
            let text = match from {
                Some(from) => format!("changes from {from} to {to} are left out"),
                None => format!("changes before {to} that its rows lack are left out"),
            };
            of_table(*table, Line::warn(format!("table adopted as it is: {text}")).at(*to))
        }
        Notice::SlotLost { kind } => Some(Line::warn(kind.to_string())),
        Notice::Recreating { slot } => {
            let text = "creating the slot again, every table is copied anew";
            Some(Line::warn(text).of_slot(slot))
        }
        Notice::Promoted { from, to, fork, checkpoint } => Some(
            Line::warn(format!(
                "the source was promoted from timeline {from} to {to} at {fork}, streaming goes on"
            ))
            .at(*checkpoint),
        ),
        Notice::FailoverEnabled { slot } => {
            Some(Line::info("the slot is copied to standbys").of_slot(slot))
        }
        Notice::SchemaChanged { table, position, shape } => of_table(
            *table,
            Line::info(format!("schema changed to {shape} in transaction {}", position.commit)),
        ),
        Notice::SilentRewrite { table, column } => of_table(
            *table,
            Line::warn(format!(
                "ALTER TABLE may have changed {column} of existing rows, which no event tells"
            )),
        ),
        Notice::IdentityLost { table } => of_table(
            *table,
            Line::warn("table has no replica identity any more: updates and deletes are refused"),
        ),
        Notice::DdlIgnored { reason } => {
            Some(Line::warn(format!("a schema message was ignored: {reason}")))
        }
        Notice::Held { at } => Some(Line::info("held for a comparison").at(*at)),
        Notice::Advanced { to } => Some(Line::info("both sides show the same").at(*to)),
        Notice::Released { expired: false } => Some(Line::info("the hold is over")),
        Notice::Released { expired: true } => {
            Some(Line::warn("the hold took too long and was ended"))
        }
        Notice::RequestRefused { reason, .. } => {
            Some(Line::warn(format!("a request was refused: {reason}")))
        }
        Notice::Stalled { cause } => {
            Some(Line { level: Level::ERROR, ..Line::info(format!("nothing moves: {cause}")) })
        }
        Notice::Unstalled => Some(Line::info("the run moves again")),
        Notice::SideTaskFailed { task, fault } => {
            Some(Line::warn(format!("{task} failed: {fault}")))
        }
        Notice::UntilTarget { target } => {
            Some(Line::info("nothing is left to copy, the run ends at this position").at(*target))
        }
        Notice::Stopping { budget } => {
            Some(Line::info(format!("stopping, within {}", units::time(*budget))))
        }
    }
}

#[cfg(test)]
mod tests {
    use walferry_core::ids::Attempt;

    use super::*;

    fn snapshot() -> Snapshot {
        let table = |oid, phase, rows| TableProgress {
            table: TableId(oid),
            name: format!("public.t{oid}"),
            phase,
            copy: (phase == "copying").then_some(CopyProgress {
                step: "reading",
                rows,
                bytes: rows * 1_024,
                heap_bytes: 4 << 20,
            }),
        };
        Snapshot {
            lifecycle: "running",
            tables: vec![table(1, "ready", 0), table(2, "copying", 3_000), table(3, "errored", 0)],
            changes: 2_000,
            checkpoint: Some(Position(Lsn(0x100))),
            wal_end: Some(Lsn(0x1100)),
        }
    }

    #[test]
    fn lines_show_rows_rates_and_lag() {
        let now = snapshot();
        let mut rates = Rates::default();
        for _ in 0..2 {
            rates.read(&now, Duration::from_secs(2));
        }
        let summary = rates.summary(&now);
        assert_eq!(
            summary.text,
            "running: 1 of 3 tables stream  250 changes/s  lag 4.0 KiB  1 errored; \
             copying public.t2  reading  3,000 rows  2.9 MiB of a 4.0 MiB heap  375 rows/s  375.0 KiB/s"
        );
        assert_eq!(summary.lsn, Some(Lsn(0x100)));
    }

    #[test]
    fn a_notice_names_its_table_and_position() {
        let notice = Notice::CopyRowsDone {
            table: TableId(2),
            attempt: Attempt(1),
            rows: 1_234,
            cutoff: Position(Lsn(0x20)),
        };
        let line = line(&notice, &|table| format!("public.t{table}")).unwrap();
        assert_eq!(line.text, "1,234 rows copied");
        assert_eq!(line.table.as_deref(), Some("public.t2"));
        assert_eq!(line.lsn, Some(Lsn(0x20)));
    }
}
