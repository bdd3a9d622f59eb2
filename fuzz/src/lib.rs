//! Bodies of the fuzz targets. Each takes any bytes and panics where a promise is broken.
//!
//! A body is a file of its own, because ordinary tests of the core include it and replay its corpus.
//! What needs the private parts of a crate stands in that crate, in its module `fuzzing`.

pub mod connection;
pub mod machine;
pub mod names;
pub mod wire;
