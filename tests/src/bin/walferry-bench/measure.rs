//! Runs a process to its end and tells what it took.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use wait4::Wait4;

/// What one process took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) wall: Duration,
    /// User and system time of all its threads.
    pub(crate) cpu: Duration,
    /// What of it was spent inside the system.
    pub(crate) system: Duration,
    /// Peak of its resident memory in bytes.
    pub(crate) memory: u64,
}

/// Runs a command that must succeed; what it writes to standard error goes to `log`.
pub(crate) fn measure(mut command: Command, log: &Path) -> Result<Usage, String> {
    let name = command.get_program().display().to_string();
    let failed = |why: &dyn std::fmt::Display| format!("{name}: {why}");
    let errors = File::create(log).map_err(|error| failed(&error))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
    let start = Instant::now();
    let ended = command.spawn().and_then(Wait4::wait4);
    let wall = start.elapsed();
    let ended = ended.map_err(|error| failed(&error))?;
    if !ended.status.success() {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let tail: Vec<_> = text.lines().rev().take(20).collect();
        let tail: Vec<_> = tail.into_iter().rev().collect();
        return Err(failed(&format!("{}\n{}", ended.status, tail.join("\n"))));
    }
    let (user, system) = (ended.rusage.utime, ended.rusage.stime);
    Ok(Usage { wall, cpu: user + system, system, memory: ended.rusage.maxrss })
}

impl Usage {
    /// The median of each figure by itself.
    pub(crate) fn median(runs: &[Self]) -> Self {
        fn middle<T: Ord + Copy + Default>(values: impl Iterator<Item = T>) -> T {
            let mut values: Vec<T> = values.collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or_default()
        }
        Self {
            wall: middle(runs.iter().map(|run| run.wall)),
            cpu: middle(runs.iter().map(|run| run.cpu)),
            system: middle(runs.iter().map(|run| run.system)),
            memory: middle(runs.iter().map(|run| run.memory)),
        }
    }
}

/// Copies a directory of plain files.
pub(crate) fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_and_memory_are_those_of_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"]);
        let usage = measure(command, &log).unwrap();
        assert!(usage.cpu > Duration::from_millis(10), "{usage:?}");
        assert!((100_000..100_000_000).contains(&usage.memory), "{usage:?}");

        let mut command = Command::new("sh");
        command.args(["-c", "echo broken >&2; exit 3"]);
        let why = measure(command, &log).unwrap_err();
        assert!(why.contains("broken") && why.contains('3'), "{why}");
    }

    #[test]
    fn medians_are_taken_figure_by_figure() {
        let run = |wall, cpu, memory| Usage {
            wall: Duration::from_secs(wall),
            cpu: Duration::from_secs(cpu),
            system: Duration::from_secs(cpu),
            memory,
        };
        let median = Usage::median(&[run(1, 9, 5), run(2, 8, 5), run(3, 1, 4)]);
        assert_eq!(median, run(2, 8, 5));
    }
}
