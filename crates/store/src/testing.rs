//! Records for the tests of this crate.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use walferry_core::ids::{Attempt, Epoch, TableId};
use walferry_core::lsn::{Lsn, Position};
use walferry_core::record::{
    FORMAT, Identity, Phase, Policy, Record, Stamp, TableEntry, Tombstone,
};
use walferry_core::schema::{Column, ReplicaIdentity, TableSchema};

pub(crate) type Tables = Arc<BTreeMap<TableId, Arc<TableEntry>>>;

pub(crate) fn record(epoch: u64, checkpoint: u64, tables: Tables) -> Record {
    Record {
        format: FORMAT,
        epoch: Epoch(epoch),
        identity: Identity {
            system_id: "7301234567890123456".to_owned(),
            timeline: 1,
            database: "app".to_owned(),
            slot: format!("walferry_{}", "a1".repeat(12)),
            publication: "app".to_owned(),
        },
        slot_prefix: "walferry".to_owned(),
        destination_id: "null:".to_owned(),
        initial_lsn: Some(Position(Lsn(1))),
        checkpoint: Some(Position(Lsn(checkpoint))),
        write_horizon: None,
        recreate: false,
        attempt_seq: 1_000_000,
        tables,
        tombstones: Arc::default(),
    }
}

/// `count` tables that are Ready.
pub(crate) fn tables(count: u32) -> Tables {
    Arc::new((1..=count).map(|oid| (TableId(oid), Arc::new(ready(oid)))).collect())
}

fn ready(oid: u32) -> TableEntry {
    TableEntry {
        name: format!("public.t{oid}"),
        stamp: Stamp { publication: 1, membership: oid },
        phase: Phase::Ready { handover: Position(Lsn(5)) },
        attempt: Some(Attempt(u64::from(oid))),
        tries: 0,
        deaths: 0,
        schema: Some(Arc::new(schema(oid, "größe"))),
        schema_from: None,
        handed_over: Some(Attempt(u64::from(oid))),
    }
}

fn schema(oid: u32, column: &str) -> TableSchema {
    TableSchema {
        table: TableId(oid),
        namespace: "public".to_owned(),
        name: format!("t{oid}"),
        identity: ReplicaIdentity::Default,
        columns: vec![Column {
            number: 1,
            name: column.to_owned(),
            type_oid: 20,
            modifier: -1,
            not_null: true,
            default: Some("nextval('s'::regclass)".to_owned()),
            key: true,
        }],
        unpublished: Vec::new(),
        storage: None,
    }
}

fn arbitrary_entry() -> impl Strategy<Value = TableEntry> {
    let phase = prop_oneof![
        Just(Phase::Pending),
        Just(Phase::Copying),
        (1_u64..).prop_map(|at| Phase::Catchup { handover: Position(Lsn(at)) }),
        (1_u64..).prop_map(|at| Phase::Ready { handover: Position(Lsn(at)) }),
        (".{1,20}", prop_oneof![Just(Policy::None), Just(Policy::Manual), Just(Policy::Timed)])
            .prop_map(|(reason, policy)| Phase::Errored { reason, policy }),
    ];
    (phase, ".{0,20}", 1_u32.., any::<u32>(), any::<u32>()).prop_map(
        |(phase, name, tries, membership, deaths)| TableEntry {
            schema: phase.handover().map(|_| Arc::new(schema(9, &name))),
            schema_from: phase.handover(),
            handed_over: phase.handover().map(|_| Attempt(u64::from(tries % 1_000))),
            name,
            stamp: Stamp { publication: 1, membership },
            phase,
            attempt: Some(Attempt(u64::from(tries % 1_000))),
            tries,
            deaths,
        },
    )
}

/// Any record that R-05 allows.
pub(crate) fn arbitrary_record() -> impl Strategy<Value = Record> {
    let tombstone =
        (".{0,20}", any::<u64>(), any::<u64>()).prop_map(|(name, from, absent)| Tombstone {
            name,
            ignored_from: Position(Lsn(from)),
            absent_at: Position(Lsn(absent)),
            attempt: None,
            handed_over: None,
        });
    (
        any::<u64>(),
        1_u64..,
        prop::option::of(any::<u64>()),
        any::<bool>(),
        prop::collection::btree_map(1_u32..50, arbitrary_entry(), 0..5),
        prop::collection::btree_map(50_u32..100, tombstone, 0..3),
        ".{1,15}",
    )
        .prop_map(|(epoch, checkpoint, horizon, recreate, tables, tombstones, id)| {
            let entries = tables.into_iter().map(|(oid, entry)| (TableId(oid), Arc::new(entry)));
            let mut value = record(epoch, checkpoint, Arc::new(entries.collect()));
            value.write_horizon = horizon.map(|at| Position(Lsn(at)));
            value.recreate = recreate;
            value.tombstones =
                Arc::new(tombstones.into_iter().map(|(oid, t)| (TableId(oid), t)).collect());
            value.destination_id = id;
            value
        })
}
