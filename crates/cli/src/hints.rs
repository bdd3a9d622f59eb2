//! From a failure to what a person can do about it, as exact as the facts allow.
//!
//! Pure. Messages are looked at for advice only; nothing else is ever decided from them.

use walferry_core::fault::{Blame, DestinationClass, Fault, FaultKind, Origin, SqlState};

const OWN_STATE: &str = "or give this pipeline a state of its own with --id or --state";

/// What the advice can name: all of it without secrets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    /// `user@host:port/database`.
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) state: String,
}

impl Surroundings {
    fn role(&self) -> String {
        quoted(self.source.split_once('@').map_or("walferry", |(user, _)| user))
    }

    fn server(&self) -> &str {
        let server = self.source.split_once('@').map_or("", |(_, rest)| rest);
        server.rsplit_once('/').map_or("", |(server, _)| server)
    }

    fn database(&self) -> String {
        quoted(self.source.rsplit_once('/').map_or("app", |(_, database)| database))
    }

    /// The state as the shell knows it.
    fn state_path(&self) -> &str {
        self.state.strip_prefix("file:").unwrap_or(&self.state)
    }

    /// The command that asks whether the server is there.
    fn ping(&self) -> String {
        let server = self.server();
        match (server.rsplit_once("/.s.PGSQL."), server.rsplit_once(':')) {
            (Some((directory, port)), _) => format!("pg_isready -h {directory} -p {port}"),
            (None, Some((host, port))) => {
                format!("pg_isready -h {} -p {port}", host.trim_matches(['[', ']']))
            }
            (None, None) => "pg_isready".to_owned(),
        }
    }
}

/// Advice for a failure; empty only where there is nothing to do.
#[expect(clippy::too_many_lines, reason = "one arm for each kind")]
pub(crate) fn of_fault(fault: &Fault, around: &Surroundings) -> Vec<String> {
    let message = fault.message.to_lowercase();
    let says = |part: &str| message.contains(part);
    match &fault.kind {
        FaultKind::Stopped => Vec::new(),
        FaultKind::StoreFailed => of_save(&says, around.state_path()),
        FaultKind::StoreFenced => {
            let state = around.state_path();
            vec![format!("another run has taken {state} over: let only one of them run, {OWN_STATE}")]
        }
        FaultKind::StoreLocked { holder } => vec![format!("stop {holder}, {OWN_STATE}")],
        FaultKind::RecordCorrupt | FaultKind::RecordInvalid { .. } => vec![
            format!("restore {} from a backup", around.state_path()),
            anew(around),
            "then the slot of the lost state is left over: \
             SELECT slot_name FROM pg_replication_slots WHERE NOT active;"
                .to_owned(),
        ],
        FaultKind::RecordTooNew { .. } => {
            vec!["use the walferry that wrote it, or a newer one".to_owned()]
        }
        FaultKind::TimelineChanged { .. } => promoted(around),
        FaultKind::SlotMissing { slot } => vec![
            format!("somebody dropped it: the changes since the checkpoint went with slot {slot}"),
            recreate(around),
        ],
        FaultKind::SlotInvalidated { .. } => vec![
            "the server gave up WAL that was still needed; allow more: \
             ALTER SYSTEM SET max_slot_wal_keep_size = '..'; SELECT pg_reload_conf();"
                .to_owned(),
            recreate(around),
        ],
        FaultKind::SlotAhead { slot, .. } => vec![
            format!("something else has read from slot {slot}, or the state is an old copy"),
            recreate(around),
        ],
        FaultKind::SlotForeign { slot, .. } => vec![
            format!(
                "see who made it: SELECT * FROM pg_replication_slots WHERE slot_name = {};",
                literal(slot)
            ),
            anew(around),
        ],
        FaultKind::CheckpointAhead { .. } => vec![
            "the server was restored to a time before the checkpoint, or is another one".to_owned(),
            anew(around),
        ],
        FaultKind::IdentityMismatch { field, expected, .. } => of_identity(field, expected, around),
        FaultKind::HorizonBeyondFork { .. } => vec![
            "the destination may hold changes that the promoted server never had".to_owned(),
            "if every table may be copied anew: --set promotion_loss=resync".to_owned(),
        ],
        FaultKind::RecreationPending => vec![recreate(around)],
        FaultKind::PublicationMissing { name } => {
            let (database, name) = (around.database(), quoted(name));
            let mut hints = vec![
                format!("in database {database}: CREATE PUBLICATION {name} FOR ALL TABLES;"),
                "publications there are: SELECT pubname FROM pg_publication;".to_owned(),
            ];
            if !fault.message.is_empty() {
                // The stream says so, not the catalog.
                let again = recreate(around);
                hints.push(format!("if it was dropped and made again meanwhile: {again}"));
            }
            hints
        }
        FaultKind::PublicationEmpty { name } => {
            let (database, name) = (around.database(), quoted(name));
            vec![format!("in database {database}: ALTER PUBLICATION {name} ADD TABLE ..;")]
        }
        FaultKind::Timeout { .. } if says("replication slot") && says(" is held by pid ") => {
            slot_in_use(&fault.message)
        }
        FaultKind::Transport | FaultKind::Timeout { .. } => match fault.origin {
            Origin::Source | Origin::Core => of_connection(&says, around),
            Origin::Destination => vec![format!("see whether {} can be reached", around.destination)],
            Origin::Store => vec![format!("see whether the disk of {} answers", around.state_path())],
        },
        FaultKind::Server { code } => of_server(*code, &fault.message, &says, around),
        FaultKind::Authentication => of_sign_in(&says, around),
        FaultKind::Configuration { setting, found, .. } => of_setting(setting, found, around),
        FaultKind::EntropyUnavailable => {
            vec!["the system gives no random bytes: see whether /dev/urandom can be read".to_owned()]
        }
        FaultKind::Limit { name } => vec![format!("the bound can be raised: --set {name}=..")],
        FaultKind::Protocol | FaultKind::Conversion => vec![
            "if something lies between walferry and PostgreSQL (a pooler, a proxy), connect directly"
                .to_owned(),
            "otherwise this is a bug: please report it with the lines above".to_owned(),
        ],
        FaultKind::Destination { class } | FaultKind::FlushFailed { class } => {
            let of_tables = match fault.blame {
                Blame::Tables { .. } => true,
                Blame::Unstated | Blame::Sink => false,
            };
            of_destination(*class, of_tables, &says, around)
        }
        FaultKind::StopTimeout => vec![
            "nothing is lost: the next start goes on from the last checkpoint".to_owned(),
            "a longer stop is allowed with --set stop_ms=..".to_owned(),
        ],
        FaultKind::Violation => {
            vec!["this is a bug: please report it with the log; a new start recovers".to_owned()]
        }
    }
}

/// Advice for a table that stopped without a failure: its schema is no longer that of its copy.
pub(crate) fn of_shape(table: &str, around: &Surroundings) -> String {
    format!(
        "stop the run and have the table copied again: walferry resync --state {} {table}",
        around.state
    )
}

fn of_save(says: &dyn Fn(&str) -> bool, state: &str) -> Vec<String> {
    let hint = if says("storage space") || says("space left") || says("quota") {
        format!("free space on the file system of {state} and start again")
    } else if says("permission denied") || says("read-only") {
        format!("let this user write {state}, or name another place with --state")
    } else if says("does not exist") {
        format!("create the directory that shall hold {state}, or name another with --state")
    } else if says("expected a file") || says("expected a directory") {
        "move it away, or name another place with --state".to_owned()
    } else {
        format!("see whether {state} can be written, then start again: it goes on from there")
    };
    vec![hint]
}

/// The destination goes with the state: it remembers whose it is.
fn anew(around: &Surroundings) -> String {
    let state = around.state_path();
    let what = match around.destination.split_once(':') {
        Some(("sqlite", path)) => format!("{state} and {path} (with {path}-wal, if there is one)"),
        Some(("jsonl", path)) if path != "-" => format!("{state}, {path} and {path}.walferry"),
        Some(_) | None => state.to_owned(),
    };
    format!("to start over, move {what} away and run again: all tables are copied anew")
}

/// Group I by hand: the same slot name, every table copied anew, the destination stays.
fn recreate(around: &Surroundings) -> String {
    format!(
        "to copy every table anew with a slot of the same name: walferry recreate --state {} and \
         the arguments of the run",
        around.state
    )
}

fn slot_in_use(message: &str) -> Vec<String> {
    let holder = message.split_once(" is held by pid ").map_or("", |(_, rest)| rest);
    let digits = holder.find(|c: char| !c.is_ascii_digit()).unwrap_or(holder.len());
    let pid = &holder[..digits];
    vec![
        format!("who it is: SELECT * FROM pg_stat_activity WHERE pid = {pid};"),
        "another walferry of the same state on another machine? let only one of them run"
            .to_owned(),
        format!("if nobody needs it: SELECT pg_terminate_backend({pid});"),
    ]
}

fn promoted(around: &Surroundings) -> Vec<String> {
    vec![
        "the server was promoted or restored, and may lack changes that were delivered".to_owned(),
        anew(around),
    ]
}

fn of_identity(field: &str, expected: &str, around: &Surroundings) -> Vec<String> {
    match field {
        "destination" => {
            vec![format!("use the destination of the state, {expected}, {OWN_STATE}")]
        }
        "publication" => vec![format!("use --publication {expected}, {OWN_STATE}")],
        "slot_prefix" => vec![format!("use --set slot_prefix={expected}, {OWN_STATE}")],
        "database" => vec![format!("connect to database {expected}, {OWN_STATE}")],
        "timeline" => promoted(around),
        _ => vec![format!("connect to the server of the state, {OWN_STATE}"), anew(around)],
    }
}

fn of_connection(says: &dyn Fn(&str) -> bool, around: &Surroundings) -> Vec<String> {
    if says("cannot resolve") {
        return vec![format!("is the host name right? --source names {}", around.server())];
    }
    let mut hints =
        vec![format!("is the server running, and does it listen there? {}", around.ping())];
    if says("no such file") {
        hints.push(
            "the socket is absent: name the server with host=.. in --source or PGHOST".to_owned(),
        );
    }
    hints
}

fn of_server(
    code: SqlState,
    message: &str,
    says: &dyn Fn(&str) -> bool,
    around: &Surroundings,
) -> Vec<String> {
    let role = around.role();
    match &code.0 {
        b"42501" if says("wal sender") || says("walsender") || says("replication") => {
            vec![format!("as a superuser: ALTER ROLE {role} REPLICATION;")]
        }
        b"42501" if says("for schema ") => {
            let schema = named_after("for schema ", message);
            vec![format!("GRANT USAGE ON SCHEMA {} TO {role};", quoted(schema))]
        }
        b"42501" if says("for database ") => {
            vec![format!("GRANT CONNECT ON DATABASE {} TO {role};", around.database())]
        }
        b"42501" => vec![format!("GRANT SELECT ON {} TO {role};", table_in(message))],
        b"53400" => slots_used_up(),
        b"53300" if says("wal") || says("standby") || says("sender") => vec![
            "raise it and restart the server: ALTER SYSTEM SET max_wal_senders = 20;".to_owned(),
            "who uses them: SELECT pid, application_name, state FROM pg_stat_replication;".to_owned(),
        ],
        b"53300" => vec![
            "the server has no free connection: end some, or raise max_connections".to_owned(),
        ],
        b"53100" => vec!["the disk of the server is full".to_owned()],
        b"55000" if says("wal_level") => wal_level(),
        b"55006" => vec![
            "who uses the slot: SELECT slot_name, active_pid FROM pg_replication_slots WHERE active;"
                .to_owned(),
            "another walferry of the same state on another machine? let only one of them run".to_owned(),
        ],
        b"57P03" => vec![format!("the server is starting, or a standby: {}", around.ping())],
        b"57P01" | b"57P02" => vec!["the server is stopping: start again when it is back".to_owned()],
        _ if says("replication slots are in use") => slots_used_up(),
        _ => Vec::new(),
    }
}

/// The table that a message is about; all of a schema where it names none.
fn table_in(message: &str) -> &str {
    let named = message.split_once("table ").map(|(_, rest)| rest);
    let name = named.and_then(|rest| rest.split_once(" failed")).map(|(name, _)| name);
    // What has a space and no quotes is no name, but part of a sentence.
    let is_name = |name: &&str| !name.contains(' ') || name.contains('"');
    name.filter(is_name).unwrap_or("ALL TABLES IN SCHEMA ..")
}

/// What follows in a message of the server, up to its SQLSTATE.
fn named_after<'a>(words: &str, message: &'a str) -> &'a str {
    let rest = message.split_once(words).map_or("..", |(_, rest)| rest);
    rest.split_once(" (SQLSTATE").map_or(rest, |(name, _)| name)
}

fn slots_used_up() -> Vec<String> {
    vec![
        "unused slots: SELECT slot_name, database, active FROM pg_replication_slots WHERE NOT active;"
            .to_owned(),
        "drop one that nobody needs: SELECT pg_drop_replication_slot('..');".to_owned(),
        "or raise it and restart the server: ALTER SYSTEM SET max_replication_slots = 20;".to_owned(),
    ]
}

fn wal_level() -> Vec<String> {
    vec![
        "as a superuser: ALTER SYSTEM SET wal_level = logical;".to_owned(),
        "then restart the server (managed services have a parameter for it, such as \
         rds.logical_replication)"
            .to_owned(),
    ]
}

fn of_sign_in(says: &dyn Fn(&str) -> bool, around: &Surroundings) -> Vec<String> {
    let role = around.role();
    if says("not valid for name") {
        return vec![
            "connect by a name of the certificate: host=.. in --source (with hostaddr=.. if that \
             name does not resolve here)"
                .to_owned(),
            "or do not compare the name: sslmode=verify-ca".to_owned(),
        ];
    }
    if says("tls") || says("certificate") {
        return vec![
            "trust the server's authority with sslrootcert=FILE in --source".to_owned(),
            "or do not verify: sslmode=require; without TLS: sslmode=disable".to_owned(),
        ];
    }
    if says("pg_hba.conf") {
        let allow = format!(
            "allow {role} from this address in pg_hba.conf, then: SELECT pg_reload_conf();"
        );
        let encrypt = says("no encryption").then(|| {
            "the server may demand TLS: sslmode=require in --source (it was tried without)"
                .to_owned()
        });
        return encrypt.into_iter().chain([allow]).collect();
    }
    if says("role") && says("does not exist") {
        return vec![format!("CREATE ROLE {role} LOGIN REPLICATION PASSWORD '..';")];
    }
    if says("not permitted to log in") {
        return vec![format!("ALTER ROLE {role} LOGIN;")];
    }
    let give = format!(
        "give the password of {role} in PGPASSWORD, or in ~/.pgpass (mode 0600): \
         host:port:database:user:password"
    );
    if says("authentication failed") {
        let set = format!("or set a new one as a superuser: ALTER ROLE {role} PASSWORD '..';");
        return vec![give.replacen("give the", "the password was refused: give the right", 1), set];
    }
    vec![give]
}

fn of_setting(setting: &str, found: &str, around: &Surroundings) -> Vec<String> {
    match setting {
        "wal_level" => wal_level(),
        "database" if found.contains("not exist") => {
            vec![
                format!("name another in --source, or: CREATE DATABASE {};", around.database()),
                "which there are: SELECT datname FROM pg_database;".to_owned(),
            ]
        }
        "sslmode" if found.contains("does not") || found.contains("not offer") => vec![
            "the server has no TLS: sslmode=disable in --source, or turn ssl on at the server"
                .to_owned(),
        ],
        "max_replication_slots" => slots_used_up(),
        "slot_failover" => {
            vec!["leave out --set slot_failover=on, or upgrade the server".to_owned()]
        }
        "sslrootcert" | "sslcert" | "sslkey" => {
            vec![format!("name a file that this user can read: {setting}=FILE in --source")]
        }
        _ => Vec::new(),
    }
}

fn of_destination(
    class: DestinationClass,
    of_tables: bool,
    says: &dyn Fn(&str) -> bool,
    around: &Surroundings,
) -> Vec<String> {
    let place = around.destination.as_str();
    if says("reader has gone") || says("standard output: an earlier write failed") {
        return vec![
            "the program that reads standard output has ended: start both again; jsonl:PATH needs \
             no reader"
                .to_owned(),
        ];
    }
    if says("walferry did not write it") {
        let path = place.split_once(':').map_or(place, |(_, path)| path);
        return vec![format!("move {path} away, or name another place with --destination")];
    }
    if says("not empty") {
        return vec![format!(
            "{place} holds rows that are not from this pipeline: empty the table, or name another place"
        )];
    }
    if says("belongs to the pipeline") || says("another pipeline") {
        return vec![
            format!("{place} belongs to another pipeline: name another place with --destination"),
            "if the other one will never run again: --take-over".to_owned(),
        ];
    }
    if says("not a sqlite database") || says("it is a folder") {
        let path = place.split_once(':').map_or(place, |(_, path)| path);
        return vec![format!("move {path} away, or name another place with --destination")];
    }
    if says("does not exist") {
        return vec!["create it, or name another place with --destination".to_owned()];
    }
    if says("space") || says("disk is full") || says("disk full") || says("quota") {
        return vec![format!("free space on the file system of {place} and start again")];
    }
    if says("permission denied") || says("read-only") || says("readonly") || says("unable to open")
    {
        return vec![format!("let this user create and write {place}, or name another place")];
    }
    match class {
        DestinationClass::Transient { .. } => {
            vec![format!(
                "see whether {place} works, then start again: it goes on from the checkpoint"
            )]
        }
        DestinationClass::Fenced => vec![
            "another run of this pipeline has taken the destination over: let only one of them run"
                .to_owned(),
        ],
        // What stops a table only: the run goes on, and a start alone does not bring it back (Y-09).
        DestinationClass::Manual if of_tables => vec![format!(
            "once {place} is right, stop the run and have the table copied again: walferry retry \
             --state {}",
            around.state
        )],
        DestinationClass::Permanent if of_tables => vec![format!(
            "trying again does not help; once the source holds no such value, stop the run and have \
             the table copied again: walferry resync --state {} TABLE",
            around.state
        )],
        DestinationClass::Manual | DestinationClass::Permanent => {
            vec![format!("put {place} right, then start again: it goes on from the checkpoint")]
        }
    }
}

/// An SQL identifier as it must be typed.
fn quoted(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests;
