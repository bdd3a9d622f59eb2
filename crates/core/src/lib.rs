//! The decisions of walferry: pure decoders and one state machine, driven by whoever owns the IO.
//!
//! # The contract of [`Pipeline`]
//!
//! 1. One thread owns the pipeline. `now` never goes back.
//! 2. After each `handle` and `handle_timeout` drain `poll_effect` to `None`, then read
//!    `poll_timeout` and the gates.
//! 3. Each `Effect::Start` has a fresh operation id and gets exactly one `Input::Completed`, also
//!    after `Effect::Cancel`. When its budget has passed, the driver cancels the work and completes
//!    it with `FaultKind::Timeout`: the core never waits for ever.
//! 4. Adapters report facts and never retry: the core does. Events of an old session are dropped.
//! 5. A [`Violation`] ends the run; so does `Effect::Ended`, after which nothing follows. Recovery
//!    is the ordinary start-up of a new pipeline from the saved record.
//! 6. Save before confirm, durable before save: a position is confirmed to the server only after
//!    the destination is durable up to it and the record with it is saved.
//!
//! Nothing in this crate is async, reads a clock, draws random numbers, does IO, reads the
//! environment or logs. Iteration order is always defined.

pub mod batch;
pub mod config;
pub mod effect;
pub mod event;
pub mod fault;
mod following;
pub mod ids;
pub mod input;
mod lane;
mod ledger;
pub mod lsn;
mod main_budget;
pub mod names;
pub mod notice;
mod pipeline;
pub mod policies;
mod projection;
mod promotion;
mod queue;
mod ranges;
pub mod record;
mod recreation;
pub mod requests;
pub mod retry;
pub mod schema;
mod schema_change;
mod schema_history;
mod schema_plan;
#[cfg(test)]
mod schema_sequences;
mod silent_rewrite;
mod slot_state;
pub mod source;
mod stream;
pub mod time;
mod timers;
mod turns;
pub mod view;
mod violation;
pub mod wire;

pub use pipeline::{Pipeline, Seed};
pub use stream::Gate;
pub use timers::Wakeup;
pub use violation::Violation;
