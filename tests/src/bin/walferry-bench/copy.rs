//! The copy of one table, beside `psql -c 'COPY .. TO STDOUT'`.

use crate::BenchArgs;
use crate::counts::{self, Counts};
use crate::measure::measure;
use crate::server::{Server, say};
use crate::table::{Contender, Results, Work};

/// A table to copy.
struct Subject {
    name: &'static str,
    columns: &'static [&'static str],
    /// Rows, as a share of those asked for, in percent.
    share: u64,
    create: &'static str,
    fill: fn(u64) -> String,
}

/// The rows of the largest table.
const ROWS: u64 = 10_000_000;

const SUBJECTS: [Subject; 2] = [
    Subject {
        name: "pgbench_accounts",
        columns: &["aid", "bid", "abalance", "filler"],
        share: 50,
        create: "CREATE TABLE pgbench_accounts (
            aid integer PRIMARY KEY, bid integer, abalance integer, filler char(84))",
        fill: |rows| {
            format!(
                "INSERT INTO pgbench_accounts SELECT n, n / 100000 + 1, nullif(n % 1000, 7), '' \
                 FROM generate_series(1, {rows}) AS n"
            )
        },
    },
    Subject {
        name: "narrow",
        columns: &["id", "value"],
        share: 100,
        create: "CREATE TABLE narrow (id bigint PRIMARY KEY, value integer)",
        fill: |rows| {
            format!(
                "INSERT INTO narrow SELECT n, nullif(n % 100000, 0) \
                 FROM generate_series(1, {rows}) AS n"
            )
        },
    },
];

/// Runs all contenders on all tables.
pub(crate) fn run(args: &BenchArgs) -> Results {
    let server = Server::start(args.major);
    let rows = args.rows(ROWS);
    let mut results = Results::default();
    for subject in &SUBJECTS {
        let rows = rows * subject.share / 100;
        let name = subject.name;
        server.sql(subject.create);
        server.load(&format!("{name}, {rows} rows"), &(subject.fill)(rows));
        // Hint bits are set and pages are clean: the first contender does not pay for the others.
        server.sql(&format!("VACUUM ANALYZE {name}"));
        server.sql("CHECKPOINT");
        server.sql(&format!("CREATE PUBLICATION {name} FOR TABLE {name}"));
        let expected =
            server.counts(&format!("SELECT {} FROM {name}", counts::sums(subject.columns)));
        let work = contest(&server, subject, expected, args.runs());
        say(&work.markdown());
        server.sql(&format!("DROP PUBLICATION {name}; DROP TABLE {name}"));
        results.0.push(work);
    }
    results
}

fn contest(server: &Server, subject: &Subject, expected: Counts, runs: u16) -> Work {
    let name = subject.name;
    let mut psql = Contender::new("psql COPY to /dev/null");
    let mut null = Contender::new("walferry into null:");
    let mut sqlite = Contender::new("walferry into sqlite:");
    null.is_judged = true;
    for _ in 0..runs {
        let log = server.path("psql.log");
        let mut command = server.client("psql");
        command.args(["-X", "-c", &format!("COPY {name} TO STDOUT")]);
        psql.runs.push(measure(command, &log).unwrap_or_else(|why| panic!("{why}")));

        let log = server.path("null.log");
        null.runs.push(copy_with(server, name, "null:", &log));
        null.counted.push(Counts::of_log(&log, "copied rows"));

        let file = server.path("copy.db");
        let destination = format!("sqlite:{}", file.display());
        sqlite.runs.push(copy_with(server, name, &destination, &server.path("sqlite.log")));
        remove(&file);
    }
    Work {
        name: format!("copy of {name}, {} rows, one connection", expected.rows),
        unit: "rows",
        expected,
        contenders: vec![psql, null, sqlite],
        cpu_micros_max: 0.35,
    }
}

/// A whole first run, with its slot, to caught-up.
fn copy_with(
    server: &Server,
    publication: &str,
    destination: &str,
    log: &std::path::Path,
) -> crate::measure::Usage {
    let state = server.path("copy-state");
    let command = server.walferry(publication, destination, &state);
    let usage = measure(command, log).unwrap_or_else(|why| panic!("{why}"));
    // The only one there is.
    server.drop_slot(&server.sql("SELECT slot_name FROM pg_replication_slots"));
    drop(std::fs::remove_dir_all(&state));
    usage
}

/// Removes a SQLite file and what stands beside it.
pub(crate) fn remove(file: &std::path::Path) {
    for suffix in ["", "-wal", "-shm"] {
        drop(std::fs::remove_file(format!("{}{suffix}", file.display())));
    }
}
