//! What goes to standard output is data, what goes to standard error is for people.

use insta::assert_snapshot;

use crate::world::World;

#[test]
fn lines_go_to_standard_output_and_nothing_else_does() {
    let world = World::new();
    let finished = world.call().destination("jsonl:-").caught_up().run();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    for line in finished.stdout.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(value["op"].is_string(), "{line}");
    }
    let rows = finished.stdout.lines().filter(|line| line.contains("\"table\":\"orders\"")).count();
    assert!(rows >= 50, "{rows} lines of orders");
    for line in finished.stderr.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}

#[test]
fn a_log_names_table_and_position_in_fields() {
    let world = World::new();
    let finished = world.call().caught_up().run();
    let messages: Vec<_> = finished
        .stderr
        .lines()
        .map(|line| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            let fields = &value["fields"];
            let keys: Vec<_> = fields.as_object().unwrap().keys().cloned().collect();
            format!("{} {}", value["level"].as_str().unwrap(), keys.join(","))
        })
        .collect();
    assert!(messages.iter().any(|message| message == "INFO lsn,message,slot"), "{messages:?}");
    assert!(messages.iter().any(|message| message == "INFO lsn,message,table"), "{messages:?}");
    let last = finished.stderr.lines().last().unwrap();
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    let message = last["fields"]["message"].as_str().unwrap();
    assert_snapshot!(message, @"stopped in order: everything delivered is saved and confirmed");
}
