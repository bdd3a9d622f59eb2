//! The decisions of walferry: pure decoders and one state machine.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod event;
pub mod ids;
pub mod lsn;
pub mod schema;
pub mod time;
pub mod wire;
