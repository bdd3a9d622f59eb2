//! What a user sees, without what differs from run to run.

use walferry_tests::process::Finished;

/// Exit code, standard output if there is any, and standard error. Log lines keep their level, text
/// and table; those that only tell of progress are left out.
pub(crate) fn shown(finished: &Finished, stand_ins: &[(String, &str)]) -> String {
    let mut text = match (finished.code, finished.signal) {
        (Some(code), _) => format!("exit {code}\n"),
        (None, signal) => format!("signal {signal:?}\n"),
    };
    if !finished.stdout.is_empty() {
        text.push_str(&format!("--- stdout\n{}--- stderr\n", finished.stdout));
    }
    for line in finished.stderr.lines() {
        match line.strip_prefix('{') {
            None => text.push_str(&format!("{line}\n")),
            Some(_) => text.extend(log_line(line)),
        }
    }
    for (found, stand_in) in stand_ins {
        text = text.replace(found.as_str(), stand_in);
    }
    without_numbers(&text)
}

fn log_line(line: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(line).expect("a log line is JSON");
    let level = value["level"].as_str().expect("a log line has a level");
    if level == "INFO" {
        return None;
    }
    let fields = &value["fields"];
    let message = fields["message"].as_str().expect("a log line has a message");
    let table = fields["table"].as_str().map(|table| format!(" [{table}]")).unwrap_or_default();
    Some(format!("{}{table} {message}\n", level.to_lowercase()))
}

/// Replaces positions, names of slots, system identifiers and process ids.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut before = "";
    for word in words(text) {
        let stand_in = if is_named(word, "walferry_") {
            "[slot]"
        } else if is_named(word, "walferry_copy_") {
            "[copy slot]"
        } else if is_position(word) {
            "[lsn]"
        } else if word.len() == 64 && hexadecimal(word) {
            "[sum]"
        } else if word.len() == 19 && digits(word) {
            "[system]"
        } else if digits(word) && matches!(before, "pid" | "process" | "pg_terminate_backend") {
            "[pid]"
        } else {
            word
        };
        out.push_str(stand_in);
        if word.chars().all(is_word) {
            before = word;
        }
    }
    out
}

/// Runs of characters of words, and everything between them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    core::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end = rest.find(|c| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '/')
}

/// Whether 24 hexadecimal digits follow.
fn is_named(word: &str, prefix: &str) -> bool {
    word.strip_prefix(prefix).and_then(|rest| rest.get(..24)).is_some_and(hexadecimal)
}

fn is_position(word: &str) -> bool {
    let parts = word.split_once('/');
    parts.is_some_and(|(high, low)| hexadecimal(high) && hexadecimal(low) && low.len() > 4)
}

fn hexadecimal(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit())
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit())
}

#[test]
fn numbers_that_differ_get_stand_ins() {
    let slot = format!("walferry_{}", "0a".repeat(12));
    let copy = slot.replace("ferry_", "ferry_copy_") + "_7";
    let text = format!("pid 12 at 0/1A2b3c of {slot} and {copy}: 12 of 7312345678901234567, 0/1 c");
    assert_eq!(
        without_numbers(&text),
        "pid [pid] at [lsn] of [slot] and [copy slot]: 12 of [system], 0/1 c"
    );
}
