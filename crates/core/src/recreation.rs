//! Re-creation of the main slot (group I), as pure functions over the record: save R1 and save R2.
//! Changes between the old checkpoint and the new consistent point are in no stream, so every table
//! is copied again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lsn::Position;
use crate::policies::Policies;
use crate::record::{Phase, Record};

/// Save R1: from here on nothing is offered to the destination until R2 is saved (I-07). After a
/// promotion it carries the new timeline too (P-09).
pub(crate) fn begin(record: &mut Record, timeline: u32) {
    record.recreate = true;
    record.identity.timeline = timeline;
}

/// Save R2: a slot of the same name exists again, with this consistent point. Attempts are kept,
/// so that the copies replace what is there; `handed_over` goes, because a watermark may lie beyond
/// the fork or the new position, and an adoption must not keep it (I-06).
pub(crate) fn finish(record: &mut Record, consistent: Position, policies: &Policies) {
    record.recreate = false;
    record.initial_lsn = Some(consistent);
    record.checkpoint = Some(consistent);
    record.write_horizon = policies.slot_failover.then_some(consistent);
    for entry in Arc::make_mut(&mut record.tables).values_mut() {
        let entry = Arc::make_mut(entry);
        entry.phase = Phase::Pending;
        entry.tries = 0;
        entry.deaths = 0;
        entry.schema = None;
        entry.handed_over = None;
    }
    record.tombstones = Arc::new(BTreeMap::new());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Attempt, TableId};
    use crate::policies::CopyFilter;
    use crate::record::tests::{position, record, schema};
    use crate::record::{Policy, Stamp, TableEntry, Tombstone};

    // I-06, I-I1, I-I2
    #[test]
    fn after_it_every_table_is_copied_from_the_new_position() {
        let mut now = record();
        now.attempt_seq = 7;
        let stamp = Stamp { publication: 1, membership: 2 };
        let phases = [
            Phase::Ready { handover: position(12) },
            Phase::Copying,
            Phase::errored("x", Policy::None),
        ];
        let tables = phases.iter().enumerate().map(|(n, phase)| {
            let mut entry = TableEntry::pending(format!("public.t{n}"), stamp, Some(Attempt(7)));
            (entry.phase, entry.tries, entry.deaths) = (phase.clone(), 2, 1);
            entry.handed_over = Some(Attempt(6));
            entry.schema = phase.handover().map(|_| Arc::new(schema()));
            (TableId(u32::try_from(n).unwrap() + 1), Arc::new(entry))
        });
        now.tables = Arc::new(tables.collect());
        let tombstone = Tombstone {
            name: "public.gone".to_owned(),
            ignored_from: position(10),
            absent_at: position(99),
            attempt: Some(Attempt(2)),
            handed_over: None,
        };
        now.tombstones = Arc::new(BTreeMap::from([(TableId(9), tombstone)]));
        begin(&mut now, 3);
        assert!(now.recreate);
        assert_eq!((now.identity.timeline, now.validate()), (3, Ok(())));
        let policies = Policies {
            slot_failover: true,
            copy: CopyFilter::AllBut(["public.t2".to_owned()].into()),
            ..Policies::default()
        };
        let mut with_failover = now.clone();
        finish(&mut with_failover, position(50), &policies);
        assert_eq!(with_failover.write_horizon, Some(position(50)));
        finish(&mut now, position(50), &Policies::default());
        assert_eq!(now.write_horizon, None);
        for after in [&now, &with_failover] {
            assert!(!after.recreate && after.tombstones.is_empty());
            assert_eq!(
                (after.initial_lsn, after.checkpoint),
                (Some(position(50)), Some(position(50)))
            );
            assert_eq!(after.validate(), Ok(()));
            for entry in after.tables.values() {
                assert_eq!((&entry.phase, entry.tries, entry.deaths), (&Phase::Pending, 0, 0));
                assert_eq!((&entry.schema, entry.handed_over), (&None, None));
                assert_eq!(entry.attempt, Some(Attempt(7)), "I-08: Recopy");
            }
        }
        assert_eq!(now.attempt_seq, 7, "N-I6: numbers are never used again");
    }
}
