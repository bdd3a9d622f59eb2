//! Asking for a server that may not be on this machine.
//!
//! There is no silent pass: a test that needs a server and does not get one has failed. Who cannot
//! have servers runs `./dev quick`, which leaves those suites out by name.

#![expect(
    clippy::print_stderr,
    reason = "a test harness: a panic is how it reports, after a line that stands out"
)]

use crate::cluster::Cluster;
use crate::config::ClusterConfig;
use crate::installation::Installation;

/// A running server of a major version with the default configuration.
///
/// # Panics
///
/// When that version is not installed, or does not start.
#[track_caller]
pub fn require(major: u32) -> Cluster {
    config(major).start()
}

/// As [`require`], to be configured before it is started.
///
/// # Panics
///
/// When that version is not installed.
#[track_caller]
pub fn config(major: u32) -> ClusterConfig {
    ClusterConfig::new(installation(major))
}

/// The programs of a major version.
///
/// # Panics
///
/// When that version is not installed.
#[track_caller]
pub fn installation(major: u32) -> Installation {
    match Installation::find(major) {
        Ok(found) => found,
        Err(missing) => {
            eprintln!("\n######## NOT TESTED: {missing} ########\n");
            panic!("{missing}; ./dev setup installs 15 and 18, ./dev setup --all the others too");
        }
    }
}
