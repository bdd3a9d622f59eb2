//! What start-up compares, and what it does to the main slot (S-04, M-02, M-08, M-09, U-07, U-08).

use core::time::Duration;

use walferry_core::config::Config;
use walferry_core::effect::Work;
use walferry_core::fault::FaultKind;
use walferry_core::ids::TableId;
use walferry_core::input::Answer;
use walferry_core::notice::Notice;
use walferry_core::record::{Phase, Record};
use walferry_core::source::{CreatedSlot, SlotFacts, SlotHolder};
use walferry_coverage::reached;

use crate::script::{Script, T, U, at, is_save, slot, source_fault};

/// A change of something, and the field that must be named.
type Edit<T> = (fn(&mut T), &'static str);

fn is_drop(work: &Work<u32>) -> bool {
    matches!(work, Work::DropSlot { .. })
}

fn is_create(work: &Work<u32>) -> bool {
    matches!(work, Work::CreateSlot { .. })
}

fn failover(config: &mut Config) {
    config.limits.policies.slot_failover = true;
}

/// The record of a pipeline that streams.
fn streaming() -> Record {
    let mut script = Script::new(|_| ());
    script.settle();
    script.record().clone()
}

/// The record after save A: a name, and no slot yet.
fn intent() -> Record {
    let mut script = Script::new(|_| ());
    script.until(is_create);
    script.record().clone()
}

/// The field in which configuration, record and source differ, if that ended the run.
fn refused_field(script: &Script) -> Option<&'static str> {
    match script.failed() {
        Some(FaultKind::IdentityMismatch { field, .. }) => Some(field),
        _ => None,
    }
}

// S-04, S-I2, P-F11: the first difference decides, and nothing was saved, dropped or made before
#[test]
fn a_difference_of_the_identity_ends_the_start() {
    let of_config: [Edit<Config>; 3] = [
        (|config| config.destination.id = "other:".to_owned(), "destination"),
        (|config| config.limits.slot_prefix = "other".to_owned(), "slot_prefix"),
        (|config| config.publication = "other".to_owned(), "publication"),
    ];
    for (edit, field) in of_config {
        let mut script = Script::resumed(Some(streaming()), edit);
        script.settle();
        assert_eq!(refused_field(&script), Some(field));
        assert!(!script.asked(|w| is_save(w) || is_drop(w) || is_create(w)), "{field}");
    }
    let of_record: [Edit<Record>; 3] = [
        (|record| record.identity.system_id = "8".to_owned(), "system identifier"),
        (|record| record.identity.database = "other".to_owned(), "database"),
        (|record| record.identity.timeline = 2, "timeline"),
    ];
    for (edit, field) in of_record {
        let mut record = streaming();
        edit(&mut record);
        let mut script = Script::resumed(Some(record), |_| ());
        script.settle();
        assert_eq!(refused_field(&script), Some(field));
        assert!(!script.asked(|w| is_save(w) || is_drop(w) || is_create(w)), "{field}");
    }
    // Several at once: the destination is compared first, the timeline last.
    let mut record = streaming();
    record.identity.timeline = 2;
    let mut script = Script::resumed(Some(record), |config| {
        config.destination.id = "other:".to_owned();
        config.publication = "other".to_owned();
    });
    script.settle();
    assert_eq!(refused_field(&script), Some("destination"));
    reached("S-I2");
    reached("P-F11");
}

// M-01, M-02, M-07: a slot of the recorded name is ours to replace once nobody holds it
#[test]
fn the_slot_of_an_intent_is_replaced_once_it_is_free() {
    let record = intent();
    let name = record.identity.slot.clone();
    let mut script = Script::resumed(Some(record), |_| ());
    let mut held = slot(&name);
    held.active = Some(SlotHolder { pid: 7, application: "walferry:main".to_owned() });
    script.slots.insert(name.clone(), held);
    script.settle();
    for _ in 0..5 {
        assert!(!script.asked(is_drop), "never while it is held");
        script.advance(Duration::from_millis(20));
        script.settle();
    }
    let told = |notice: &Notice| matches!(notice, Notice::SlotBusy { slot, .. } if *slot == name);
    assert!(script.told(told));
    if let Some(slot) = script.slots.get_mut(&name) {
        slot.active = None;
    }
    script.advance(Duration::from_millis(20));
    let drop = script.until(is_drop);
    assert!(matches!(script.work(drop), Work::DropSlot { slot } if slot == name));
    let create = script.until(is_create);
    assert!(matches!(script.work(create), Work::CreateSlot { slot, .. } if slot == name));
    reached("M-F2");
}

// M-02, M-F3: one of another plugin or database is not ours, whatever its name
#[test]
fn a_foreign_slot_of_the_recorded_name_is_left() {
    let edits: [Edit<SlotFacts>; 2] = [
        (|slot| slot.plugin = "wal2json".to_owned(), "plugin"),
        (|slot| slot.database = "other".to_owned(), "database"),
    ];
    for (edit, expected) in edits {
        let record = intent();
        let name = record.identity.slot.clone();
        let mut script = Script::resumed(Some(record), |_| ());
        let mut foreign = slot(&name);
        edit(&mut foreign);
        script.slots.insert(name.clone(), foreign);
        script.settle();
        let failed = script.failed();
        assert!(
            matches!(failed, Some(FaultKind::SlotForeign { field, .. }) if *field == expected),
            "{failed:?}"
        );
        assert!(script.slots.contains_key(&name));
    }
    reached("M-F3");
}

// M-05: the answer to a creation must name what was asked for
#[test]
fn a_slot_that_was_not_asked_for_is_a_protocol_error() {
    let wrong: [fn(&mut CreatedSlot); 3] = [
        |created| created.slot.push('x'),
        |created| created.plugin = "test_decoding".to_owned(),
        |created| created.consistent = at(0),
    ];
    for edit in wrong {
        let mut script = Script::new(|_| ());
        let create = script.until(is_create);
        let mut created = CreatedSlot {
            slot: script.main_slot(),
            plugin: "pgoutput".to_owned(),
            consistent: at(100),
        };
        edit(&mut created);
        script.complete(create, Ok(Answer::Created(created)));
        assert_eq!(script.failed(), Some(&FaultKind::Protocol));
        assert_eq!(script.record().initial_lsn, None, "save B was not made");
    }
}

// M-08: before 17 a slot cannot survive a failover
#[test]
fn failover_needs_a_server_that_has_it() {
    let mut script = Script::new(failover);
    script.version = 160_000;
    script.settle();
    let failed = script.failed();
    assert!(
        matches!(failed, Some(FaultKind::Configuration { setting: "slot_failover", .. })),
        "{failed:?}"
    );
    assert!(!script.asked(is_save), "nothing durable is left");
}

// M-09, U-12: the property is given and read back before save C, which carries the horizon
#[test]
fn a_main_slot_without_the_property_gets_it() {
    let record = streaming();
    assert_eq!(record.write_horizon, None);
    let name = record.identity.slot.clone();
    let without = |script: &mut Script| {
        if let Some(slot) = script.slots.get_mut(&name) {
            slot.failover = false;
        }
    };
    let is_enable = |work: &Work<u32>| matches!(work, Work::EnableFailover { .. });
    let mut script = Script::resumed(Some(record.clone()), failover);
    without(&mut script);
    script.head = 700;
    let enable = script.until(is_enable);
    assert!(!script.asked(is_save));
    script.perform(enable);
    let save = script.until(is_save);
    script.perform(save);
    assert_eq!(script.record().write_horizon, Some(at(700)), "this WAL's end");
    // A server that takes the command and does not do it is not believed.
    let mut script = Script::resumed(Some(record), failover);
    without(&mut script);
    let enable = script.until(is_enable);
    script.perform(enable);
    without(&mut script);
    script.settle();
    assert_eq!(script.failed(), Some(&FaultKind::Protocol));
}

// U-12: without failover the record keeps no horizon
#[test]
fn the_horizon_goes_with_the_property() {
    let mut script = Script::new(failover);
    script.settle();
    let record = script.record().clone();
    assert!(record.write_horizon.is_some());
    let mut script = Script::resumed(Some(record), |_| ());
    let save = script.until(is_save);
    script.perform(save);
    assert_eq!(script.record().write_horizon, None);
}

// U-10: what cannot work leaves nothing durable behind a first start
#[test]
fn a_publication_that_is_not_there_leaves_nothing() {
    let mut script = Script::new(|_| ());
    let list = script.until(|work| matches!(work, Work::ListPublication));
    script.complete(list, Ok(Answer::Publication(None)));
    assert!(matches!(script.failed(), Some(FaultKind::PublicationMissing { .. })));
    let mut empty = Script::new(|_| ());
    empty.tables.clear();
    empty.settle();
    assert!(matches!(empty.failed(), Some(FaultKind::PublicationEmpty { .. })));
    for script in [script, empty] {
        assert!(!script.asked(|work| is_save(work) || is_create(work)));
    }
}

// M-F1, M-06: a creation that ran out of its budget is repeated with the whole unit
#[test]
fn a_slow_creation_is_repeated() {
    let mut script = Script::new(|_| ());
    let create = script.until(is_create);
    let budget = Duration::from_secs(3_600);
    script.fail(create, source_fault(FaultKind::Timeout { budget }));
    assert!(script.ended.is_none());
    script.advance(Duration::from_secs(7));
    let create = script.until(is_create);
    script.perform(create);
    script.settle();
    assert!(script.record().initial_lsn.is_some());
    reached("M-F1");
}

// U-13, T-05, T-09, T-11: the listing of a start decides what stays, what is new and what is gone; a
// known table keeps its handover
#[test]
fn the_listing_of_a_start_is_reconciled() {
    let mut script = Script::new(|_| ());
    script.tables = vec![T, U];
    script.settle();
    let before = script.record().clone();
    let v = TableId(103);
    let mut script = Script::resumed(Some(before.clone()), |_| ());
    script.tables = vec![T, v];
    script.head = 500;
    let save = script.until(is_save);
    assert!(!script.asked(|work| matches!(work, Work::OpenStream { .. })), "save C goes first");
    script.perform(save);
    let record = script.record();
    assert_eq!(record.tables[&T], before.tables[&T]);
    assert_eq!((&record.tables[&v].phase, record.tables[&v].attempt), (&Phase::Pending, None));
    assert!(!record.tables.contains_key(&U));
    let gone = &record.tombstones[&U];
    assert_eq!((gone.absent_at, gone.attempt), (at(500), before.tables[&U].attempt));
    assert_eq!(record.epoch.0, before.epoch.0 + 1, "the first save of a run raises it");
}
