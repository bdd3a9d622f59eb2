//! The changes of one slot, beside `pg_recvlogical` and a raw drain.
//!
//! Every contender gets the same WAL: all slots are made before the load and copied for each run.
//! walferry has a slot of its own name, which is made by a first run on the empty table; its state
//! and its file of that moment are put back before each run.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::BenchArgs;
use crate::copy::remove;
use crate::counts::Counts;
use crate::measure::{Usage, copy_dir, measure};
use crate::server::{DATABASE, Server, say};
use crate::table::{Contender, Results, Work};

const CHANGES: u64 = 2_000_000;
/// Of a transaction: inserts, updates, deletes.
const MIX: [u64; 3] = [60, 30, 10];

const CREATE: &str = "
CREATE TABLE mixed (
    id bigint PRIMARY KEY, account integer NOT NULL, amount numeric(12, 2), note text,
    at timestamptz NOT NULL, flag boolean);
CREATE PUBLICATION mixed FOR TABLE mixed;
CREATE TABLE expected (rows bigint, vals bigint, nulls bigint, bytes bigint);
";

/// Makes the changes and sums up, beside them, what a reader must see of each.
///
/// A delete shows its old row with the key alone, all other columns NULL.
fn load(transactions: u64) -> String {
    let [inserts, updates, deletes] = MIX;
    let whole = crate::counts::sums(&["id", "account", "amount", "note", "at", "flag"]);
    let sum = |changes: &str, sums: &str| {
        format!(
            "WITH changed AS ({changes} RETURNING *) \
             SELECT ARRAY[{sums}]::bigint[] INTO found FROM changed;
             total := ARRAY[total[1] + found[1], total[2] + found[2], \
                            total[3] + found[3], total[4] + found[4]];"
        )
    };
    let insert = sum(
        &format!(
            "INSERT INTO mixed SELECT t * {inserts} + n, n % 7, (t % 5000) * 0.01 + n, \
             CASE WHEN n % 3 > 0 THEN 'note ' || repeat('x', n % 40) END, \
             TIMESTAMPTZ '2026-01-01 00:00:00Z' + t * INTERVAL '1 second', n % 2 = 0 \
             FROM generate_series(1, {inserts}) AS n"
        ),
        &whole,
    );
    let update = sum(
        &format!(
            "UPDATE mixed SET amount = amount + 1, flag = NULL \
             WHERE id > t * {inserts} AND id <= t * {inserts} + {updates}"
        ),
        &whole,
    );
    let delete = sum(
        &format!(
            "DELETE FROM mixed WHERE id > (t + 1) * {inserts} - {deletes} AND id <= (t + 1) * {inserts}"
        ),
        "count(*), count(*), count(*) * 5, coalesce(sum(octet_length(format('%s', id))), 0)",
    );
    format!(
        "DO $$
         DECLARE
             t bigint;
             found bigint[];
             total bigint[] := ARRAY[0, 0, 0, 0];
         BEGIN
             FOR t IN 0..{transactions} - 1 LOOP
                 {insert}
                 {update}
                 {delete}
                 COMMIT;
             END LOOP;
             INSERT INTO expected VALUES (total[1], total[2], total[3], total[4]);
         END
         $$;"
    )
}

/// Runs all contenders on the same WAL.
pub(crate) fn run(args: &BenchArgs) -> Results {
    let transactions = (args.rows(CHANGES) / MIX.iter().sum::<u64>()).max(1);
    let server = Server::start(args.major);
    server.sql(CREATE);
    let null = Prepared::new(&server, "null", "null:");
    let file = server.path("stream.db");
    let sqlite = Prepared::new(&server, "sqlite", &format!("sqlite:{}", file.display()));
    server.sql("SELECT pg_create_logical_replication_slot('base', 'pgoutput')");
    server.load(&format!("{transactions} transactions"), &load(transactions));
    let expected = server.counts("SELECT * FROM expected");
    // Commits did not wait for their WAL to be flushed; from here on all of it is.
    server.sql("CHECKPOINT");
    let until = server.sql("SELECT pg_current_wal_flush_lsn()");
    let work = contest(&server, &null, &sqlite, expected, &until, args.runs());
    say(&work.markdown());
    Results(vec![work])
}

fn contest(
    server: &Server,
    null: &Prepared,
    sqlite: &Prepared,
    expected: Counts,
    until: &str,
    runs: u16,
) -> Work {
    let mut raw = Contender::new("raw drain");
    let mut pausing = Contender::new("raw drain that pauses 2 ms after small reads");
    let mut recvlogical = Contender::new("pg_recvlogical to /dev/null");
    let mut into_null = Contender::new("walferry into null:");
    let mut into_sqlite = Contender::new("walferry into sqlite:");
    into_null.is_judged = true;
    for _ in 0..runs {
        raw.runs.push(drain(server, until, expected.rows, &[]));
        pausing.runs.push(drain(server, until, expected.rows, &["--pause"]));
        recvlogical.runs.push(pg_recvlogical(server, until));
        into_null.runs.push(null.run(server));
        into_null.counted.push(Counts::of_log(&null.log(server), "changes"));
        into_sqlite.runs.push(sqlite.run(server));
    }
    let per_transaction: u64 = MIX.iter().sum();
    Work {
        name: format!("stream of {} changes, {per_transaction} per transaction", expected.rows),
        unit: "changes",
        expected,
        contenders: vec![raw, pausing, recvlogical, into_null, into_sqlite],
        cpu_micros_max: 2.0,
    }
}

/// Copies the slot that stands before the load, has `command` read it and drops it.
fn read_copy(server: &Server, mut command: Command, log: &Path) -> Usage {
    server.sql("SELECT pg_copy_logical_replication_slot('base', 'one_run')");
    command.args(["--slot", "one_run"]);
    let usage = measure(command, log).unwrap_or_else(|why| panic!("{why}"));
    server.drop_slot("one_run");
    usage
}

fn drain(server: &Server, until: &str, changes: u64, more: &[&str]) -> Usage {
    let end = server.sql(&format!("SELECT '{until}'::pg_lsn - '0/0'"));
    let own = std::env::current_exe().unwrap_or_else(|error| panic!("no path of this: {error}"));
    let mut command = Command::new(own);
    command.env_clear().args(["drain", "--port", &server.port().to_string()]);
    command.args(["--database", DATABASE, "--publication", "mixed", "--until", &end]).args(more);
    let log = server.path("drain.log");
    let usage = read_copy(server, command, &log);
    let seen = std::fs::read_to_string(log).unwrap_or_default();
    assert_eq!(seen.trim(), changes.to_string(), "changes that the raw drain saw");
    usage
}

fn pg_recvlogical(server: &Server, until: &str) -> Usage {
    let mut command = server.client("pg_recvlogical");
    command.args(["--start", "--no-loop", "-f", "/dev/null", "--endpos", until]);
    command.args(["-o", "proto_version=1", "-o", "publication_names=mixed"]);
    read_copy(server, command, &server.path("pg_recvlogical.log"))
}

/// A walferry whose table is copied, and which has not yet read what is to come.
struct Prepared {
    name: &'static str,
    destination: String,
    /// Name of its main slot.
    slot: String,
}

impl Prepared {
    fn new(server: &Server, name: &'static str, destination: &str) -> Self {
        let mut prepared = Self { name, destination: destination.to_owned(), slot: String::new() };
        prepared.measured(server);
        prepared.slot = server
            .sql("SELECT slot_name FROM pg_replication_slots WHERE slot_name NOT LIKE 'kept%'");
        server.sql(&format!(
            "SELECT pg_copy_logical_replication_slot('{}', 'kept_{name}')",
            prepared.slot
        ));
        server.drop_slot(&prepared.slot);
        let mut kept = copy_dir(&prepared.state(server), &prepared.kept(server));
        if let Some(file) = prepared.file() {
            kept = kept.and(std::fs::copy(file, prepared.kept_file(server)).map(drop));
        }
        kept.unwrap_or_else(|error| panic!("the state of {name} cannot be kept: {error}"));
        prepared
    }

    /// Puts everything back to before the load, and reads the load.
    fn run(&self, server: &Server) -> Usage {
        server.sql(&format!(
            "SELECT pg_copy_logical_replication_slot('kept_{}', '{}')",
            self.name, self.slot
        ));
        let state = self.state(server);
        drop(std::fs::remove_dir_all(&state));
        let mut back = copy_dir(&self.kept(server), &state);
        if let Some(file) = self.file() {
            remove(Path::new(file));
            back = back.and(std::fs::copy(self.kept_file(server), file).map(drop));
        }
        back.unwrap_or_else(|error| panic!("the state of {} is not put back: {error}", self.name));
        let usage = self.measured(server);
        server.drop_slot(&self.slot);
        usage
    }

    fn measured(&self, server: &Server) -> Usage {
        let command = server.walferry("mixed", &self.destination, &self.state(server));
        measure(command, &self.log(server)).unwrap_or_else(|why| panic!("{why}"))
    }

    fn state(&self, server: &Server) -> PathBuf {
        server.path(&format!("{}-state", self.name))
    }

    fn kept(&self, server: &Server) -> PathBuf {
        server.path(&format!("{}-kept", self.name))
    }

    fn kept_file(&self, server: &Server) -> PathBuf {
        server.path(&format!("{}-kept.db", self.name))
    }

    fn log(&self, server: &Server) -> PathBuf {
        server.path(&format!("{}.log", self.name))
    }

    fn file(&self) -> Option<&str> {
        self.destination.strip_prefix("sqlite:")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_ends_after_its_last_transaction() {
        let sql = load(7);
        assert!(sql.contains("FOR t IN 0..7 - 1 LOOP"), "{sql}");
        assert_eq!(sql.matches("RETURNING *").count(), MIX.len());
    }
}
