//! What may differ between two records that are saved one after the other (R-I3): the transitions of
//! the table of group R, each condition with the rule it comes from.

use std::collections::BTreeMap;

use walferry_core::ids::TableId;
use walferry_core::lsn::Position;
use walferry_core::record::{Phase, Record, TableEntry};

use crate::coverage::reached;

/// Judges a save against what is persisted. `absent` says which tables the listings lacked, and at
/// which position first; `timeline` where the source is by now.
///
/// # Panics
/// If a difference is not one of the allowed transitions.
pub fn check_transition(
    before: &Record,
    after: &Record,
    absent: &BTreeMap<TableId, Position>,
    timeline: u32,
) {
    assert!(before.epoch <= after.epoch, "the epoch went back");
    assert!(before.attempt_seq <= after.attempt_seq, "attempt numbers went back (N-I6)");
    let created_again = before.recreate && !after.recreate;
    let promoted = before.identity.timeline != after.identity.timeline;
    let moved = promoted || timeline != before.identity.timeline;
    if created_again {
        check_created_again(before, after, moved);
    } else {
        check_positions(before, after, promoted);
    }
    for (&table, old) in &*before.tables {
        match after.tables.get(&table) {
            // Save R1 carries the new timeline and leaves the tables to R2 (P-09).
            Some(new) if promoted && after.recreate => {
                assert_eq!(old.phase, new.phase, "table {table} (P-09)");
            }
            Some(new) if promoted || created_again => check_reset(table, old, new),
            Some(new) => check_table(table, old, new),
            None => {
                // No tombstone is due if the checkpoint has passed the listing already (T-10).
                let passed = absent.get(&table).is_some_and(|at| after.checkpoint >= Some(*at));
                let gone = after.tombstones.contains_key(&table) || passed || created_again;
                assert!(gone, "table {table} vanished without a tombstone (T-09)");
                reached("T-09");
            }
        }
    }
    for (&table, new) in &*after.tables {
        if !before.tables.contains_key(&table) {
            assert_eq!(new.phase, Phase::Pending, "table {table} begins as Pending (R-I3)");
            // A tombstone that has served its time is forgotten, and the copy begins afresh (T-10).
            let buried = before.tombstones.get(&table);
            let buried = buried.filter(|tombstone| Some(tombstone.absent_at) > after.checkpoint);
            let attempt = buried.and_then(|tombstone| tombstone.attempt);
            let kept = attempt.is_none() || new.attempt == attempt || created_again;
            assert!(kept, "table {table} came back without its attempt (T-10)");
            reached("T-05");
        }
    }
    for (&table, old) in &*before.tombstones {
        let stays = after.tombstones.contains_key(&table) || after.tables.contains_key(&table);
        let due = after.checkpoint >= Some(old.absent_at) || created_again;
        assert!(stays || due, "the tombstone of {table} went too early (T-10)");
        if !stays {
            reached("T-10");
        }
    }
    reached("R-I3");
}

fn check_created_again(before: &Record, after: &Record, moved: bool) {
    assert!(after.checkpoint == after.initial_lsn, "save R2 sets both positions (I-06)");
    // The source may have moved to another timeline since the record was read.
    let later = after.checkpoint > before.checkpoint || moved || before.identity.timeline > 1;
    assert!(later, "the new slot is not behind the old checkpoint (I-I2)");
    let handover = after.tables.values().find_map(|entry| entry.phase.handover());
    assert_eq!(handover, None, "a handover behind a re-creation (I-I1)");
    reached("I-I1");
    reached("I-I2");
}

fn check_positions(before: &Record, after: &Record, promoted: bool) {
    let same_start = before.initial_lsn.is_none() || before.initial_lsn == after.initial_lsn;
    assert!(same_start, "initial_lsn changed (M-I1)");
    reached("M-I1");
    if promoted {
        reached("P-I2");
        assert!(after.checkpoint <= before.checkpoint, "a promotion raised the checkpoint (P-I3)");
        return;
    }
    assert!(before.checkpoint <= after.checkpoint, "the checkpoint went back (C-I1)");
    if before.checkpoint < after.checkpoint {
        reached("C-I1");
    }
}

/// Promotion and re-creation put tables back to Pending; the others stay as they are (P-07, I-06).
fn check_reset(table: TableId, old: &TableEntry, new: &TableEntry) {
    if old.phase.handover().is_some() && new.phase.handover().is_some() {
        assert_eq!(old.phase.handover(), new.phase.handover(), "the handover of {table} (R-I5)");
        return;
    }
    let kept = matches!((&old.phase, &new.phase), (Phase::Errored { .. }, Phase::Errored { .. }));
    assert!(kept || new.phase == Phase::Pending, "table {table} is {} (P-07)", new.phase.word());
}

fn check_table(table: TableId, old: &TableEntry, new: &TableEntry) {
    assert!(old.attempt <= new.attempt, "table {table} has an older attempt (N-I6)");
    let same = old.attempt == new.attempt;
    let legal = match (&old.phase, &new.phase) {
        // T-I3, K-I1: every attempt begins in a record of its own
        (Phase::Pending, Phase::Copying) => !same && new.tries == old.tries + 1,
        // An attempt may end before its first save is emitted: it leaves its number only.
        (Phase::Pending, Phase::Pending) => true,
        (Phase::Errored { .. }, Phase::Pending | Phase::Errored { .. }) => same,
        (Phase::Copying, Phase::Copying | Phase::Catchup { .. } | Phase::Ready { .. }) => {
            same && (new.phase == Phase::Copying || (new.tries, new.deaths) == (0, 0))
        }
        (Phase::Copying, Phase::Errored { .. } | Phase::Pending) => same,
        (Phase::Catchup { handover: was }, Phase::Catchup { handover: is })
        | (
            Phase::Catchup { handover: was } | Phase::Ready { handover: was },
            Phase::Ready { handover: is },
        ) => {
            // R-I5
            reached("R-I5");
            same && was == is
        }
        (Phase::Catchup { .. } | Phase::Ready { .. }, Phase::Errored { .. } | Phase::Pending) => {
            same
        }
        (Phase::Pending, Phase::Catchup { .. } | Phase::Ready { .. } | Phase::Errored { .. })
        | (Phase::Ready { .. }, Phase::Catchup { .. })
        | (Phase::Catchup { .. } | Phase::Ready { .. }, Phase::Copying)
        | (Phase::Errored { .. }, Phase::Copying | Phase::Catchup { .. } | Phase::Ready { .. }) => {
            false
        }
    };
    assert!(
        legal,
        "table {table} went from {} #{:?} to {} #{:?} (R-I3)",
        old.phase.word(),
        old.attempt,
        new.phase.word(),
        new.attempt
    );
    if matches!((&old.phase, &new.phase), (Phase::Pending, Phase::Copying)) {
        reached("T-I3");
    }
}
