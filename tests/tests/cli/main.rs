//! The real command meets bad input, against real servers.
//!
//! Each test does one thing wrong and looks at all that a user has then: the exit code, what stands
//! on standard error, and, after the mistake is put right as the hint says, a destination that
//! equals the source. What a mistake may leave behind is compared before and after.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test suite")]

mod adopt;
mod connect;
mod destination;
mod failover;
mod large;
mod membership;
mod outage;
mod output;
mod poison;
mod rights;
mod schema;
mod server;
mod shown;
mod slot;
mod state;
mod status;
mod stop;
mod tables;
mod transaction;
mod usage;
mod world;
