//! The real binary with a cleared environment: what people see, and the exit code. Needs no server.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use walferry_store::{FileStore, Owned, OwnerToken, Store};

/// A directory to run in, and the variables the process gets.
struct World {
    dir: TempDir,
    env: Vec<(&'static str, &'static str)>,
}

impl World {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), env: Vec::new() }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Runs the binary; shows exit code, standard output and standard error.
    fn walferry(&self, args: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_walferry"))
            .args(args)
            .current_dir(self.path())
            .env_clear()
            .env("USER", "me")
            .env("HOME", self.path())
            .envs(self.env.iter().copied())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| {
            String::from_utf8_lossy(bytes).replace(&*self.path().to_string_lossy(), "[dir]")
        };
        let mut shown = format!("exit {}\n", output.status.code().unwrap());
        for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            if !bytes.is_empty() {
                shown.push_str(&format!("--- {name}\n{}", text(bytes)));
            }
        }
        shown
    }

    /// `run` with everything it needs, and `more`.
    fn run(&self, more: &[&str]) -> String {
        let needed = ["run", "--source", "postgres://me@localhost:1/shop", "--publication", "app"];
        let mut args = needed.to_vec();
        if !more.contains(&"--destination") {
            args.extend(["--destination", "null:"]);
        }
        args.extend(more);
        self.walferry(&args)
    }
}

#[test]
fn help_has_examples_for_each_verb() {
    let world = World::new();
    insta::assert_snapshot!("help", world.walferry(&["--help"]));
    for verb in ["run", "recreate", "status", "retry", "resync", "completion", "version"] {
        insta::assert_snapshot!(format!("help_{verb}"), world.walferry(&[verb, "--help"]));
    }
}

#[test]
fn without_arguments_there_is_help_and_failure() {
    let shown = World::new().walferry(&[]);
    assert!(shown.starts_with("exit 2\n--- stderr\n"), "{shown}");
    assert!(shown.contains("Usage: walferry <COMMAND>"), "{shown}");
}

#[test]
fn the_version_is_printed() {
    let world = World::new();
    insta::assert_snapshot!(world.walferry(&["version"]), @r"
    exit 0
    --- stdout
    walferry 0.1.0 (state format 1)
    ");
    insta::assert_snapshot!(world.walferry(&["version", "--json"]), @r#"
    exit 0
    --- stdout
    {"state_format":1,"version":"0.1.0"}
    "#);
    let completion = world.walferry(&["completion", "bash"]);
    assert!(completion.starts_with("exit 0\n--- stdout\n_walferry() {"), "{completion}");
}

#[test]
fn a_wrong_command_line_says_what_is_meant() {
    let world = World::new();
    insta::assert_snapshot!(world.walferry(&["rnu"]), @r"
    exit 2
    --- stderr
    error: unrecognized subcommand 'rnu'

    Usage: walferry <COMMAND>

    For more information, try '--help'.
    ");
    insta::assert_snapshot!(world.walferry(&["run"]), @r"
    exit 2
    --- stderr
    error: the following required arguments were not provided:
      --source <URL>
      --publication <NAME>
      --destination <URL>

    Usage: walferry run --source <URL> --publication <NAME> --destination <URL>

    For more information, try '--help'.
    ");
    insta::assert_snapshot!(world.run(&["--until", "0/1/2"]), @r"
    exit 2
    --- stderr
    error: invalid value '0/1/2' for '--until <caught-up|LSN>': expected caught-up, or a WAL position such as 0/1523030

    For more information, try '--help'.
    ");
    insta::assert_snapshot!(world.run(&["--set", "batch_ms"]), @r"
    exit 2
    --- stderr
    error: invalid value 'batch_ms' for '--set <KEY=VALUE>': expected KEY=VALUE, for example batch_ms=20

    For more information, try '--help'.
    ");
}

#[test]
fn a_refused_setting_names_what_is_allowed() {
    let world = World::new();
    insta::assert_snapshot!(world.run(&["--set", "batch_byte=1"]), @r"
    exit 2
    --- stderr
    error: a setting was refused
    cause: unknown setting batch_byte, did you mean batch_bytes?
    hint: settings are slot_prefix, copy_concurrency, copy_connections_per_table, batch_ms, batch_events, batch_bytes, memory_bytes, frame_bytes, feedback_ms, source_silence_ms, idle_checkpoint_ms, idle_checkpoint_bytes, flush_batches, flush_ms, fence_bytes, fence_ms, fence_ms_max, horizon_step_bytes, listing_ms, heartbeat_ms, main_retries_max, quarantines_per_hour, retries_max, retry_ms, retry_ms_max, connect_ms, query_ms, slot_creation_ms, slot_busy_ms, destination_ms, store_ms, stop_ms, slot_failover, slot_loss, promotion_loss, membership_change, silent_rewrite, copy
    ");
    insta::assert_snapshot!(world.run(&["--set", "batch_ms=-1"]), @r"
    exit 2
    --- stderr
    error: a setting was refused
    cause: batch_ms = -1 is not allowed: a whole number in 0..60000
    ");
    insta::assert_snapshot!(world.run(&["--set", "feedback_ms=50000"]), @r"
    exit 2
    --- stderr
    error: a setting was refused
    cause: source_silence_ms = 60000 is not allowed: at least twice feedback_ms = 50000
    ");
    insta::assert_snapshot!(world.run(&["--destination", "sqllite:x"]), @r#"
    exit 2
    --- stderr
    error: --destination was refused
    cause: destination scheme "sqllite" is not known; known are sqlite:PATH, jsonl:PATH, jsonl:- (standard output), null:
    hint: for example --destination sqlite:copy.db
    "#);
    insta::assert_snapshot!(world.run(&["--destination", "jsonl:"]), @r"
    exit 2
    --- stderr
    error: --destination was refused
    cause: destination jsonl: names no file; write jsonl:PATH
    hint: for example --destination sqlite:copy.db
    ");
    insta::assert_snapshot!(world.run(&["--destination", "sqlite:walferry-app/x"]), @r"
    exit 2
    --- stderr
    error: --destination was refused
    cause: sqlite:walferry-app/x lies inside the state file:./walferry-app
    hint: the state directory is for walferry alone: name another path
    ");
    insta::assert_snapshot!(world.run(&["--state", "sqlite:x"]), @r#"
    exit 2
    --- stderr
    error: --state was refused
    cause: unknown kind of state "sqlite" in "sqlite:x", expected file:DIR
    hint: name a directory, for example --state file:/var/lib/walferry/app
    "#);
    insta::assert_snapshot!(world.run(&["--id", "../x"]), @r#"
    exit 2
    --- stderr
    error: --id was refused
    cause: "../x" is no name of a pipeline, expected 1..64 characters of A-Z a-z 0-9 _ - .
    "#);
    let publication = ["--publication", "my app", "--source", "", "--destination", "null:"];
    insta::assert_snapshot!(world.walferry(&[&["run"][..], &publication].concat()), @r#"
    exit 2
    --- stderr
    error: the publication cannot name the state
    cause: "my app" is no name of a pipeline, expected 1..64 characters of A-Z a-z 0-9 _ - .
    hint: name the pipeline with --id NAME, or its state with --state file:DIR
    "#);
    assert_eq!(std::fs::read_dir(world.path()).unwrap().count(), 0, "nothing was created");
}

#[test]
fn a_refused_log_filter_is_named() {
    let mut world = World::new();
    world.env.push(("WALFERRY_LOG", "walferry=loud"));
    insta::assert_snapshot!(world.run(&[]), @r#"
    exit 2
    --- stderr
    error: WALFERRY_LOG=walferry=loud was refused
    cause: error parsing level filter: expected one of "off", "error", "warn", "info", "debug", "trace", or a number 0-5
    hint: for example WALFERRY_LOG=debug or WALFERRY_LOG=info,walferry_pg_source=debug
    "#);
}

#[test]
fn variables_stand_for_options() {
    let mut world = World::new();
    world.env = vec![
        ("WALFERRY_SOURCE", "postgres://me:s3cret@localhost:1/shop"),
        ("WALFERRY_PUBLICATION", "app"),
        ("WALFERRY_DESTINATION", "nul:"),
    ];
    let shown = world.walferry(&["run"]);
    assert!(shown.contains("destination scheme \"nul\" is not known"), "{shown}");
    let help = world.walferry(&["run", "--help"]);
    assert!(!help.contains("s3cret"), "{help}");
}

// V-05, R-10
#[test]
fn a_state_that_cannot_be_used_is_named_with_the_next_step() {
    let world = World::new();
    insta::assert_snapshot!(world.run(&["--state", "file:a/b"]), @r"
    exit 7
    --- stderr
    error: opening the state failed
    cause: a/b cannot be created: a does not exist
    hint: create the directory that shall hold a/b, or name another with --state
    ");
    std::fs::write(world.path().join("file"), "").unwrap();
    insta::assert_snapshot!(world.run(&["--state", "file:file"]), @r"
    exit 7
    --- stderr
    error: opening the state failed
    cause: file is a file, expected a directory
    hint: move it away, or name another place with --state
    ");
    insta::assert_snapshot!(world.walferry(&["status", "--state", "file:file"]), @r"
    exit 7
    --- stderr
    error: reading the state failed
    cause: file is a file, expected a directory
    hint: move file away, or name another place with --state
    ");

    let owned = FileStore::open(world.path().join("state")).acquire(OwnerToken([1; 16])).unwrap();
    let locked = world.run(&["--state", "file:state"]);
    let locked = locked.replace(&format!("process {}", std::process::id()), "process [pid]");
    insta::assert_snapshot!(locked, @r"
    exit 7
    --- stderr
    error: opening the state failed
    cause: state is in use by process [pid]
    hint: stop process [pid], or give this pipeline a state of its own with --id or --state
    ");
    owned.release().unwrap();

    std::fs::write(world.path().join("state/record"), "walferry-record 9 0 \n").unwrap();
    insta::assert_snapshot!(world.walferry(&["status", "--state", "file:state"]), @r"
    exit 7
    --- stderr
    error: reading the state failed
    cause: state/record has format 9, this walferry knows up to 1
    hint: use the walferry that wrote it, or a newer one
    ");
    std::fs::write(world.path().join("state/record"), "nonsense").unwrap();
    insta::assert_snapshot!(world.walferry(&["status", "--state", "file:state"]), @r#"
    exit 7
    --- stderr
    error: reading the state failed
    cause: state/record is damaged: first word is "nonsense", expected walferry-record
    hint: restore state/record from a backup; without one, move the directory away and copy all tables again
    "#);
    insta::assert_snapshot!(world.run(&["--state", "file:state"]), @r#"
    exit 7
    --- stderr
    error: opening the state failed
    cause: state/record is damaged: first word is "nonsense", expected walferry-record
    hint: restore state from a backup
    hint: to start over, move state away and run again: all tables are copied anew
    hint: then the slot of the lost state is left over: SELECT slot_name FROM pg_replication_slots WHERE NOT active;
    "#);
}

#[test]
fn the_status_of_nothing_says_so() {
    let world = World::new();
    insta::assert_snapshot!(world.walferry(&["status"]), @r"
    exit 2
    --- stderr
    error: which pipeline is not known
    cause: no name and no state was given
    hint: name it with --id NAME, --publication NAME or --state file:DIR
    ");
    insta::assert_snapshot!(world.walferry(&["status", "--id", "app"]), @r"
    exit 5
    --- stdout
    state        file:./walferry-app

    somebody has to act:
      there is no state at file:./walferry-app: this pipeline has not run, or its state lies elsewhere
    ");
    insta::assert_snapshot!(world.walferry(&["status", "--publication", "app", "--json"]), @r#"
    exit 5
    --- stdout
    {
      "state": "file:./walferry-app",
      "healthy": false,
      "findings": [
        "there is no state at file:./walferry-app: this pipeline has not run, or its state lies elsewhere"
      ],
      "pipeline": null,
      "slot": null,
      "tables": []
    }
    "#);
    assert_eq!(std::fs::read_dir(world.path()).unwrap().count(), 0, "nothing was created");
}
