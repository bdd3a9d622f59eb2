//! What the suites of walferry stand on: private PostgreSQL servers and the real binary as a child.
//!
//! A test asks [`skip::require`] for a server of a major version, talks to it through
//! [`cluster::Cluster::psql`] and [`cluster::Cluster::url`], runs the command through
//! [`process::Walferry`] and waits through [`wait`], never through a fixed sleep. Nothing is shared
//! between tests but the binaries and a read-only data directory to copy from: every server has a
//! directory, a socket and a port of its own.
//!
//! **Invariant:** nothing outlives the test that started it, not even when the test is killed with
//! SIGKILL: see [`watchdog`].

pub mod coverage;
pub mod process;
pub mod skip;
pub mod world;

// The servers are a crate of their own, because the demo starts one as well.
pub use walferry_cluster::{certs, cluster, config, installation, port, wait, watchdog};

/// Stamps one test per server version out of a function that takes the major version.
///
/// ```
/// # use walferry_tests::on_servers;
/// fn answers(major: u32) {
///     assert!(major >= 14);
/// }
/// on_servers!(answers: v15 = 15, v18 = 18);
/// # fn main() {}
/// ```
///
/// makes the tests `answers::v15` and `answers::v18`.
#[macro_export]
macro_rules! on_servers {
    ($body:ident: $($name:ident = $major:literal),+ $(,)?) => {
        mod $body {
            $(
                #[test]
                fn $name() {
                    super::$body($major);
                }
            )+
        }
    };
}
