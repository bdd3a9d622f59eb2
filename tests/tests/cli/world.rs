//! A source, a directory to run in, and the right way to run: what every test starts from.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tempfile::TempDir;
use walferry_tests::cluster::Cluster;
use walferry_tests::config::ClusterConfig;
use walferry_tests::process::{Finished, Running, Walferry};
use walferry_tests::skip;
use walferry_tests::wait::wait_until;
use walferry_tests::watchdog::Watchdog;

use crate::shown::shown;

/// Longest time for anything that shall happen, on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// U-02 promises 5 s for a first start that cannot work; twice that, because the machine is shared.
const FIRST_START: Duration = Duration::from_secs(10);

/// A table is ready once a checkpoint has passed its handover; on an idle source that takes as long.
pub(crate) const EAGER: [&str; 2] = ["--set", "idle_checkpoint_ms=100"];

/// Few rows are held here, so that most of a large copy waits at the server.
pub(crate) const TIGHT: [&str; 2] = ["--set", "memory_bytes=33554432"];

const SCHEMA: &str = "
    CREATE TABLE orders (id int PRIMARY KEY, note text);
    CREATE TABLE items (id int PRIMARY KEY, note text);
    INSERT INTO orders SELECT n, repeat('o', n) FROM generate_series(1, 50) n;
    INSERT INTO items SELECT n, nullif(n % 5, 0)::text FROM generate_series(1, 30) n;
    CREATE PUBLICATION app FOR TABLE orders, items;
    CREATE ROLE ferry LOGIN REPLICATION;
    GRANT SELECT ON ALL TABLES IN SCHEMA public TO ferry;";

/// A third table, large enough that its copy is still under way when somebody looks.
pub(crate) const LARGE: &str = "
    CREATE TABLE large (id int PRIMARY KEY, note text);
    INSERT INTO large SELECT n, repeat(md5(n::text), 15) FROM generate_series(1, 200000) n;
    ALTER PUBLICATION app ADD TABLE large;";

/// A server with two published tables, and a directory for state and destination.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    dir: TempDir,
}

/// A call of `walferry run` to be: right, but for what a test changes.
pub(crate) struct Call<'a> {
    world: &'a World,
    source: String,
    publication: String,
    destination: String,
    state: String,
    more: Vec<String>,
    env: Vec<(String, String)>,
}

/// Everything that outlives a run: files but for the lock and its owner, and slots.
#[derive(Debug, PartialEq)]
pub(crate) struct Durable {
    files: BTreeMap<PathBuf, Vec<u8>>,
    pub(crate) slots: String,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::on(skip::config(15))
    }

    pub(crate) fn on(config: ClusterConfig) -> Self {
        let world = Self::empty(config);
        world.sql(SCHEMA);
        world
    }

    /// Without tables.
    pub(crate) fn empty(config: ClusterConfig) -> Self {
        Self { cluster: config.start(), dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs statements at the source as a superuser.
    #[track_caller]
    pub(crate) fn sql(&self, sql: &str) -> String {
        self.cluster.psql("postgres", sql)
    }

    /// `walferry` with any arguments, in the directory.
    pub(crate) fn walferry(&self, args: &[&str]) -> Walferry {
        Walferry::new(args).dir(self.dir.path())
    }

    pub(crate) fn call(&self) -> Call<'_> {
        Call {
            world: self,
            source: self.cluster.url("postgres"),
            publication: "app".to_owned(),
            destination: "sqlite:copy.db".to_owned(),
            state: "file:state".to_owned(),
            more: Vec::new(),
            env: Vec::new(),
        }
    }

    /// The right call, as the role without rights of a superuser.
    pub(crate) fn call_as_ferry(&self) -> Call<'_> {
        let url = self.cluster.url("postgres").replace("postgres://postgres@", "postgres://ferry@");
        self.call().source(url)
    }

    /// The right call makes the destination equal to the source.
    #[track_caller]
    pub(crate) fn works(&self) {
        self.call().works();
    }

    pub(crate) fn durable(&self) -> Durable {
        let mut files = BTreeMap::new();
        collect(self.dir.path(), self.dir.path(), &mut files);
        let slots = "SELECT slot_name, plugin, restart_lsn, confirmed_flush_lsn \
                     FROM pg_replication_slots ORDER BY 1";
        Durable { files, slots: self.sql(slots) }
    }

    /// A mistake at a first start leaves nothing but an unused state directory.
    #[track_caller]
    pub(crate) fn assert_untouched(&self) {
        let found = self.durable();
        let names: Vec<_> = found.files.keys().collect();
        assert!(found.files.is_empty(), "left over: {names:?}");
        assert_eq!(found.slots, "", "slots left over");
    }

    /// No slot but the main slots of as many pipelines.
    #[track_caller]
    pub(crate) fn assert_main_slots(&self, count: usize) {
        wait_until(LIMIT, "copy slots to be gone", || {
            let slots = self.sql("SELECT slot_name FROM pg_replication_slots");
            slots.lines().count() == count && slots.lines().all(|slot| slot.len() == 33)
        });
    }

    /// Published rows and rows of the SQLite file, compared as multisets.
    #[track_caller]
    pub(crate) fn assert_equal_tables(&self, file: &str, tables: &[&str]) {
        for table in tables {
            let source = self.sql(&format!("SELECT * FROM {table}"));
            let source: Vec<_> = source.lines().map(str::to_owned).collect();
            assert_eq!(sorted(source), self.rows(file, table), "table {table}");
        }
    }

    /// The rows of a table of a SQLite file as the source would print them, sorted.
    #[track_caller]
    pub(crate) fn rows(&self, file: &str, table: &str) -> Vec<String> {
        let connection = Connection::open(self.path(file)).unwrap();
        let mut statement = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| {
            let values: Result<Vec<_>, _> =
                (0..columns).map(|n| row.get_ref(n).map(cell)).collect();
            Ok(values?.join("|"))
        });
        sorted(rows.unwrap().map(Result::unwrap).collect())
    }

    /// Waits until a row, as [`World::rows`] prints it, is in a table of a SQLite file. The stream
    /// is in order, so what was committed before it is there as well.
    #[track_caller]
    pub(crate) fn wait_for_row(&self, file: &str, table: &str, row: &str) {
        wait_until(LIMIT, &format!("{row} in {table}"), || {
            self.rows(file, table).iter().any(|found| found == row)
        });
    }

    /// What a user sees of a run that has ended.
    pub(crate) fn shown(&self, finished: &Finished) -> String {
        shown(finished, &self.stand_ins())
    }

    pub(crate) fn stand_ins(&self) -> Vec<(String, &'static str)> {
        let shown = |path: &Path| path.to_str().unwrap().to_owned();
        vec![
            (shown(self.cluster.socket_dir()), "[server]"),
            (shown(self.dir.path()), "[dir]"),
            (self.cluster.port().to_string(), "[port]"),
        ]
    }

    /// The user who runs the servers when root runs the tests; ourselves otherwise.
    pub(crate) fn plain_user(&self) -> (u32, u32) {
        let data = fs::metadata(self.cluster.data_dir()).unwrap();
        (data.uid(), data.gid())
    }

    /// Waits until every table streams, as `status` tells it.
    #[track_caller]
    pub(crate) fn wait_until_ready(&self, state: &str) {
        wait_until(LIMIT, "all tables to be ready", || {
            let status = self.status(state);
            let tables = status["tables"].as_array().expect("a list of tables");
            !tables.is_empty() && tables.iter().all(|table| table["phase"] == "ready")
        });
    }

    /// Waits until rows of [`LARGE`] are being read; with [`TIGHT`] that takes a while.
    #[track_caller]
    pub(crate) fn wait_for_large_copy(&self, running: &mut Running) {
        wait_until(LIMIT, "the copy of the large table to have rows", || {
            assert!(!running.has_ended(), "it ended: {}", running.stderr());
            let reading =
                "SELECT count(*) FROM pg_stat_progress_copy WHERE tuples_processed > 1000";
            self.sql(reading) != "0"
        });
    }

    /// What `status` tells as JSON.
    #[track_caller]
    pub(crate) fn status(&self, state: &str) -> serde_json::Value {
        let asked = self.walferry(&["status", "--json", "--state", state]).run(LIMIT);
        serde_json::from_str(&asked.stdout).expect("status prints JSON")
    }

    /// A directory that belongs to this user, below the one that everybody may pass.
    pub(crate) fn home_of(&self, uid: u32, gid: u32) -> PathBuf {
        fs::set_permissions(self.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let home = self.path("user");
        fs::create_dir(&home).unwrap();
        if fs::metadata(&home).unwrap().uid() != uid {
            chown(&home, Some(uid), Some(gid)).unwrap();
        }
        home
    }

    /// The record's slot, as `status` tells it.
    pub(crate) fn slot(&self, state: &str) -> String {
        self.status(state)["pipeline"]["slot"].as_str().unwrap().to_owned()
    }
}

impl Call<'_> {
    pub(crate) fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// Adds parameters such as `sslmode=require` to the source.
    pub(crate) fn parameters(mut self, parameters: &str) -> Self {
        self.source = format!("{}?{parameters}", self.source);
        self
    }

    pub(crate) fn publication(mut self, publication: &str) -> Self {
        publication.clone_into(&mut self.publication);
        self
    }

    pub(crate) fn destination(mut self, destination: &str) -> Self {
        destination.clone_into(&mut self.destination);
        self
    }

    pub(crate) fn state(mut self, state: &str) -> Self {
        state.clone_into(&mut self.state);
        self
    }

    pub(crate) fn more(mut self, more: &[&str]) -> Self {
        self.more.extend(more.iter().map(|&arg| arg.to_owned()));
        self
    }

    pub(crate) fn caught_up(self) -> Self {
        self.more(&["--until", "caught-up"])
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The arguments of the command.
    pub(crate) fn args(&self) -> Vec<&str> {
        let needed = ["run", "--source", &self.source, "--publication", &self.publication];
        let places = ["--destination", &self.destination, "--state", &self.state];
        let more = self.more.iter().map(String::as_str);
        needed.into_iter().chain(places).chain(more).collect()
    }

    /// `walferry recreate` with the arguments of the run.
    pub(crate) fn recreate(&self) -> Finished {
        let mut args = self.args();
        args[0] = "recreate";
        self.world.walferry(&args).run(LIMIT)
    }

    fn command(&self) -> Walferry {
        let command = self.world.walferry(&self.args());
        self.env.iter().fold(command, |command, (name, value)| command.env(name, value))
    }

    pub(crate) fn spawn(&self) -> Running {
        self.command().spawn()
    }

    pub(crate) fn run(&self) -> Finished {
        self.command().run(LIMIT)
    }

    /// A first start that cannot work ends soon, says so once and leaves nothing.
    #[track_caller]
    pub(crate) fn fails_at_once(&self) -> Finished {
        let start = Instant::now();
        let finished = self.run();
        assert!(start.elapsed() < FIRST_START, "took {:?}", start.elapsed());
        assert!(!finished.stderr.contains("tried again"), "{}", finished.stderr);
        self.world.assert_untouched();
        finished
    }

    /// Runs to the end of what there is, and compares.
    #[track_caller]
    pub(crate) fn works(self) {
        let world = self.world;
        let file = self.destination.strip_prefix("sqlite:").expect("a SQLite file").to_owned();
        let finished = self.caught_up().run();
        assert_eq!(finished.code, Some(0), "{}", world.shown(&finished));
        world.assert_equal_tables(&file, &["orders", "items"]);
    }

    /// Starts and waits until both tables stream.
    #[track_caller]
    pub(crate) fn streams(self) -> Running {
        let world = self.world;
        let state = self.state.clone();
        let mut running = self.more(&EAGER).spawn();
        running.wait_for_stderr("streaming", LIMIT);
        world.wait_until_ready(&state);
        running
    }
}

impl Durable {
    pub(crate) fn files(&self) -> Vec<&str> {
        self.files.keys().map(|path| path.to_str().unwrap()).collect()
    }
}

/// A small disk of its own. Mounting needs root; without it a test of full disks fails.
pub(crate) struct Disk {
    path: PathBuf,
    watchdog: Option<Watchdog>,
}

impl Disk {
    #[track_caller]
    pub(crate) fn mount(path: &Path, size: &str) -> Self {
        fs::create_dir(path).unwrap();
        // It must not outlive a test that is killed.
        let watchdog = Some(Watchdog::arm("umount -l \"$1\"; rmdir \"$1\"", [path]));
        let disk = Self { path: path.to_owned(), watchdog };
        disk.mounted(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        disk
    }

    /// Makes it larger.
    #[track_caller]
    pub(crate) fn grow(&self, size: &str) {
        self.mounted(&["-o", &format!("remount,size={size}")]);
    }

    #[track_caller]
    fn mounted(&self, args: &[&str]) {
        let status = Command::new("mount").args(args).arg(&self.path).status();
        let mounted = status.is_ok_and(|status| status.success());
        assert!(mounted, "a disk that can be full is needed: mount (as root) failed");
    }

    /// Leaves not a byte.
    pub(crate) fn fill(&self) {
        let mut filler = File::create(self.filler()).unwrap();
        while filler.write_all(&[0; 512]).is_ok() {}
    }

    pub(crate) fn free(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The watchdog unmounts.
        drop(self.watchdog.take());
    }
}

/// The SQL of a hint, from `start` to its last semicolon.
#[track_caller]
pub(crate) fn hinted(finished: &Finished, start: &str) -> String {
    let lines = finished.stderr.lines().map(|line| match serde_json::from_str(line) {
        Ok(serde_json::Value::Object(log)) => log["fields"]["message"].as_str().unwrap().to_owned(),
        Ok(_) | Err(_) => line.to_owned(),
    });
    let mut sql = lines.filter_map(|line| {
        let hint = line.strip_prefix("hint: ")?;
        let from = hint.find(start)?;
        let to = hint.rfind(';')?;
        Some(hint[from..=to].to_owned())
    });
    match sql.next_back() {
        Some(sql) => sql,
        None => panic!("no hint with {start:?} in:\n{}", finished.stderr),
    }
}

fn collect(root: &Path, dir: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        let name = entry.file_name();
        if entry.file_type().unwrap().is_dir() {
            collect(root, &path, files);
        } else if name != "lock" && name != "owner" && name != "walferry" {
            let bytes = fs::read(&path).unwrap();
            files.insert(path.strip_prefix(root).unwrap().to_owned(), bytes);
        }
    }
}

fn cell(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "[null]".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        ValueRef::Blob(bytes) => format!("{bytes:?}"),
    }
}

fn sorted(mut rows: Vec<String>) -> Vec<String> {
    rows.sort();
    rows
}
