//! Asking for a server. There is no silent pass: a test that does not get one has failed.

use walferry_cluster::cluster::Cluster;
use walferry_cluster::config::ClusterConfig;
use walferry_cluster::installation::Installation;

#[track_caller]
pub(crate) fn require(major: u32) -> Cluster {
    config(major).start()
}

#[track_caller]
pub(crate) fn config(major: u32) -> ClusterConfig {
    match Installation::find(major) {
        Ok(found) => ClusterConfig::new(found),
        Err(missing) => panic!("{missing}; ./dev setup --all installs it"),
    }
}
