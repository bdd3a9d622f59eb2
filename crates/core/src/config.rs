//! Validated configuration of one pipeline, and every limit with its reason (spec chapter 30).

use core::time::Duration;

use thiserror::Error;

use crate::batch::Declaration;
use crate::lsn::Lsn;
use crate::names;
use crate::policies::Policies;

/// When a run ends by itself (L-08).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// When everything the server had flushed once all tables streamed is durable.
    CaughtUp,
    /// When the checkpoint is at or past this position.
    Position(Lsn),
    /// When the main slot has been created again, which the run decides by itself (L-06, group I).
    Recreated,
}

/// Configuration of one pipeline; valid once `Config::validate` has returned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the publication.
    pub publication: String,
    /// Name of the database that connections must reach.
    pub database: String,
    /// What the destination declares.
    pub destination: Declaration,
    /// When the run ends by itself.
    pub until: Option<Until>,
    /// The bounds.
    pub limits: Limits,
}

/// A setting outside its bounds (Z-01).
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// The value is not allowed.
    #[error("{key} = {found} is not allowed: {allowed}")]
    OutOfRange {
        /// Name of the setting.
        key: &'static str,
        /// Value given.
        found: String,
        /// What is allowed.
        allowed: String,
    },
    /// There is no such setting.
    #[error("unknown setting {key}{}", nearest.map(|n| format!(", did you mean {n}?")).unwrap_or_default())]
    UnknownKey {
        /// Name given.
        key: String,
        /// The nearest name there is.
        nearest: Option<&'static str>,
    },
}

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident: $kind:ident = $default:expr, $min:expr, $max:expr;)*) => {
        /// Every bound that a person may set, under the name of spec chapter 30.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Limits {
            /// Prefix of the main slot's name.
            pub slot_prefix: String,
            /// What a person decided beforehand.
            pub policies: Policies,
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Default for Limits {
            fn default() -> Self {
                Self {
                    slot_prefix: "walferry".to_owned(),
                    policies: Policies::default(),
                    $($name: $default,)*
                }
            }
        }

        impl Limits {
            /// Names of all bounds.
            pub const KEYS: &'static [&'static str] = &["slot_prefix", $(stringify!($name),)*];

            /// Sets one limit from text, as `--set key=value` gives it.
            ///
            /// # Errors
            /// An unknown key, with the nearest name there is, or a value outside its range.
            pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
                match key {
                    "slot_prefix" => {
                        self.slot_prefix = value.to_owned();
                        self.validate()
                    }
                    $(stringify!($name) => {
                        self.$name = parse(stringify!($name), value, $min, $max)?;
                        Ok(())
                    })*
                    _ => self.policies.set(key, value).unwrap_or_else(|| {
                        let known = || Self::KEYS.iter().chain(Policies::KEYS).copied();
                        Err(ConfigError::UnknownKey {
                            key: key.to_owned(),
                            nearest: nearest(key, known()),
                        })
                    }),
                }
            }

            /// Checks every bound, before any IO (Z-01).
            ///
            /// # Errors
            /// The first value outside its range.
            pub fn validate(&self) -> Result<(), ConfigError> {
                if !names::valid_prefix(&self.slot_prefix) {
                    return Err(ConfigError::OutOfRange {
                        key: "slot_prefix",
                        found: self.slot_prefix.clone(),
                        allowed: "1..32 characters of a-z 0-9 _".to_owned(),
                    });
                }
                $(check(stringify!($name), self.$name, $min, $max)?;)*
                self.validate_pairs()
            }
        }

        #[cfg(test)]
        const RANGES: &[(&str, u64, u64, u64)] =
            &[$((stringify!($name), $default, $min, $max),)*];
    };
}

const DAY_MS: u64 = 86_400_000;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

limits! {
    /// Tables copied at the same time: each costs a slot, a decode of the WAL and connections.
    copy_concurrency: count = 4, 1, 64;
    /// Connections that read one table: a large one must use the source's parallelism.
    copy_connections_per_table: count = 4, 1, 32;
    /// Latency that batching may add, in milliseconds.
    batch_ms: time = 100, 0, 60_000;
    /// Most events of a batch, 0 for no bound: lets tests cut batches at every place.
    batch_events: count = 0, 0, 65_536;
    /// Bytes of a batch: large enough for bulk sinks; rows are not the limit.
    batch_bytes: bytes = 8 * MIB, 64 * KIB, 256 * MIB;
    /// Bytes of all events and rows held: bounds the process whatever the transaction size.
    memory_bytes: bytes = 256 * MIB, 32 * MIB, 1 << 40;
    /// Longest frame of the source, in bytes: PostgreSQL's own maximum of a value.
    frame_bytes: bytes = GIB, 64 * KIB, GIB;
    /// Time between two feedbacks, in milliseconds: far below any `wal_sender_timeout`.
    feedback_ms: time = 1_000, 1, DAY_MS;
    /// Silence after which a connection counts as lost, in milliseconds.
    source_silence_ms: time = 60_000, 1, DAY_MS;
    /// Least time between two checkpoints of an idle stream, in milliseconds.
    idle_checkpoint_ms: time = 10_000, 1, DAY_MS;
    /// Bytes of WAL after which an idle stream's checkpoint moves at once: one WAL segment.
    idle_checkpoint_bytes: bytes = 16 * MIB, 4 * KIB, GIB;
    /// Batches accepted and not durable after which a lane is flushed.
    flush_batches: count = 8, 1, 65_536;
    /// Time after which accepted work is flushed, in milliseconds.
    flush_ms: time = 1_000, 1, DAY_MS;
    /// Distance to main, in bytes of WAL, at which a fence may close for a replaying table.
    fence_bytes: bytes = MIB, 4 * KIB, GIB;
    /// Longest fence of a table at first, in milliseconds: the delay main may suffer for a handover.
    fence_ms: time = 2_000, 1, DAY_MS;
    /// Longest fence after it grew, in milliseconds: covers slow sinks.
    fence_ms_max: time = 30_000, 1, DAY_MS;
    /// Step in which the write horizon is reserved, in bytes of WAL: one save per step.
    horizon_step_bytes: bytes = MIB, 4 * KIB, GIB;
    /// Time between two listings of the publication, in milliseconds: new tables appear soon.
    listing_ms: time = 10_000, 1, DAY_MS;
    /// Time between two heartbeats at the source, in milliseconds; 0 for none.
    heartbeat_ms: time = 0, 0, DAY_MS;
    /// Failures of the main scope without progress before the run ends: about 75 minutes.
    main_retries_max: count = 20, 0, 1_000;
    /// Tables set aside in an hour because of destination errors on main: more is a broken sink.
    quarantines_per_hour: count = 16, 0, 65_536;
    /// Failed attempts of a table before a person must look.
    retries_max: count = 5, 0, 1_000;
    /// First delay before a retry, in milliseconds.
    retry_ms: time = 5_000, 1, DAY_MS;
    /// Longest delay before a retry, in milliseconds.
    retry_ms_max: time = 300_000, 1, DAY_MS;
    /// Connect budget, in milliseconds.
    connect_ms: time = 30_000, 1, DAY_MS;
    /// Query budget, in milliseconds.
    query_ms: time = 30_000, 1, DAY_MS;
    /// Slot-creation budget, in milliseconds: it waits for the oldest running transaction.
    slot_creation_ms: time = 3_600_000, 1, DAY_MS;
    /// Busy-slot budget, in milliseconds: above the `wal_sender_timeout` of a dead predecessor.
    slot_busy_ms: time = 90_000, 1, DAY_MS;
    /// Budget of a destination operation, in milliseconds.
    destination_ms: time = 300_000, 1, DAY_MS;
    /// Budget of a save or check of the record, in milliseconds.
    store_ms: time = 30_000, 1, DAY_MS;
    /// Budget of an orderly stop, in milliseconds: common supervisors kill after 30 s.
    stop_ms: time = 25_000, 1, DAY_MS;
}

/// Connect budget of a first start (fixed): a mistyped address is seen at once (U-02).
pub(crate) const FIRST_CONNECT_MS: u64 = 5_000;
/// Poll of a busy slot: cheap for the source (fixed).
pub(crate) const BUSY_SLOT_POLL: Duration = Duration::from_millis(20);
/// Report of the blockers of slot creation (fixed).
pub(crate) const BLOCKER_REPORT: Duration = Duration::from_secs(10);
/// Monitor of the main slot (fixed).
pub(crate) const SLOT_MONITOR: Duration = Duration::from_secs(10);
/// Attempts that may end at the rewrite guard in a row (fixed).
pub(crate) const REWRITE_GUARD_REPEATS: u32 = 10;
/// Pause before asking for the next keepalive while the run waits for its end (L-08).
pub(crate) const UNTIL_POLL: Duration = Duration::from_millis(50);
/// Bytes of one range of a copy: small ranges keep tails short (fixed, K-20).
pub(crate) const COPY_RANGE_BYTES: u64 = 64 * MIB;
/// Ranges for each reader of a copy at least, so that none is left with the longest (fixed, K-20).
pub(crate) const COPY_RANGES_PER_READER: u64 = 4;
/// Ranges of one copy at most (fixed, K-20).
pub(crate) const COPY_RANGES_MAX: u64 = 1_024;
/// Copy monitor (fixed, K-22).
pub(crate) const COPY_MONITOR: Duration = Duration::from_secs(10);
/// Nothing moved for so long although something was to do: the run is stalled (fixed, L-02).
pub(crate) const STALLED: Duration = Duration::from_secs(60);
/// A replaying table whose distance to main did not shrink for so long is reported (fixed, W-18).
pub(crate) const NOT_CONVERGING: Duration = Duration::from_secs(600);
/// Smallest batch target (B-04).
pub(crate) const BATCH_BYTES_MIN: u64 = 64 * KIB;
/// A column count above PostgreSQL's own maximum is refused (fixed).
pub const COLUMNS_MAX: usize = 1_600;

impl Limits {
    fn validate_pairs(&self) -> Result<(), ConfigError> {
        if self.source_silence_ms < 2 * self.feedback_ms {
            return Err(ConfigError::OutOfRange {
                key: "source_silence_ms",
                found: self.source_silence_ms.to_string(),
                allowed: format!("at least twice feedback_ms = {}", self.feedback_ms),
            });
        }
        if self.fence_ms > self.fence_ms_max {
            return Err(ConfigError::OutOfRange {
                key: "fence_ms",
                found: self.fence_ms.to_string(),
                allowed: format!("at most fence_ms_max = {}", self.fence_ms_max),
            });
        }
        if self.retry_ms > self.retry_ms_max {
            return Err(ConfigError::OutOfRange {
                key: "retry_ms",
                found: self.retry_ms.to_string(),
                allowed: format!("at most retry_ms_max = {}", self.retry_ms_max),
            });
        }
        Ok(())
    }
}

impl Config {
    /// Checks everything that can be checked without IO (Z-01).
    ///
    /// # Errors
    /// The first value that is not allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |key, found: &str, allowed: &str| {
            Err(ConfigError::OutOfRange {
                key,
                found: found.to_owned(),
                allowed: allowed.to_owned(),
            })
        };
        if self.publication.is_empty() || self.publication.len() > 63 {
            return refuse("publication", &self.publication, "a name of 1..63 bytes");
        }
        if self.database.is_empty() {
            return refuse("database", "", "a name");
        }
        if self.destination.id.is_empty() {
            return refuse("destination_id", "", "a text");
        }
        if self.destination.lanes_max == 0 || self.destination.copy_in_flight_max == 0 {
            return refuse("lanes_max, copy_in_flight_max", "0", "at least 1");
        }
        self.limits.validate()
    }
}

fn check(key: &'static str, found: u64, min: u64, max: u64) -> Result<(), ConfigError> {
    if (min..=max).contains(&found) {
        return Ok(());
    }
    Err(ConfigError::OutOfRange { key, found: found.to_string(), allowed: format!("{min}..{max}") })
}

fn parse(key: &'static str, text: &str, min: u64, max: u64) -> Result<u64, ConfigError> {
    let value = text.parse().map_err(|_| ConfigError::OutOfRange {
        key,
        found: text.to_owned(),
        allowed: format!("a whole number in {min}..{max}"),
    })?;
    check(key, value, min, max)?;
    Ok(value)
}

/// The key with the fewest edits, if it is near enough to be meant.
fn nearest(key: &str, keys: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    keys.map(|candidate| (edits(key, candidate), candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= candidate.len() / 3)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance in bytes.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substitute = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    // Z-04: 0, 1, max and max + 1 of each row, and the default
    #[test]
    fn each_limit_accepts_its_range_and_nothing_else() {
        for &(key, default, min, max) in RANGES {
            for value in [0, 1, min, default, max, max + 1] {
                let set = Limits::default().set(key, &value.to_string());
                assert_eq!(set.is_ok(), (min..=max).contains(&value), "{key} = {value}");
            }
            for text in ["", "-1", "1.5", "x", " 1"] {
                assert!(Limits::default().set(key, text).is_err(), "{key} = {text:?}");
            }
        }
        assert_eq!(Limits::default().validate(), Ok(()));
    }

    // Z-01
    #[test]
    fn an_unknown_key_names_the_nearest() {
        let error = Limits::default().set("batch_byte", "1").unwrap_err();
        assert_eq!(error.to_string(), "unknown setting batch_byte, did you mean batch_bytes?");
        let error = Limits::default().set("colour", "1").unwrap_err();
        assert_eq!(error.to_string(), "unknown setting colour");
    }

    #[test]
    fn pairs_that_contradict_each_other_are_refused() {
        let mut limits = Limits { feedback_ms: 40_000, ..Limits::default() };
        assert!(limits.validate().is_err());
        limits = Limits { retry_ms: 400_000, ..Limits::default() };
        assert!(limits.validate().is_err());
        assert!(Limits::default().set("slot_prefix", "Bad").is_err());
    }
}
