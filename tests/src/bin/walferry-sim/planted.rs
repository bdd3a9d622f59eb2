//! `./dev sim --planted`: can the simulation find a bug that is there?
//!
//! Each patch of `tests/planted` is applied to a copy of the tree, alone; the simulator built from that
//! copy must find a violation within [`MINUTES`]. The clean tree is played first: what it finds would
//! make every answer worthless.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

use tempfile::TempDir;
use walferry_tests::world::player::Size;

use crate::hunt::{Bound, Hunt};

/// How long the simulator may look for one bug.
const MINUTES: &str = "1";
/// Games of the clean tree.
const CLEAN_SEEDS: u64 = 2_000;

type Result<T> = core::result::Result<T, Box<dyn Error>>;

/// One row of the table.
struct Line {
    patch: String,
    wrong: String,
    outcome: core::result::Result<(String, String), String>,
}

/// Tries every patch and prints the table.
pub(crate) fn run() -> ExitCode {
    match try_all() {
        Ok(lines) => {
            for line in &lines {
                print_line(line);
            }
            let found = lines.iter().filter(|line| line.outcome.is_ok()).count();
            println!("{found} of {} planted bugs found", lines.len());
            if found == lines.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn print_line(line: &Line) {
    let (seed, property) = match &line.outcome {
        Ok((seed, property)) => (seed.as_str(), property.as_str()),
        Err(why) => ("NOT FOUND", why.as_str()),
    };
    println!("{:<24} | {:<48} | {seed} | {property}", line.patch, line.wrong);
}

fn try_all() -> Result<Vec<Line>> {
    let tree = root();
    let mut patches: Vec<PathBuf> = fs::read_dir(tree.join("tests/planted"))?
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .collect();
    patches.sort();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let clean = Hunt::new(0, Bound::Seeds(CLEAN_SEEDS), Size::Short).run();
    std::panic::set_hook(hook);
    println!("clean: {clean}");
    if !clean.failed.is_empty() {
        return Err("the tree fails without any planted bug".into());
    }
    let copy = copy_tree(&tree)?;
    patches.iter().map(|patch| plant(patch, copy.path())).collect()
}

/// Where this was built: it is a tool of its own tree.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Everything that git knows or would add, as it is on disk.
fn copy_tree(tree: &Path) -> Result<TempDir> {
    let copy = tempfile::Builder::new().prefix("walferry-planted-").tempdir()?;
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(tree)
        .output()?;
    let names = String::from_utf8(succeeded("git ls-files", listed)?.stdout)?;
    for name in names.split_terminator('\0') {
        let (from, to) = (tree.join(name), copy.path().join(name));
        // A file that was deleted and not committed is still listed.
        if from.is_file() {
            fs::create_dir_all(to.parent().unwrap_or(copy.path()))?;
            fs::copy(from, to)?;
        }
    }
    Ok(copy)
}

fn plant(patch: &Path, copy: &Path) -> Result<Line> {
    let text = fs::read_to_string(patch)?;
    let first = text.lines().next().unwrap_or_default();
    let wrong = first.trim_start_matches(['#', ' ']).to_owned();
    let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let outcome = match apply(patch, copy, false) {
        Err(error) => Err(format!("does not apply: {error}")),
        Ok(()) => {
            let outcome = hunt(copy);
            apply(patch, copy, true)?;
            outcome.map_err(|error| error.to_string())
        }
    };
    Ok(Line { patch: name, wrong, outcome })
}

fn apply(patch: &Path, copy: &Path, reverse: bool) -> Result<()> {
    let mut git = Command::new("git");
    git.arg("apply").args(reverse.then_some("-R")).arg(fs::canonicalize(patch)?);
    // The copy is no repository, and must not be taken for a part of one around it.
    git.env("GIT_CEILING_DIRECTORIES", copy.parent().unwrap_or(copy));
    succeeded("git apply", git.current_dir(copy).output()?)?;
    Ok(())
}

/// Builds the simulator of the copy and lets it look; seed and first line of what it found.
fn hunt(copy: &Path) -> Result<(String, String)> {
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => PathBuf::from(target),
        None => root().join("target"),
    };
    let target = target.join("planted");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--profile", "sim"])
        .args(["--package", "walferry-tests", "--bin", "walferry-sim"])
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(copy)
        .output()?;
    succeeded("cargo build", built)?;
    let program = target.join("sim/walferry-sim");
    let hunted = Command::new(program)
        .args(["--minutes", MINUTES, "--from", "0"])
        .env_remove(walferry_tests::coverage::DIRECTORY)
        .stderr(Stdio::null())
        .output()?;
    let report = String::from_utf8_lossy(&hunted.stdout).into_owned();
    let failed =
        report.lines().find_map(|line| line.strip_prefix("FAILED seed ")?.split_once(": "));
    match failed {
        Some((seed, violation)) => Ok((seed.to_owned(), violation.to_owned())),
        None => Err(report.lines().nth(1).unwrap_or("no report").into()),
    }
}

fn succeeded(what: &str, output: Output) -> Result<Output> {
    if output.status.success() {
        return Ok(output);
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("{what} failed: {}", words.trim()).into())
}
