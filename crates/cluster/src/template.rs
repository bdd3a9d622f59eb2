//! A data directory made once and copied for every cluster: `initdb` takes 0.6 s, a copy 0.06 s.
//!
//! Tests run in a process each, so the ready directory stands in the cache, one per server build,
//! and outlives them. It is never started, only copied.

#![expect(clippy::expect_used, reason = "a harness: a panic is how it reports")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::installation::{Installation, cache_dir, give_to_server, succeeded};

/// Raise it when [`initdb`] changes: ready directories of another recipe are then left alone.
const RECIPE: u32 = 1;

/// Fills `data`, whose parent the server's user owns, with a new cluster.
pub(crate) fn copy_into(data: &Path, installation: &Installation) {
    let template = ready(installation);
    let mut copy = Command::new("cp");
    copy.args(["-a", "--reflink=auto"]).arg(template).arg(data);
    succeeded("cp of the ready data directory", copy.output().expect("cp starts"));
}

/// Runs `initdb` into `data` as the user who owns it.
pub(crate) fn initdb(data: &Path, installation: &Installation, arguments: &[String]) {
    let mut command = installation.server_command("initdb");
    command.arg("-D").arg(data);
    command.args(["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
    command.args(arguments);
    succeeded("initdb", command.output().expect("initdb starts"));
}

fn ready(installation: &Installation) -> PathBuf {
    let templates = cache_dir().join("templates");
    fs::create_dir_all(&templates).expect("the cache can be written");
    let name: String = installation
        .version()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || ".-+~".contains(*c))
        .collect();
    let whole = templates.join(format!("{name}-{RECIPE}"));
    if !whole.exists() {
        let lock = File::create(templates.join(".lock")).expect("the lock of the cache opens");
        lock.lock().expect("the cache can be locked");
        // Another process may have made it while we waited for the lock.
        if !whole.exists() {
            let partial = templates.join(".partial");
            if partial.exists() {
                fs::remove_dir_all(&partial).expect("an interrupted initdb can be removed");
            }
            fs::create_dir(&partial).expect("the cache can be written");
            give_to_server(&partial);
            initdb(&partial.join("data"), installation, &[]);
            // The name appears only when all is there, so nobody copies half of it.
            fs::rename(&partial, &whole).expect("the cache can be written");
        }
    }
    whole.join("data")
}
