//! The status as data, as text and as JSON. Pure.

use serde::Serialize;
use walferry_core::ids::TableId;
use walferry_core::lsn::{Lsn, Position};
use walferry_core::record::{Phase, Policy, Record, TableEntry};
use walferry_core::source::MonitorFacts;

use crate::error::one_line;
use crate::units;

/// What there is to say about a pipeline.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    state: String,
    healthy: bool,
    /// What somebody has to look at.
    findings: Vec<String>,
    pipeline: Option<Pipeline>,
    slot: Option<Slot>,
    tables: Vec<Table>,
}

#[derive(Debug, Serialize)]
struct Pipeline {
    system_id: String,
    timeline: u32,
    database: String,
    publication: String,
    slot: String,
    destination: String,
    epoch: u64,
    initial_lsn: Option<Position>,
    checkpoint: Option<Position>,
    recreating: bool,
}

#[derive(Debug, Serialize)]
struct Slot {
    exists: bool,
    active_pid: Option<i32>,
    wal_status: Option<String>,
    invalidation_reason: Option<String>,
    restart_lsn: Option<Lsn>,
    confirmed_flush_lsn: Option<Lsn>,
    wal_end: Lsn,
    /// WAL past the checkpoint.
    lag_bytes: Option<u64>,
    /// WAL that the server keeps for the slot.
    retained_bytes: Option<u64>,
    safe_wal_size: Option<i64>,
}

#[derive(Debug, Serialize)]
struct Table {
    oid: TableId,
    name: String,
    phase: &'static str,
    handover: Option<Position>,
    attempt: Option<u64>,
    tries: u32,
    deaths: u32,
    policy: Option<&'static str>,
    error: Option<String>,
}

impl Report {
    pub(crate) fn new(state: &str, record: Option<&Record>, seen: Option<&MonitorFacts>) -> Self {
        let pipeline = record.map(Pipeline::new);
        let slot = seen.map(|facts| Slot::new(facts, record.and_then(|record| record.checkpoint)));
        let tables: Vec<_> = record
            .iter()
            .flat_map(|record| record.tables.iter())
            .map(|(oid, entry)| Table::new(*oid, entry))
            .collect();
        let mut findings = Vec::new();
        if pipeline.is_none() {
            findings.push(format!(
                "there is no state at {state}: this pipeline has not run, or its state lies elsewhere"
            ));
        }
        findings.extend(slot.as_ref().and_then(Slot::finding));
        findings.extend(tables.iter().filter_map(Table::finding));
        let healthy = findings.is_empty();
        Self { state: state.to_owned(), healthy, findings, pipeline, slot, tables }
    }

    /// Whether nobody has to act.
    pub(crate) const fn is_healthy(&self) -> bool {
        self.healthy
    }

    pub(crate) fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        format!("{}\n", text.unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}")))
    }

    pub(crate) fn text(&self) -> String {
        let mut lines = vec![field("state", &self.state)];
        if let Some(pipeline) = &self.pipeline {
            lines.extend(pipeline.lines());
        }
        if let Some(slot) = &self.slot {
            lines.push(field("slot health", &slot.text()));
        }
        if self.pipeline.is_some() {
            lines.push(field("tables", &self.count_by_phase()));
        }
        lines.push(String::new());
        if !self.tables.is_empty() {
            lines.extend(columns(&self.tables));
            lines.push(String::new());
        }
        if self.healthy {
            lines.push("healthy".to_owned());
        } else {
            lines.push("somebody has to act:".to_owned());
            lines.extend(self.findings.iter().map(|finding| format!("  {finding}")));
        }
        lines.join("\n") + "\n"
    }

    fn count_by_phase(&self) -> String {
        let counts = ["pending", "copying", "catchup", "ready", "errored"]
            .map(|phase| (self.tables.iter().filter(|table| table.phase == phase).count(), phase));
        let parts: Vec<_> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, phase)| format!("{count} {phase}"))
            .collect();
        if parts.is_empty() { "none yet".to_owned() } else { parts.join(", ") }
    }
}

impl Pipeline {
    fn new(record: &Record) -> Self {
        let identity = &record.identity;
        Self {
            system_id: identity.system_id.clone(),
            timeline: identity.timeline,
            database: identity.database.clone(),
            publication: identity.publication.clone(),
            slot: identity.slot.clone(),
            destination: record.destination_id.clone(),
            epoch: record.epoch.0,
            initial_lsn: record.initial_lsn,
            checkpoint: record.checkpoint,
            recreating: record.recreate,
        }
    }

    fn lines(&self) -> Vec<String> {
        let source = format!(
            "database {}, publication {}, system {}, timeline {}",
            self.database, self.publication, self.system_id, self.timeline
        );
        let checkpoint = match self.checkpoint {
            Some(checkpoint) => format!("{checkpoint} (run {})", self.epoch),
            None => "none: the slot was not created yet".to_owned(),
        };
        let mut lines = vec![
            field("source", &source),
            field("slot", &self.slot),
            field("destination", &self.destination),
            field("checkpoint", &checkpoint),
        ];
        if self.recreating {
            lines.push(field("slot loss", "the slot is being created anew"));
        }
        lines
    }
}

impl Slot {
    fn new(facts: &MonitorFacts, checkpoint: Option<Position>) -> Self {
        let slot = facts.slot.as_ref();
        let wal_end = facts.wal_end;
        let restart_lsn = slot.and_then(|slot| slot.restart_lsn);
        Self {
            exists: slot.is_some(),
            active_pid: slot.and_then(|slot| slot.active.as_ref()).map(|holder| holder.pid),
            wal_status: slot.and_then(|slot| slot.wal_status.clone()),
            invalidation_reason: slot.and_then(|slot| slot.invalidation_reason.clone()),
            restart_lsn,
            confirmed_flush_lsn: slot.and_then(|slot| slot.confirmed_flush_lsn),
            wal_end,
            lag_bytes: checkpoint.map(|position| wal_end.bytes_past(position.0)),
            retained_bytes: restart_lsn.map(|restart| wal_end.bytes_past(restart)),
            safe_wal_size: slot.and_then(|slot| slot.safe_wal_size),
        }
    }

    fn is_lost(&self) -> bool {
        self.invalidation_reason.is_some() || self.wal_status.as_deref() == Some("lost")
    }

    fn finding(&self) -> Option<String> {
        if !self.exists {
            return Some(
                "the replication slot does not exist: changes since the checkpoint may be lost"
                    .to_owned(),
            );
        }
        let reason = self.invalidation_reason.as_deref().unwrap_or("WAL removed");
        self.is_lost().then(|| format!("the replication slot was invalidated: {reason}"))
    }

    fn text(&self) -> String {
        if !self.exists {
            return "missing".to_owned();
        }
        let mut parts = vec![match self.active_pid {
            Some(pid) => format!("active (pid {pid})"),
            None => "not active".to_owned(),
        }];
        parts.extend(self.wal_status.clone());
        parts.extend(self.confirmed_flush_lsn.map(|lsn| format!("confirmed {lsn}")));
        parts.extend(self.lag_bytes.map(|lag| format!("lag {}", units::bytes(lag))));
        parts
            .extend(self.retained_bytes.map(|kept| format!("keeps {} of WAL", units::bytes(kept))));
        parts.join(", ")
    }
}

impl Table {
    fn new(oid: TableId, entry: &TableEntry) -> Self {
        let (policy, error) = match &entry.phase {
            Phase::Errored { reason, policy } => (
                Some(match policy {
                    Policy::None => "none",
                    Policy::Manual => "manual",
                    Policy::Timed => "timed",
                }),
                Some(reason.clone()),
            ),
            Phase::Pending | Phase::Copying | Phase::Catchup { .. } | Phase::Ready { .. } => {
                (None, None)
            }
        };
        Self {
            oid,
            name: entry.name.clone(),
            phase: entry.phase.word(),
            handover: entry.phase.handover(),
            attempt: entry.attempt.map(|attempt| attempt.0),
            tries: entry.tries,
            deaths: entry.deaths,
            policy,
            error,
        }
    }

    /// A table that a timer brings back needs nobody.
    fn finding(&self) -> Option<String> {
        let stopped = matches!(self.policy, Some("manual" | "none"));
        stopped.then(|| {
            format!(
                "table {} stopped: {}",
                self.name,
                one_line(self.error.as_deref().unwrap_or(""))
            )
        })
    }

    fn cells(&self) -> [String; 5] {
        let phase = match self.policy {
            Some(policy) => format!("{} ({policy})", self.phase),
            None => self.phase.to_owned(),
        };
        let dash = || "-".to_owned();
        [
            one_line(&self.name),
            phase,
            self.handover.map_or_else(dash, |position| position.to_string()),
            self.attempt.map_or_else(dash, |_| format!("{}/{}", self.tries, self.deaths)),
            self.error.as_deref().map(one_line).unwrap_or_default(),
        ]
    }
}

fn field(name: &str, value: &str) -> String {
    format!("{name:<12} {}", one_line(value))
}

fn columns(tables: &[Table]) -> Vec<String> {
    let head = ["TABLE", "PHASE", "HANDOVER", "TRIES/DEATHS", "ERROR"].map(str::to_owned);
    let rows: Vec<_> = core::iter::once(head).chain(tables.iter().map(Table::cells)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 5] = core::array::from_fn(|column| width(column).unwrap_or(0));
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use walferry_core::ids::{Attempt, Epoch};
    use walferry_core::record::{FORMAT, Identity, Stamp};
    use walferry_core::source::{SlotFacts, SlotHolder};

    use super::*;

    fn record(phases: Vec<Phase>) -> Record {
        let tables = phases.into_iter().zip(1..).map(|(phase, oid)| {
            let stamp = Stamp { publication: 1, membership: oid };
            let mut entry = TableEntry::pending(format!("public.t{oid}"), stamp, Some(Attempt(1)));
            entry.phase = phase;
            (TableId(oid), Arc::new(entry))
        });
        Record {
            format: FORMAT,
            epoch: Epoch(3),
            identity: Identity {
                system_id: "73".to_owned(),
                timeline: 1,
                database: "shop".to_owned(),
                slot: format!("walferry_{}", "a".repeat(24)),
                publication: "app".to_owned(),
            },
            slot_prefix: "walferry".to_owned(),
            destination_id: "null:".to_owned(),
            initial_lsn: Some(Position(Lsn(0x10))),
            checkpoint: Some(Position(Lsn(0x100))),
            write_horizon: None,
            recreate: false,
            attempt_seq: 3,
            tables: Arc::new(tables.collect::<BTreeMap<_, _>>()),
            tombstones: Arc::default(),
        }
    }

    fn facts(wal_status: &str) -> MonitorFacts {
        MonitorFacts {
            wal_end: Lsn(0x1100),
            slot: Some(SlotFacts {
                name: "s".to_owned(),
                plugin: "pgoutput".to_owned(),
                database: "shop".to_owned(),
                logical: true,
                temporary: false,
                active: Some(SlotHolder { pid: 42, application: "walferry".to_owned() }),
                restart_lsn: Some(Lsn(0x80)),
                confirmed_flush_lsn: Some(Lsn(0x100)),
                wal_status: Some(wal_status.to_owned()),
                safe_wal_size: None,
                failover: false,
                invalidation_reason: None,
            }),
        }
    }

    #[test]
    fn a_running_pipeline_reads_at_a_glance() {
        let ready = Phase::Ready { handover: Position(Lsn(0x20)) };
        let timed = Phase::errored("the connection failed", Policy::Timed);
        let record = record(vec![ready, Phase::Pending, timed]);
        let report = Report::new("file:x", Some(&record), Some(&facts("reserved")));
        assert!(report.is_healthy());
        insta::assert_snapshot!(report.text(), @r"
        state        file:x
        source       database shop, publication app, system 73, timeline 1
        slot         walferry_aaaaaaaaaaaaaaaaaaaaaaaa
        destination  null:
        checkpoint   0/100 (run 3)
        slot health  active (pid 42), reserved, confirmed 0/100, lag 4.0 KiB, keeps 4.1 KiB of WAL
        tables       1 pending, 1 ready, 1 errored

        TABLE      PHASE            HANDOVER  TRIES/DEATHS  ERROR
        public.t1  ready            0/20      0/0
        public.t2  pending          -         0/0
        public.t3  errored (timed)  -         0/0           the connection failed

        healthy
        ");
    }

    #[test]
    fn what_somebody_has_to_do_comes_last() {
        let manual = Phase::errored("a value\ncannot be written", Policy::Manual);
        let record = record(vec![manual]);
        let report = Report::new("file:x", Some(&record), Some(&facts("lost")));
        assert!(!report.is_healthy());
        insta::assert_snapshot!(report.text(), @r"
        state        file:x
        source       database shop, publication app, system 73, timeline 1
        slot         walferry_aaaaaaaaaaaaaaaaaaaaaaaa
        destination  null:
        checkpoint   0/100 (run 3)
        slot health  active (pid 42), lost, confirmed 0/100, lag 4.0 KiB, keeps 4.1 KiB of WAL
        tables       1 errored

        TABLE      PHASE             HANDOVER  TRIES/DEATHS  ERROR
        public.t1  errored (manual)  -         0/0           a value cannot be written

        somebody has to act:
          the replication slot was invalidated: WAL removed
          table public.t1 stopped: a value cannot be written
        ");
        insta::assert_snapshot!(report.json(), @r#"
        {
          "state": "file:x",
          "healthy": false,
          "findings": [
            "the replication slot was invalidated: WAL removed",
            "table public.t1 stopped: a value cannot be written"
          ],
          "pipeline": {
            "system_id": "73",
            "timeline": 1,
            "database": "shop",
            "publication": "app",
            "slot": "walferry_aaaaaaaaaaaaaaaaaaaaaaaa",
            "destination": "null:",
            "epoch": 3,
            "initial_lsn": "0/10",
            "checkpoint": "0/100",
            "recreating": false
          },
          "slot": {
            "exists": true,
            "active_pid": 42,
            "wal_status": "lost",
            "invalidation_reason": null,
            "restart_lsn": "0/80",
            "confirmed_flush_lsn": "0/100",
            "wal_end": "0/1100",
            "lag_bytes": 4096,
            "retained_bytes": 4224,
            "safe_wal_size": null
          },
          "tables": [
            {
              "oid": 1,
              "name": "public.t1",
              "phase": "errored",
              "handover": null,
              "attempt": 1,
              "tries": 0,
              "deaths": 0,
              "policy": "manual",
              "error": "a value\ncannot be written"
            }
          ]
        }
        "#);
    }

    #[test]
    fn a_missing_slot_or_state_is_said() {
        let gone = MonitorFacts { wal_end: Lsn(1), slot: None };
        let report = Report::new("file:x", Some(&record(Vec::new())), Some(&gone));
        assert!(report.text().contains("slot health  missing"), "{}", report.text());
        assert!(!report.is_healthy());
        let report = Report::new("file:x", None, None);
        assert!(!report.is_healthy());
        insta::assert_snapshot!(report.text(), @r"
        state        file:x

        somebody has to act:
          there is no state at file:x: this pipeline has not run, or its state lies elsewhere
        ");
    }
}
