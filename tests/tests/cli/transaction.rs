//! A transaction of somebody else that stays open.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use walferry_tests::wait::wait_until;

use crate::world::{LIMIT, World};

/// Open until it is dropped, which rolls it back.
pub(crate) struct Transaction(Child);

impl Transaction {
    /// Begins it, and waits until the statement is done.
    #[track_caller]
    pub(crate) fn begin(world: &World, statement: &str) -> Self {
        let mut psql: Command = world.cluster.installation().client_command("psql");
        psql.args(["-X", "-q", "-U", "postgres", "-d", "postgres", "-h"])
            .arg(world.cluster.socket_dir())
            .args(["-p", &world.cluster.port().to_string()])
            .env("PGAPPNAME", "somebody")
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let mut child = psql.spawn().unwrap();
        let pipe = child.stdin.as_mut().unwrap();
        pipe.write_all(format!("BEGIN; {statement};\n").as_bytes()).unwrap();
        pipe.flush().unwrap();
        let held = Self(child);
        wait_until(LIMIT, "the transaction to be open", || {
            let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'somebody' \
                        AND state = 'idle in transaction' AND query <> 'BEGIN;'";
            world.sql(open) == "1"
        });
        held
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.0.stdin.take());
        drop(self.0.wait());
    }
}
