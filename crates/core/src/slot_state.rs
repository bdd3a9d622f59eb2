//! What a slot report means (M-12): exactly one verdict, without any IO.

use crate::fault::FaultKind;
use crate::lsn::Position;
use crate::source::{SlotFacts, SourceSeen};

/// Verdict on a recorded slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    Healthy,
    /// Missing, invalidated, ahead or foreign, as a fault kind with its values.
    Unusable(FaultKind),
}

/// Judges the main slot against the checkpoint that a crash would find.
pub(crate) fn inspect(
    name: &str,
    database: &str,
    slot: Option<&SlotFacts>,
    checkpoint: Position,
) -> SlotState {
    let slot_name = || name.to_owned();
    let Some(slot) = slot else {
        return SlotState::Unusable(FaultKind::SlotMissing { slot: slot_name() });
    };
    if let Some(kind) = foreign(slot, database) {
        return SlotState::Unusable(kind);
    }
    if slot.temporary {
        return SlotState::Unusable(FaultKind::SlotForeign {
            slot: slot_name(),
            field: "kind",
            expected: "persistent".to_owned(),
            found: "temporary".to_owned(),
        });
    }
    if let Some(reason) = invalidation(slot) {
        return SlotState::Unusable(FaultKind::SlotInvalidated { slot: slot_name(), reason });
    }
    let ahead = [slot.restart_lsn, slot.confirmed_flush_lsn]
        .into_iter()
        .flatten()
        .find(|&lsn| lsn > checkpoint.0);
    match ahead {
        Some(found) => {
            SlotState::Unusable(FaultKind::SlotAhead { slot: slot_name(), found, checkpoint })
        }
        None => SlotState::Healthy,
    }
}

/// What makes a slot of our name one that is not ours (M-02, K-07).
pub(crate) fn foreign(slot: &SlotFacts, database: &str) -> Option<FaultKind> {
    let differs = |field, expected: &str, found: &str| {
        Some(FaultKind::SlotForeign {
            slot: slot.name.clone(),
            field,
            expected: expected.to_owned(),
            found: found.to_owned(),
        })
    };
    if !slot.logical {
        return differs("type", "logical", "physical");
    }
    if slot.plugin != "pgoutput" {
        return differs("plugin", "pgoutput", &slot.plugin);
    }
    if slot.database != database {
        return differs("database", database, &slot.database);
    }
    None
}

fn invalidation(slot: &SlotFacts) -> Option<String> {
    match (&slot.invalidation_reason, slot.wal_status.as_deref()) {
        (Some(reason), _) => Some(reason.clone()),
        (None, Some("lost")) => Some("wal_removed".to_owned()),
        (None, Some(_) | None) => None,
    }
}

/// S-06: another cluster, database or timeline than the run's.
pub(crate) fn differs(
    expected: &SourceSeen,
    found: &SourceSeen,
    failover: bool,
) -> Option<FaultKind> {
    let mismatch = |field, expected: &str, found: &str| {
        Some(FaultKind::IdentityMismatch {
            field,
            expected: expected.to_owned(),
            found: found.to_owned(),
        })
    };
    if expected.system_id != found.system_id {
        return mismatch("system identifier", &expected.system_id, &found.system_id);
    }
    if expected.database != found.database {
        return mismatch("database", &expected.database, &found.database);
    }
    if expected.timeline != found.timeline && failover {
        let (expected, found) = (expected.timeline, found.timeline);
        return Some(FaultKind::TimelineChanged { expected, found });
    }
    if expected.timeline != found.timeline {
        let (expected, found) = (expected.timeline.to_string(), found.timeline.to_string());
        return mismatch("timeline", &expected, &found);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    fn slot() -> SlotFacts {
        SlotFacts {
            name: "s".to_owned(),
            plugin: "pgoutput".to_owned(),
            database: "app".to_owned(),
            logical: true,
            temporary: false,
            active: None,
            restart_lsn: Some(Lsn(5)),
            confirmed_flush_lsn: Some(Lsn(10)),
            wal_status: Some("reserved".to_owned()),
            safe_wal_size: None,
            failover: false,
            invalidation_reason: None,
        }
    }

    fn kind(edit: impl FnOnce(&mut SlotFacts), checkpoint: u64) -> Option<FaultKind> {
        let mut facts = slot();
        edit(&mut facts);
        match inspect("s", "app", Some(&facts), Position(Lsn(checkpoint))) {
            SlotState::Healthy => None,
            SlotState::Unusable(kind) => Some(kind),
        }
    }

    // M-12
    #[test]
    fn each_state_of_a_slot_has_one_verdict() {
        assert_eq!(kind(|_| (), 10), None);
        assert!(matches!(kind(|_| (), 9), Some(FaultKind::SlotAhead { .. })));
        assert!(matches!(
            kind(|s| s.restart_lsn = Some(Lsn(11)), 10),
            Some(FaultKind::SlotAhead { .. })
        ));
        let invalidated = |edit: fn(&mut SlotFacts)| {
            matches!(kind(edit, 10), Some(FaultKind::SlotInvalidated { .. }))
        };
        assert!(invalidated(|s| s.wal_status = Some("lost".to_owned())));
        assert!(invalidated(|s| s.invalidation_reason = Some("idle_timeout".to_owned())));
        let foreign = |edit: fn(&mut SlotFacts)| {
            matches!(kind(edit, 10), Some(FaultKind::SlotForeign { .. }))
        };
        assert!(foreign(|s| s.plugin = "wal2json".to_owned()));
        assert!(foreign(|s| s.database = "other".to_owned()));
        assert!(foreign(|s| s.logical = false));
        assert!(foreign(|s| s.temporary = true));
        let missing = inspect("s", "app", None, Position(Lsn(1)));
        assert!(matches!(missing, SlotState::Unusable(FaultKind::SlotMissing { .. })));
    }

    // S-I2
    #[test]
    fn each_field_of_the_identity_is_compared() {
        let ours = SourceSeen { system_id: "1".into(), timeline: 1, database: "app".into() };
        assert_eq!(differs(&ours, &ours, false), None);
        assert_eq!(differs(&ours, &ours, true), None);
        let others = [
            SourceSeen { system_id: "2".into(), ..ours.clone() },
            SourceSeen { timeline: 2, ..ours.clone() },
            SourceSeen { database: "b".into(), ..ours.clone() },
        ];
        for other in others {
            let kind = |failover| differs(&ours, &other, failover);
            assert!(matches!(kind(false), Some(FaultKind::IdentityMismatch { .. })), "{other:?}");
            let promoted = matches!(kind(true), Some(FaultKind::TimelineChanged { .. }));
            assert_eq!(promoted, other.timeline != ours.timeline, "S-07: {other:?}");
        }
        walferry_coverage::reached("S-I2");
    }
}
