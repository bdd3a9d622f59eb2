//! The JSON lines destination: files, claims and torn lines.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use std::fs::{self, OpenOptions};
use std::io::Write;

use common::Jsonl;
use walferry_core::fault::DestinationClass;
use walferry_core::ids::Epoch;
use walferry_core::schema::ReplicaIdentity;
use walferry_destinations::kit::{Run, Source, Subject, row};
use walferry_destinations::{Destination, DestinationError, JsonlDestination};

const ONE: Epoch = Epoch(1);

fn refused(result: Result<(), DestinationError>, class: DestinationClass, part: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.class, class, "{}", error.chain());
    assert!(error.message.contains(part), "{part:?} is not in {:?}", error.message);
}

// DS-11: what a crash has torn comes again with the replay
#[tokio::test]
async fn a_torn_last_line_is_cut_off() {
    let sink = Jsonl::new();
    let mut source = Source::new();
    let table = source.table("t", ReplicaIdentity::Default);
    let run = Run::start(&sink, ONE).await.unwrap();
    run.copy(&mut source, table).await.unwrap();
    source.commit(|t| t.insert(table, row(1, "é", "")));
    run.write(source.batches(0..1, 1, ONE, |_| true)).await.unwrap();
    let whole = fs::read(sink.0.path().join("sink.jsonl")).unwrap();
    for torn in ["x".to_owned(), "{\"op\":".to_owned(), "y".repeat(20_000)] {
        let path = sink.0.path().join("sink.jsonl");
        OpenOptions::new().append(true).open(&path).unwrap().write_all(torn.as_bytes()).unwrap();
        sink.open().startup("kit", ONE).await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    let run = run.crash().await.unwrap();
    run.write(source.batches(0..1, 1, run.epoch, |_| true)).await.unwrap();
    run.expect("after the repair", &source, &[table]).await.unwrap();
}

// DS-16
#[tokio::test]
async fn a_file_has_one_owner() {
    let sink = Jsonl::new();
    let (manual, fenced) = (DestinationClass::Manual, DestinationClass::Fenced);
    sink.open().startup("kit", Epoch(5)).await.unwrap();
    refused(sink.open().startup("kit", Epoch(4)).await, fenced, "epoch 5");
    refused(sink.open().startup("other", Epoch(9)).await, manual, "the pipeline \"kit\"");
    sink.open().take_over(true).startup("other", ONE).await.unwrap();
    let claim = sink.0.path().join("sink.jsonl.walferry");
    fs::write(&claim, r#"{"format":2,"pipeline":"other","epoch":1}"#).unwrap();
    refused(sink.open().startup("other", Epoch(2)).await, manual, "newer walferry (format 2");
    fs::write(&claim, "{").unwrap();
    refused(sink.open().startup("other", Epoch(2)).await, manual, "is damaged");
}

#[tokio::test]
async fn what_is_not_a_usable_file_is_said_at_startup() {
    let folder = tempfile::tempdir().unwrap();
    let manual = DestinationClass::Manual;
    let startup = async |path: &str| {
        JsonlDestination::file(folder.path().join(path)).startup("kit", ONE).await
    };
    refused(startup(".").await, manual, "it is a folder");
    refused(startup("no/such/file").await, manual, "mkdir -p");
    fs::write(folder.path().join("mine.txt"), "precious").unwrap();
    refused(startup("mine.txt").await, manual, "walferry did not write it");
    assert_eq!(fs::read(folder.path().join("mine.txt")).unwrap(), b"precious");
    fs::write(folder.path().join("empty.jsonl"), "").unwrap();
    startup("empty.jsonl").await.unwrap();
}
