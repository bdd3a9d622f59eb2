//! The decisions of walferry: pure decoders and one state machine.

pub mod batch;
pub mod config;
pub mod effect;
pub mod event;
pub mod fault;
pub mod ids;
pub mod input;
pub mod lsn;
pub mod names;
pub mod notice;
pub mod record;
pub mod schema;
pub mod source;
pub mod time;
pub mod wire;
