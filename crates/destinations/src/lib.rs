//! The destination contract of walferry and its destinations.

pub mod contract;

pub use contract::{Destination, DestinationError};
