//! Starts private PostgreSQL servers for the demo, the benchmarks and the tests.
//!
//! [`installation::Installation::find`] looks for the programs of a major version,
//! [`config::ClusterConfig`] says how a server is set up, and [`cluster::Cluster`] runs it in a
//! directory, on a socket and on a port of its own. Nothing is shared between clusters but the
//! programs and a read-only data directory to copy from.
//!
//! Whatever cannot be done is a panic that says what and why: whoever starts a private server has no
//! other plan. Knows nothing of walferry itself.
//!
//! **Invariant:** nothing outlives the process that started it, not even when that is killed with
//! SIGKILL: see [`watchdog`].

pub mod certs;
pub mod cluster;
pub mod config;
pub mod installation;
pub mod port;
mod template;
pub mod wait;
pub mod watchdog;
