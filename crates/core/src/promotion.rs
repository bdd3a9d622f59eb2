//! Promotion of the source (group P), as pure functions: where the timelines part, whether the
//! pipeline may follow, and the record after it. Knows nothing of connections or of saves.

use std::sync::Arc;

use crate::fault::FaultKind;
use crate::lsn::Position;
use crate::record::{Phase, Record};
use crate::source::TimelineSwitch;

/// P-02: where the recorded timeline ended for the one that the source is on.
///
/// The newest history lists every ancestor, so several promotions in a row need no special rule.
///
/// # Errors
/// The recorded timeline is no ancestor: another source, or an old primary that came back.
pub(crate) fn fork(
    history: &[TimelineSwitch],
    recorded: u32,
    found: u32,
) -> Result<Position, FaultKind> {
    let entry = history.iter().find(|switch| switch.parent == recorded);
    match entry {
        Some(switch) if recorded < found => Ok(switch.at),
        Some(_) | None => Err(FaultKind::IdentityMismatch {
            field: "timeline",
            expected: format!("{recorded} or one that descends from it"),
            found: found.to_string(),
        }),
    }
}

/// P-06: whether everything ever offered exists on the new timeline. The horizon is exclusive, so
/// equality is safe; an unknown one is not.
///
/// # Errors
/// The sink may hold events that the new timeline does not have.
pub(crate) fn is_safe(record: &Record, fork: Position) -> Result<(), FaultKind> {
    match record.write_horizon {
        Some(horizon) if horizon <= fork => Ok(()),
        horizon => Err(FaultKind::HorizonBeyondFork { horizon, fork }),
    }
}

/// P-07: the record of the pipeline on the new timeline. Whatever lies beyond the fork was never
/// offered on main (P-06); tables whose handover lies beyond it are copied again.
pub(crate) fn follow(record: &mut Record, timeline: u32, fork: Position) {
    record.identity.timeline = timeline;
    record.checkpoint = record.checkpoint.map(|checkpoint| checkpoint.min(fork));
    for entry in Arc::make_mut(&mut record.tables).values_mut() {
        let beyond = entry.phase.handover().is_some_and(|handover| handover > fork);
        if entry.phase == Phase::Copying {
            let entry = Arc::make_mut(entry);
            entry.phase = Phase::Pending;
            entry.tries = entry.tries.saturating_sub(1);
        } else if beyond {
            let entry = Arc::make_mut(entry);
            entry.phase = Phase::Pending;
            entry.schema = None;
            // Its private replay may have written events from beyond the fork, so a watermark that an
            // adoption would keep may hide events of the new timeline (K-18).
            entry.handed_over = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Attempt, TableId};
    use crate::lsn::Lsn;
    use crate::record::tests::{position, record, schema};
    use crate::record::{Stamp, TableEntry};

    fn switch(parent: u32, at: u64) -> TimelineSwitch {
        TimelineSwitch { parent, at: Position(Lsn(at)) }
    }

    // P-02, P-F5, P-F10
    #[test]
    fn the_fork_is_where_the_recorded_timeline_ended() {
        let history = [switch(1, 100), switch(2, 200), switch(4, 300)];
        assert_eq!(fork(&history, 1, 5), Ok(position(100)));
        assert_eq!(fork(&history, 2, 5), Ok(position(200)), "two promotions since");
        for (recorded, found) in [(3, 5), (5, 5), (6, 5), (2, 1), (2, 2)] {
            let refused = fork(&history, recorded, found);
            assert!(
                matches!(refused, Err(FaultKind::IdentityMismatch { field: "timeline", .. })),
                "{recorded} on {found}: {refused:?}"
            );
        }
        walferry_coverage::reached("P-F5");
        walferry_coverage::reached("P-F10");
    }

    // P-06, P-F6, P-F12
    #[test]
    fn only_a_known_horizon_up_to_the_fork_is_safe() {
        let with = |horizon: Option<u64>| {
            let mut record = record();
            record.write_horizon = horizon.map(position);
            is_safe(&record, position(100)).is_ok()
        };
        assert!(with(Some(99)) && with(Some(100)));
        assert!(!with(Some(101)) && !with(None));
    }

    // P-07, P-I3
    #[test]
    fn what_lies_beyond_the_fork_is_copied_again_and_the_rest_stays() {
        let mut before = record();
        before.checkpoint = Some(position(150));
        before.write_horizon = Some(position(100));
        before.attempt_seq = 9;
        let stamp = Stamp { publication: 1, membership: 2 };
        let phases = [
            Phase::Copying,
            Phase::Ready { handover: position(100) },
            Phase::Ready { handover: position(101) },
            Phase::Catchup { handover: position(160) },
            Phase::Pending,
            Phase::errored("x", crate::record::Policy::Manual),
        ];
        let tables = phases.iter().enumerate().map(|(n, phase)| {
            let mut entry = TableEntry::pending(format!("public.t{n}"), stamp, Some(Attempt(1)));
            entry.phase = phase.clone();
            entry.tries = 3;
            entry.schema = phase.handover().map(|_| Arc::new(schema()));
            (TableId(u32::try_from(n).unwrap() + 1), Arc::new(entry))
        });
        before.tables = Arc::new(tables.collect());
        assert_eq!(before.validate(), Ok(()));
        let mut after = before.clone();
        follow(&mut after, 2, position(120));
        assert_eq!(after.checkpoint, Some(position(120)), "P-I3");
        let mut lower = before.clone();
        follow(&mut lower, 2, position(155));
        assert_eq!(lower.checkpoint, Some(position(150)), "P-I3: never raised");
        follow(&mut before, 2, position(100));
        assert_eq!(before.identity.timeline, 2);
        assert_eq!(before.checkpoint, Some(position(100)));
        assert_eq!(before.write_horizon, Some(position(100)), "kept");
        assert_eq!(before.validate(), Ok(()));
        let words: Vec<_> = before.tables.values().map(|entry| entry.phase.word()).collect();
        assert_eq!(words, ["pending", "ready", "pending", "pending", "pending", "errored"]);
        let tries: Vec<_> = before.tables.values().map(|entry| entry.tries).collect();
        assert_eq!(tries, [2, 3, 3, 3, 3, 3], "Y-10: the try of the attempt is given back");
        assert!(before.tables.values().all(|entry| entry.attempt == Some(Attempt(1))));
    }
}
