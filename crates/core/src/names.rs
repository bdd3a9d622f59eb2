//! Names and prefixes (N-02..N-06): slots, and the text ids of events (N-07, N-09).

use sha2::{Digest, Sha256};

use crate::ids::{Attempt, EventKey, TableId};
use crate::lsn::{CommitLsn, Lsn};
use crate::record::Identity;

/// Longest prefix: 32 + `_` + 24 = 57, below the 63 of a slot name.
pub const PREFIX_CHARS_MAX: usize = 32;
const NONCE_DIGITS: usize = 24;

/// Prefix of the logical messages that measure the lag (A-15, N-15).
pub const HEARTBEAT_PREFIX: &str = "walferry_heartbeat";

/// Whether `name` may name a slot (N-06).
#[must_use]
pub fn valid_slot(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Whether `prefix` may start a main slot's name (N-06).
#[must_use]
pub fn valid_prefix(prefix: &str) -> bool {
    valid_slot(prefix) && prefix.len() <= PREFIX_CHARS_MAX
}

/// Name of the main slot of a new pipeline (N-01, N-02).
#[must_use]
pub fn main_slot(prefix: &str, nonce: [u8; 12]) -> String {
    format!("{prefix}_{}", hex::encode(nonce))
}

/// Whether `name` is a main slot's name with exactly this prefix (N-02).
#[must_use]
pub fn is_main_slot(prefix: &str, name: &str) -> bool {
    name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_')).is_some_and(|nonce| {
        nonce.len() == NONCE_DIGITS
            && nonce.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

/// Prefix of the copy slots that belong to a main slot (N-03).
#[must_use]
pub fn copy_slot_prefix(main_slot: &str) -> String {
    let digest = hex::encode(Sha256::digest(main_slot.as_bytes()));
    format!("walferry_copy_{}_", &digest[..NONCE_DIGITS])
}

/// Name of the temporary slot of one attempt (N-04).
#[must_use]
pub fn copy_slot(main_slot: &str, attempt: Attempt) -> String {
    format!("{}{attempt}", copy_slot_prefix(main_slot))
}

/// Name of the persistent slot of a table's copy, with slot failover (N-05). The attempt is not part
/// of it: whatever a process that died left behind has the name that the next one looks for.
#[must_use]
pub fn failover_copy_slot(main_slot: &str, table: TableId) -> String {
    format!("{}o{table}", copy_slot_prefix(main_slot))
}

/// Whether a logical message with this prefix describes a schema change (N-15).
#[must_use]
pub fn is_ddl_prefix(prefix: &str) -> bool {
    matches!(prefix, "walferry_ddl" | "supabase_etl_ddl")
}

/// Text id of a source transaction (N-07). The timeline is not part of it.
#[must_use]
pub fn transaction_id(identity: &Identity, commit: CommitLsn) -> String {
    format!("{}/{}/{}/{commit}", identity.system_id, identity.database, identity.slot)
}

/// Text id of a row change (N-09).
#[must_use]
pub fn event_id(identity: &Identity, key: EventKey) -> String {
    format!("{}/{}", transaction_id(identity, key.commit), key.ordinal)
}

/// Text id of one table's part of a truncate (N-09).
#[must_use]
pub fn truncate_id(identity: &Identity, key: EventKey, table: TableId) -> String {
    format!("{}/table/{table}", event_id(identity, key))
}

/// Text id of a logical message (N-09).
#[must_use]
pub fn message_id(identity: &Identity, commit: CommitLsn, lsn: Lsn) -> String {
    format!("{}/message/{lsn}", transaction_id(identity, commit))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // N-02, N-F3
    #[test]
    fn a_slot_of_another_prefix_is_not_ours() {
        let slot = main_slot("a_b", [0xAB; 12]);
        assert!(is_main_slot("a_b", &slot));
        assert!(!is_main_slot("a", &slot));
        assert!(!is_main_slot("a_b", &slot.to_uppercase()));
        assert!(!is_main_slot("a_b", &slot[..slot.len() - 1]));
        assert!(!is_main_slot("a_b", &format!("{slot}0")));
        walferry_coverage::reached("N-F3");
    }

    // N-I1, N-F2
    #[test]
    fn the_longest_names_are_valid_slot_names() {
        let main = main_slot(&"p".repeat(PREFIX_CHARS_MAX), [0xFF; 12]);
        assert!(valid_slot(&main));
        assert!(valid_slot(&copy_slot(&main, Attempt(u64::MAX))));
        assert!(valid_slot(&failover_copy_slot(&main, TableId(u32::MAX))));
        assert_eq!(copy_slot_prefix(&main).len(), 39);
        walferry_coverage::reached("N-F2");
    }

    // N-I3
    #[test]
    fn copy_slots_of_two_pipelines_do_not_mix() {
        let (a, b) = (main_slot("x", [1; 12]), main_slot("x", [2; 12]));
        assert!(!copy_slot(&a, Attempt(1)).starts_with(&copy_slot_prefix(&b)));
        assert!(!failover_copy_slot(&a, TableId(1)).starts_with(&copy_slot_prefix(&b)));
        walferry_coverage::reached("N-I3");
    }

    // N-05: derivable from durable data, found by the prefix of U-09, never that of an attempt
    #[test]
    fn a_persistent_copy_slot_is_named_after_its_table() {
        let main = main_slot("x", [1; 12]);
        let name = failover_copy_slot(&main, TableId(16_384));
        assert_eq!(name.strip_prefix(&copy_slot_prefix(&main)), Some("o16384"));
        assert_ne!(name, copy_slot(&main, Attempt(16_384)));
    }

    proptest! {
        // N-I1, N-I3
        #[test]
        fn every_slot_name_is_valid_and_belongs_to_one_pipeline(
            prefix in "[a-z0-9_]{1,32}", other in "[a-z0-9_]{1,32}",
            nonces: ([u8; 12], [u8; 12]), attempt: u64,
        ) {
            prop_assume!(valid_prefix(&prefix) && valid_prefix(&other));
            let (a, b) = (main_slot(&prefix, nonces.0), main_slot(&other, nonces.1));
            let copy = copy_slot(&a, Attempt(attempt));
            for slot in [&a, &copy] {
                let alphabet = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
                prop_assert!((1..=63).contains(&slot.len()) && slot.bytes().all(alphabet));
            }
            prop_assert!(copy.starts_with(&copy_slot_prefix(&a)));
            prop_assert_eq!(copy.starts_with(&copy_slot_prefix(&b)), a == b);
            walferry_coverage::reached("N-I1");
            walferry_coverage::reached("N-I3");
        }
    }

    // N-06
    #[test]
    fn names_outside_the_alphabet_are_refused() {
        for name in ["", "A", "a-b", "a b", "ä", &"x".repeat(64)] {
            assert!(!valid_slot(name), "{name}");
        }
        assert!(!valid_prefix(&"x".repeat(33)));
    }

    // N-07, N-09
    #[test]
    fn text_ids_follow_the_key() {
        let identity = Identity {
            system_id: "7".to_owned(),
            timeline: 3,
            database: "app".to_owned(),
            slot: "s".to_owned(),
            publication: "p".to_owned(),
        };
        let key = EventKey { commit: CommitLsn(Lsn(0x1_0000_00FF)), ordinal: 4 };
        assert_eq!(event_id(&identity, key), "7/app/s/1/FF/4");
        assert_eq!(truncate_id(&identity, key, TableId(9)), "7/app/s/1/FF/4/table/9");
        assert_eq!(message_id(&identity, key.commit, Lsn(1)), "7/app/s/1/FF/message/0/1");
    }
}
