//! What the pipeline must not leave behind: copy slots, a second main slot, processes, connections.

use core::time::Duration;

use walferry_cluster::cluster::Cluster;
use walferry_cluster::wait::try_wait_for;

use crate::demo::Failure;
use crate::demo::pipeline::{Program, processes_with};
use crate::demo::schema::DATABASE;

/// A server notices within this time that a client has gone.
const LIMIT: Duration = Duration::from_secs(10);

/// One line for each thing that should not be there.
pub(super) fn find(program: &Program, cluster: &Cluster) -> Result<Vec<String>, Failure> {
    let main = program.status(false)?.slot;
    let mut last = Vec::new();
    let clean = try_wait_for(LIMIT, || {
        last = look(program, cluster, main.as_deref());
        last.is_empty().then_some(())
    });
    Ok(if clean.is_some() { Vec::new() } else { last })
}

fn look(program: &Program, cluster: &Cluster, main: Option<&str>) -> Vec<String> {
    let slots = cluster.psql(
        DATABASE,
        "SELECT slot_name, temporary, active FROM pg_replication_slots ORDER BY slot_name",
    );
    let mut slots: Vec<&str> = slots.lines().collect();
    let before = slots.len();
    let expected = main.map(|main| format!("{main}|f|f"));
    slots.retain(|slot| Some(*slot) != expected.as_deref());
    let mut left = Vec::new();
    if slots.len() == before {
        left.push(format!("the main slot {} is not there, or not idle", main.unwrap_or("")));
    }
    left.extend(slots.iter().map(|slot| format!("slot {slot} (name, temporary, active)")));
    left.extend(
        processes_with(&program.state()).iter().map(|pid| format!("process {pid} of the pipeline")),
    );
    let connections = cluster.psql(
        DATABASE,
        "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'walferry:%'",
    );
    left.extend(connections.lines().map(|name| format!("connection {name}")));
    left
}
