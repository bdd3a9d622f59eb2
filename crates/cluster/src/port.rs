//! TCP ports that no other test on this machine uses.
//!
//! Asking the kernel for a free port is not enough: it hands out ports of the range that outgoing
//! connections use too, so while a server is down for a restart anybody's connection may take its
//! port. Ports here come from below that range, and each is held by a file lock for as long as the
//! lease lives, also while no server listens. The kernel drops the lock with the process.

#![expect(clippy::expect_used, reason = "a harness: a panic is how it reports")]

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

/// Below 32768, where the range for outgoing connections starts on Linux.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port on 127.0.0.1, reserved until this is dropped.
#[derive(Debug)]
pub struct PortLease {
    port: u16,
    _lock: File,
}

impl PortLease {
    /// Reserves a port on which nobody listens.
    ///
    /// # Panics
    ///
    /// When the directory of the locks cannot be written, or every port is taken.
    pub fn take() -> Self {
        let user = rustix::process::geteuid().as_raw();
        let locks = std::env::temp_dir().join(format!("walferry-ports-{user}"));
        fs::create_dir_all(&locks).expect("the directory of port locks can be made");
        // Any start will do; different ones keep processes from trying the same ports in turn.
        let start = (RandomState::new().build_hasher().finish() % u64::from(COUNT)) as u16;
        for step in 0..COUNT {
            let port = FIRST + (start + step) % COUNT;
            let lock = File::create(locks.join(port.to_string())).expect("a port lock opens");
            if lock.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Self { port, _lock: lock };
            }
        }
        panic!("no free port among the {COUNT} from {FIRST}");
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.port
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_leased_twice_even_without_a_listener() {
        let leases: Vec<_> = (0..50).map(|_| PortLease::take()).collect();
        let mut ports: Vec<_> = leases.iter().map(PortLease::number).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), leases.len());
    }
}
