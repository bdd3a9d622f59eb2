//! Projection, handover, frontier and saves against the simulated world: random games, and one
//! short scenario that is repeated with a crash after every effect.
//!
//! A failing seed is replayed with `WALFERRY_SIM_SEED=<seed> cargo test -p walferry-tests --test
//! model`; `WALFERRY_SIM_SEEDS=<count>` plays more of them.

mod exhaustive;
mod games;

/// The text of a panic.
fn message(panic: &(dyn core::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without text".to_owned())
}
