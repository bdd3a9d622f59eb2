//! What real servers do, and what walferry does with them. Every module is a suite.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail as tests do")]

mod compare;
mod embed;
mod facts_positions;
mod facts_rows;
mod facts_slots;
mod facts_snapshots;
mod ferry;
mod harness;
mod heartbeat;
mod insert_unchanged;
mod pipeline_sqlite;
mod proxy;
mod raw;
