//! What real servers do, and what walferry does with them. Every module is a suite.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail as tests do")]

mod harness;
