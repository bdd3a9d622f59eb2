//! Projection, handover, frontier and saves against the simulated world: random games, short
//! scenarios that are repeated with a crash after every effect, interleavings one by one, and moves
//! that shrink.
//!
//! A failing seed is replayed with `WALFERRY_SIM_SEED=<seed> cargo test -p walferry-tests --test
//! model`; `WALFERRY_SIM_SEEDS=<count>` plays more of them.

mod blows;
mod directed;
mod exhaustive;
mod games;
mod interleavings;
mod moves;

use walferry_tests::world::player::message;
