//! `walferry demo`: a PostgreSQL server of its own, a writer that does not rest, and the real
//! `walferry run`, killed again and again; in the end both sides are compared without walferry.
//!
//! Nothing here helps the pipeline: it is started as a person would start it, with default limits,
//! and looked at through `walferry status`.
//!
//! **Invariant:** whatever ends the demo, also Ctrl-C or SIGKILL, its server, its children and its
//! files are gone a moment later, unless they were to be kept.

mod compare;
mod kills;
mod leftovers;
mod pipeline;
mod report;
mod schema;
mod script;
mod writer;

use core::time::Duration;
use std::fmt::Display;
use std::process::Command;
use std::time::Instant;

use clap::Args;
use tempfile::TempDir;
use walferry_cluster::cluster::Cluster;
use walferry_cluster::config::ClusterConfig;
use walferry_cluster::installation::Installation;
use walferry_cluster::watchdog::Watchdog;

use crate::error::CliError;
use crate::exit_code::ExitCode;
use crate::output;
use kills::Kills;
use pipeline::Program;
use report::Figures;
use schema::{DATABASE, Sizes, TABLES};
use writer::Writer;

/// Versions of PostgreSQL, in the order in which they are looked for.
const MAJORS: [u32; 5] = [15, 18, 17, 16, 14];
/// How long the last run may take to catch up.
const CAUGHT_UP_MAX: Duration = Duration::from_secs(120);
/// Set to `1`, makes one row vanish before the comparison: a test sees that the demo turns red.
const LOSE: &str = "WALFERRY_DEMO_LOSE";

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Repeats all choices of an earlier demo [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How often the pipeline is killed
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u16).range(3..=200))]
    kills: u16,
    /// Rows loaded at first, over all tables
    #[arg(long, value_name = "N", default_value_t = 400_000, value_parser = clap::value_parser!(u64).range(10_000..=20_000_000))]
    rows: u64,
    /// Keep the server's data, the SQLite file, the state and the log
    #[arg(long)]
    keep: bool,
}

/// Text below the options of `walferry demo --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  Watch a database being copied and followed while the process is killed again and again:
    walferry demo

  The same choices as in an earlier demo, with everything left to look at:
    walferry demo --seed 4711 --keep

It needs the programs of PostgreSQL 14 or newer on this machine, and nothing else: it starts a server
of its own, on a port of its own, and takes everything away again.

Exit codes: 0 both sides are equal after all kills, 6 they are different, 1 something else is wrong.";

/// Why the demo could not go on.
#[derive(Debug)]
struct Failure {
    what: String,
    why: String,
}

impl Failure {
    fn new(what: impl Into<String>, why: impl Display) -> Self {
        Self { what: what.into(), why: why.to_string() }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode, CliError> {
    demo(args).map_err(|Failure { what, why }| {
        // The cause may be the end of a log, which wants its own lines.
        drop(output::print(&format!("\n{why}\n")));
        CliError {
            what,
            why: why.lines().next().unwrap_or_default().to_owned(),
            hints: Vec::new(),
            exit: ExitCode::Internal,
        }
    })
}

fn demo(args: &DemoArgs) -> Result<ExitCode, Failure> {
    let began = Instant::now();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let mut rng = fastrand::Rng::with_seed(seed);
    say(&format!("walferry demo --seed {seed} --kills {} --rows {}\n\n", args.kills, args.rows))?;

    let sizes = Sizes::of(args.rows);
    let mut stage = Stage::build(args.keep, sizes)?;
    let program = &stage.program;
    say(&report::field("pipeline", &program.shown()))?;

    let writer = Writer::start(seed, sizes, || stage.psql())?;
    say(&report::field(
        "writer",
        "inserts, updates, deletes, truncates and rolls back in 2 sessions, from here on",
    ))?;
    say(&report::kills_head())?;
    let plan = kills::plan(&mut rng, usize::from(args.kills), args.rows);
    let kills =
        match kills::make(program, &writer, &plan, |number, made| say(&report::kill(number, made)))
        {
            Ok(kills) => kills,
            // A writer that failed knows why better than whoever noticed it.
            Err(failure) => return Err(writer.stop().err().unwrap_or(failure)),
        };

    let written = writer.stop()?;
    let caught_up = stage.catch_up()?;
    say(&format!("\nwriter stopped; walferry run --until caught-up ended after {caught_up}\n"))?;
    let mut wrong = leftovers::find(program, &stage.cluster)?;
    if std::env::var_os(LOSE).is_some_and(|value| value == "1") {
        compare::lose_one_row(&program.sqlite(), &mut rng)?;
    }
    let equal = stage.compare()?;

    let figures = Figures {
        kills,
        required: Kills::required(plan.len()),
        planned: plan.len(),
        written,
        rows_copied: program.rows_copied(),
        elapsed: began.elapsed(),
    };
    say(&figures.text())?;
    wrong.extend(figures.shortfalls());
    stage.keep_if_wanted()?;
    conclude(equal, &wrong)
}

/// The verdict, for people and as exit code.
fn conclude(equal: bool, wrong: &[String]) -> Result<ExitCode, Failure> {
    for line in wrong {
        say(&report::field("WRONG", line))?;
    }
    let (verdict, exit) = if !equal {
        ("RED: source and destination are different", ExitCode::Different)
    } else if !wrong.is_empty() {
        ("RED: both sides are equal, but see above", ExitCode::Internal)
    } else {
        ("GREEN: nothing lost, nothing doubled, nothing left behind", ExitCode::Done)
    };
    say(&format!("\n{verdict}\n"))?;
    Ok(exit)
}

fn say(text: &str) -> Result<(), Failure> {
    output::print(text).map_err(|error| Failure::new("writing to standard output failed", error))
}

/// The server and the files.
struct Stage {
    // In this order they go: files last, so that nobody misses them.
    cluster: Cluster,
    program: Program,
    dir: Option<TempDir>,
    sweeper: Option<Watchdog>,
    keep: bool,
}

impl Stage {
    fn build(keep: bool, sizes: Sizes) -> Result<Self, Failure> {
        let installation = find_installation()?;
        let version = installation.version();
        let dir = tempfile::Builder::new()
            .prefix("walferry-demo-")
            .tempdir()
            .map_err(|error| Failure::new("the temporary directory cannot be written", error))?;
        let sweeper = (!keep).then(|| Watchdog::arm("rm -rf \"$1\"", [dir.path()]));
        let mut cluster = ClusterConfig::new(installation).start();
        if keep {
            cluster.keep();
        }
        let version = version.trim_start_matches("postgres (PostgreSQL) ").split(' ').next();
        let version = version.unwrap_or_default();
        say(&report::field(
            "server",
            &format!("PostgreSQL {version} of its own, on port {}", cluster.port()),
        ))?;

        let began = Instant::now();
        let sql = |database: &str, sql: &str| {
            cluster.try_psql(database, sql).map_err(|why| Failure::new("loading failed", why))
        };
        sql("postgres", &format!("CREATE DATABASE {DATABASE}"))?;
        sql(DATABASE, schema::CREATE)?;
        sql(DATABASE, &schema::load(sizes))?;
        let bytes = sql(DATABASE, &format!("SELECT pg_database_size('{DATABASE}')"))?;
        say(&report::loaded(sizes, bytes.parse().unwrap_or(0), began.elapsed()))?;

        let program = Program::new(cluster.url(DATABASE), dir.path().to_owned())?;
        Ok(Self { cluster, program, dir: Some(dir), sweeper, keep })
    }

    /// A psql of the server's version that stops at the first error and shows command tags.
    fn psql(&self) -> Command {
        let mut psql = self.cluster.installation().client_command("psql");
        psql.args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", DATABASE])
            .args(["-p", &self.cluster.port().to_string(), "-h"])
            .arg(self.cluster.socket_dir());
        psql
    }

    /// The last run: until everything written is at the destination.
    fn catch_up(&self) -> Result<String, Failure> {
        let mut running = self.program.run(&["--until", "caught-up"])?;
        let ended = running.wait(CAUGHT_UP_MAX);
        let age = crate::units::time(running.age());
        match ended {
            Some(status) if status.success() => Ok(age),
            Some(status) => {
                let why = format!("{status}\n{}", self.program.log_tail());
                Err(Failure::new("walferry run --until caught-up failed", why))
            }
            None => {
                let why = format!("it still runs after {age}\n{}", self.program.log_tail());
                Err(Failure::new("walferry run --until caught-up does not end", why))
            }
        }
    }

    /// Compares all tables; true if they are equal.
    fn compare(&self) -> Result<bool, Failure> {
        let file = compare::open(&self.program.sqlite())?;
        let mut equal = true;
        say(&report::tables_head())?;
        for table in &TABLES {
            let difference = compare::compare(table, self.psql(), &file)?;
            say(&report::table(table, &difference))?;
            equal &= difference.is_none();
        }
        for name in compare::foreign_tables(&file)? {
            say(&format!("{name}: DIFFERENT: the source has no such table\n"))?;
            equal = false;
        }
        Ok(equal)
    }

    fn keep_if_wanted(&mut self) -> Result<(), Failure> {
        if let Some(dir) = self.dir.take_if(|_| self.keep) {
            say(&report::field("kept", &dir.keep().display().to_string()))?;
            let data = self.cluster.data_dir();
            say(&report::field("", &format!("{} (its server is stopped)", data.display())))?;
        }
        Ok(())
    }
}

/// Where the demo ends early, what was to be kept is kept as well.
impl Drop for Stage {
    fn drop(&mut self) {
        match self.dir.take() {
            Some(dir) if self.keep => drop(dir.keep()),
            // What cannot be removed here the watchdog removes, or nobody can.
            Some(dir) => drop(dir.close()),
            None => {}
        }
        if let Some(sweeper) = self.sweeper.take() {
            sweeper.disarm();
        }
    }
}

fn find_installation() -> Result<Installation, Failure> {
    let mut found = MAJORS.into_iter().map(Installation::find);
    let Some(first) = found.next() else { unreachable!("there are versions to look for") };
    first.or_else(|missing| found.find_map(Result::ok).ok_or(missing)).map_err(|missing| {
        Failure::new(
            "there is no PostgreSQL on this machine",
            format!("{missing}; ./dev setup installs it"),
        )
    })
}
