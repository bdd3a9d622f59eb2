//! The command line as data. Every option has the variable `WALFERRY_*` of its name; an option wins.

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};
use walferry_core::config::Until;

use crate::demo::{self, DemoArgs};

const EXAMPLES: &str = "\
Examples:
  See it work on a private database, killed and resumed:
    walferry demo

  Copy every table of publication app into a SQLite file, then follow:
    walferry run --source postgres:///shop --publication app --destination sqlite:shop.db

  Where does every table stand?
    walferry status --id app";

/// Keeps a destination equal to a PostgreSQL database: a consistent copy of every table of a
/// publication, then every committed change, in commit order.
#[derive(Debug, Parser)]
#[command(name = "walferry", version, arg_required_else_help = true)]
#[command(disable_help_subcommand = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Copy, then stream changes, until stopped
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Create the replication slot again and have every table copied anew
    #[command(after_help = RECREATE_EXAMPLES)]
    Recreate(PipelineArgs),
    /// Show where every table stands, and whether somebody has to act
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Try tables again that have stopped, once their cause is gone
    #[command(after_help = RETRY_EXAMPLES)]
    Retry(RetryArgs),
    /// Copy tables anew
    #[command(after_help = RESYNC_EXAMPLES)]
    Resync(ResyncArgs),
    /// Watch a private database being copied and followed by a walferry that is killed again and again
    #[command(after_help = demo::EXAMPLES)]
    Demo(DemoArgs),
    /// Print a completion script for a shell
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the version
    #[command(after_help = VERSION_EXAMPLES)]
    Version {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    /// End by itself: caught-up, or a WAL position such as 0/1523030
    #[arg(long, value_name = "caught-up|LSN", env = "WALFERRY_UNTIL", value_parser = parse_until)]
    pub(crate) until: Option<Until>,
}

/// One pipeline: from where, to where, and how.
#[derive(Args, Debug)]
pub(crate) struct PipelineArgs {
    /// The PostgreSQL database to read: a libpq URL or a key=value string. What it leaves out comes
    /// from PG* variables and ~/.pgpass
    #[arg(long, value_name = "URL", env = "WALFERRY_SOURCE", hide_env_values = true)]
    pub(crate) source: String,
    /// The publication to follow
    #[arg(long, value_name = "NAME", env = "WALFERRY_PUBLICATION")]
    pub(crate) publication: String,
    /// Where to write: sqlite:PATH, jsonl:PATH (jsonl:- for standard output) or null: (counts and
    /// forgets)
    #[arg(long, value_name = "URL", env = "WALFERRY_DESTINATION", hide_env_values = true)]
    pub(crate) destination: String,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Take over a destination that belongs to another pipeline, which must never run again
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Set a limit, for example batch_ms=20; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub(crate) settings: Vec<Setting>,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// The publication, where it names the state
    #[arg(long, value_name = "NAME", env = "WALFERRY_PUBLICATION")]
    pub(crate) publication: Option<String>,
    /// Look at the replication slot as well, at this database
    #[arg(long, value_name = "URL", env = "WALFERRY_SOURCE", hide_env_values = true)]
    pub(crate) source: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RetryArgs {
    /// Tables, as schema.table; without a schema, public is meant [default: all that have stopped]
    #[arg(value_name = "TABLE")]
    pub(crate) tables: Vec<String>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// The publication, where it names the state
    #[arg(long, value_name = "NAME", env = "WALFERRY_PUBLICATION")]
    pub(crate) publication: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ResyncArgs {
    /// Tables, as schema.table; without a schema, public is meant
    #[arg(value_name = "TABLE", required = true)]
    pub(crate) tables: Vec<String>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// The publication, where it names the state
    #[arg(long, value_name = "NAME", env = "WALFERRY_PUBLICATION")]
    pub(crate) publication: Option<String>,
}

/// Which state is meant.
#[derive(Args, Debug)]
pub(crate) struct PlaceArgs {
    /// Name of the pipeline; it names the state and nothing else [default: the publication]
    #[arg(long, value_name = "NAME", env = "WALFERRY_ID")]
    pub(crate) id: Option<String>,
    /// Where the state lies, a directory that is created [default: file:./walferry-NAME]
    #[arg(long, value_name = "URL", env = "WALFERRY_STATE")]
    pub(crate) state: Option<String>,
}

/// One `--set`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: String,
}

const RUN_EXAMPLES: &str = "\
Examples:
  Copy every table of publication app into a SQLite file, then follow:
    walferry run --source postgres://walferry@db.example.com/shop \\
      --publication app --destination sqlite:shop.db

  Make a copy as of now, and end:
    walferry run --source postgres:///shop --publication app \\
      --destination jsonl:shop.jsonl --until caught-up

  Two pipelines on one publication, each with a state of its own:
    walferry run --id app-archive --source postgres:///shop --publication app \\
      --destination jsonl:archive.jsonl

Stop it with Ctrl-C or SIGTERM: it drains, saves and confirms. A second signal ends it at once,
which is as safe as a crash. Started again, it goes on where it was.

Exit codes: 0 done or stopped, 1 internal error, 2 usage or configuration, 3 source,
4 destination, 5 a person must act, 7 state, 130 and 143 a stop that was cut short.";

const RECREATE_EXAMPLES: &str = "\
Examples:
  The slot was lost: begin again with a slot of the same name:
    walferry recreate --source postgres:///shop --publication app --destination sqlite:shop.db

The arguments are those of `walferry run`. Afterwards start the run again: it copies every table anew,
and rows that have gone at the source since then go in the destination, too. Until then the
destination keeps what it holds. Stop a run of this state first.

Exit codes: 0 created, 2 usage or configuration, 3 source, 5 a person must act, 7 state.";

const RETRY_EXAMPLES: &str = "\
Examples:
  After the missing GRANT was given, try every table that has stopped:
    walferry retry --id app

  One of them:
    walferry retry --id app public.items

The next `walferry run` copies them. Stop a run of this state first.

Exit codes: 0 accepted, 5 refused, 7 the state is in use or cannot be read.";

const RESYNC_EXAMPLES: &str = "\
Examples:
  Copy a table anew, whatever its state:
    walferry resync --id app public.items

The next `walferry run` replaces its rows in the destination by a new copy. Stop a run of this
state first.

Exit codes: 0 accepted, 5 refused, 7 the state is in use or cannot be read.";

const STATUS_EXAMPLES: &str = "\
Examples:
  The pipeline of publication app, whose state lies in ./walferry-app:
    walferry status --id app

  With the replication slot at the source, as JSON:
    walferry status --state file:/var/lib/walferry/app --source postgres:///shop --json

It only reads, and may run beside `walferry run`.

Exit codes: 0 healthy, 5 a person must act, 7 the state cannot be read.";

const COMPLETION_EXAMPLES: &str = "\
Example:
  walferry completion bash > /etc/bash_completion.d/walferry";

const VERSION_EXAMPLES: &str = "\
Example:
  walferry version --json";

/// Reads the arguments of this process.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(args)
}

fn parse_until(text: &str) -> Result<Until, String> {
    if text == "caught-up" {
        return Ok(Until::CaughtUp);
    }
    text.parse()
        .map(Until::Position)
        .map_err(|_| "expected caught-up, or a WAL position such as 0/1523030".to_owned())
}

fn parse_setting(text: &str) -> Result<Setting, String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, for example batch_ms=20")?;
    Ok(Setting { key: key.trim().to_owned(), value: value.trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use walferry_core::lsn::Lsn;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn until_is_a_word_or_a_position() {
        assert_eq!(parse_until("caught-up"), Ok(Until::CaughtUp));
        assert_eq!(parse_until("1/A0"), Ok(Until::Position(Lsn(0x1_0000_00A0))));
        for text in ["", "caughtup", "12", "0/", "0/123456789"] {
            assert!(parse_until(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_setting_is_split_at_its_first_sign() {
        let setting = |key: &str, value: &str| Setting { key: key.into(), value: value.into() };
        assert_eq!(parse_setting("a=1"), Ok(setting("a", "1")));
        assert_eq!(parse_setting(" a = b=c "), Ok(setting("a", "b=c")));
        assert!(parse_setting("a").is_err());
    }
}
