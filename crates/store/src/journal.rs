//! Changes after the last whole save: what a save changed, and how changes are put on a record.
//!
//! Pure. Parts are compared by their contents, and cheaply where they are shared, so that a
//! wrong hint about what changed can cost time and never data.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use walferry_core::ids::TableId;
use walferry_core::record::Record;

use crate::codec::{self, Body, Change, Snapshot};
use crate::error::StoreError;

/// What `after` changed, as save number `sequence` on top of the snapshot `base`.
pub(crate) fn difference(base: &str, sequence: u64, before: &Record, after: &Record) -> Change {
    let mut head = after.clone();
    head.tables = Arc::default();
    head.tombstones = Arc::default();
    Change {
        base: base.to_owned(),
        sequence,
        head,
        tables: changed_entries(&before.tables, &after.tables),
        tombstones: changed_entries(&before.tombstones, &after.tombstones),
    }
}

fn changed_entries<V: Clone + Eq>(
    before: &Arc<BTreeMap<TableId, V>>,
    after: &Arc<BTreeMap<TableId, V>>,
) -> BTreeMap<TableId, Option<V>> {
    if Arc::ptr_eq(before, after) {
        return BTreeMap::new();
    }
    let gone =
        before.keys().filter(|&table| !after.contains_key(table)).map(|&table| (table, None));
    let changed = after
        .iter()
        .filter(|&(table, entry)| before.get(table) != Some(entry))
        .map(|(&table, entry)| (table, Some(entry.clone())));
    gone.chain(changed).collect()
}

/// Puts one change on a record.
fn apply(record: &mut Record, change: Change) {
    let tables = core::mem::take(&mut record.tables);
    let tombstones = core::mem::take(&mut record.tombstones);
    *record = change.head;
    record.tables = apply_entries(tables, change.tables);
    record.tombstones = apply_entries(tombstones, change.tombstones);
}

fn apply_entries<V: Clone>(
    mut entries: Arc<BTreeMap<TableId, V>>,
    changed: BTreeMap<TableId, Option<V>>,
) -> Arc<BTreeMap<TableId, V>> {
    if !changed.is_empty() {
        let entries = Arc::make_mut(&mut entries);
        for (table, entry) in changed {
            match entry {
                Some(entry) => drop(entries.insert(table, entry)),
                None => drop(entries.remove(&table)),
            }
        }
    }
    entries
}

/// Puts the journal's completed saves on the snapshot with the checksum `base`. A journal of another
/// snapshot is a leftover; a torn last entry is a save that was never completed. Both are ignored.
pub(crate) fn replay(
    snapshot: &mut Snapshot,
    base: &str,
    journal: &[u8],
    path: &Path,
) -> Result<(), StoreError> {
    let mut rest = journal;
    while !rest.is_empty() {
        let change = match codec::decode_first::<Change>(rest, path) {
            Ok(decoded) => {
                rest = &rest[decoded.bytes..];
                decoded.body
            }
            Err(error) if entry_follows(rest, base) => return Err(error),
            Err(_) => break,
        };
        if change.base != base {
            break;
        }
        let expected = snapshot.sequence + 1;
        if change.sequence != expected {
            let found = format!("save {}", change.sequence);
            return Err(codec::corrupt(path, "entry", &format!("save {expected}"), found));
        }
        snapshot.sequence = expected;
        apply(&mut snapshot.record, change);
    }
    Ok(())
}

/// Whether behind the bad entry that `bytes` starts with there is a good one of this journal: then
/// the bad one is no torn tail but damage.
fn entry_follows(bytes: &[u8], base: &str) -> bool {
    let magic = Change::MAGIC.as_bytes();
    (1..bytes.len().saturating_sub(magic.len())).filter(|&at| bytes[at..].starts_with(magic)).any(
        |at| {
            codec::decode_first::<Change>(&bytes[at..], Path::new(""))
                .is_ok_and(|entry| entry.body.base == base)
        },
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{arbitrary_record, record, tables};

    const BASE: &str = "base";

    fn path() -> &'static Path {
        Path::new("journal")
    }

    fn entry(base: &str, sequence: u64, before: &Record, after: &Record) -> Vec<u8> {
        codec::encode(&difference(base, sequence, before, after), path()).unwrap().bytes
    }

    /// Three saves on top of save 5, each moving the checkpoint: records and journal entries.
    fn three_saves() -> (Vec<Record>, Vec<Vec<u8>>) {
        let parts = tables(3);
        let records: Vec<_> = (20..24).map(|at| record(1, at, parts.clone())).collect();
        let entries = records
            .windows(2)
            .zip(6..)
            .map(|(pair, sequence)| entry(BASE, sequence, &pair[0], &pair[1]))
            .collect();
        (records, entries)
    }

    fn replayed(from: &Record, journal: &[u8]) -> Result<Record, StoreError> {
        let mut snapshot = Snapshot { sequence: 5, record: from.clone() };
        replay(&mut snapshot, BASE, journal, path()).map(|()| snapshot.record)
    }

    // V-05
    #[test]
    fn a_moved_checkpoint_writes_no_table() {
        let (records, entries) = three_saves();
        let before_tables = difference(BASE, 6, &records[0], &records[1]);
        assert!(before_tables.tables.is_empty() && before_tables.tombstones.is_empty());
        let large = tables(5_000);
        let (a, b) = (record(1, 20, large.clone()), record(1, 21, large));
        assert_eq!(entry(BASE, 6, &a, &b).len(), entries[0].len());
    }

    // V-05, R-F6
    #[test]
    fn a_journal_cut_anywhere_gives_the_last_whole_save() {
        let (records, entries) = three_saves();
        let journal = entries.concat();
        for cut in 0..=journal.len() {
            let whole = entries
                .iter()
                .scan(0, |end, entry| {
                    *end += entry.len();
                    Some(*end)
                })
                .filter(|&end| end <= cut)
                .count();
            assert_eq!(
                replayed(&records[0], &journal[..cut]).unwrap(),
                records[whole],
                "cut {cut}"
            );
        }
        for tail in [vec![0; 4_096], b"walferry-change 1 9999 ".to_vec(), vec![0xFF]] {
            let torn = [journal.as_slice(), &tail].concat();
            assert_eq!(replayed(&records[0], &torn).unwrap(), records[3]);
        }
        walferry_coverage::reached("R-F6");
    }

    #[test]
    fn damage_before_a_whole_entry_is_no_torn_tail() {
        let (records, entries) = three_saves();
        let journal = entries.concat();
        let last = entries[0].len() + entries[1].len();
        for at in (0..last).step_by(7) {
            let mut damaged = journal.clone();
            damaged[at] ^= 1;
            assert!(replayed(&records[0], &damaged).is_err(), "byte {at}");
        }
        let hole = [entries[0].as_slice(), &entries[2]].concat();
        let error = replayed(&records[0], &hole).unwrap_err().to_string();
        assert_eq!(error, "journal is damaged: entry is save 8, expected save 7");
    }

    // R-F4: the crash came between a whole save and the removal of the journal before it
    #[test]
    fn a_journal_of_another_snapshot_is_ignored() {
        let (records, _) = three_saves();
        let other = entry("other", 6, &records[0], &records[1]);
        assert_eq!(replayed(&records[0], &other).unwrap(), records[0]);
        walferry_coverage::reached("R-F4");
    }

    proptest! {
        // V-I3
        #[test]
        fn replay_inverts_difference(before in arbitrary_record(), after in arbitrary_record()) {
            let journal = entry(BASE, 6, &before, &after);
            prop_assert_eq!(replayed(&before, &journal).unwrap(), after);
            walferry_coverage::reached("V-I3");
        }
    }
}
