use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use tempfile::TempDir;
use walferry_core::ids::TableId;

use super::*;
use crate::contract::suite;
use crate::testing::{Tables, record, tables};

const ALL: Changed = Changed { head: true, checkpoint: true, tables: true };
const CHECKPOINT: Changed = Changed { head: false, checkpoint: true, tables: false };
const TOKEN: OwnerToken = OwnerToken([7; 16]);

/// A directory for the store that does not exist yet.
fn place() -> (TempDir, FileStore) {
    let parent = tempfile::tempdir().unwrap();
    let store = FileStore::open(parent.path().join("state"));
    (parent, store)
}

fn owned(store: &FileStore) -> OwnedFile {
    store.acquire(TOKEN).unwrap()
}

/// A store that holds checkpoint 20, with `count` tables and a record file of this owner.
fn saved(store: &FileStore, parts: &Tables) -> OwnedFile {
    let mut owned = owned(store);
    owned.save(&record(1, 20, parts.clone()), &ALL).unwrap();
    owned
}

fn checkpoint(store: &FileStore) -> u64 {
    store.observe().unwrap().unwrap().checkpoint.unwrap().0.0
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn bytes(store: &FileStore, name: &str) -> Vec<u8> {
    fs::read(store.dir().join(name)).unwrap()
}

#[test]
fn keeps_the_contract() {
    let (_parent, store) = place();
    suite::run(|| store.clone());
}

// V-05
#[test]
fn directory_and_files_are_for_their_owner_only() {
    let (_parent, store) = place();
    let mut owned = saved(&store, &tables(100));
    owned.save(&record(1, 21, tables(100)), &CHECKPOINT).unwrap();
    assert_eq!(mode(store.dir()), 0o700);
    for name in [LOCK, OWNER, RECORD, JOURNAL] {
        assert_eq!(mode(&store.dir().join(name)), 0o600, "{name}");
    }
    assert_eq!(bytes(&store, LOCK), format!("{}\n", std::process::id()).into_bytes());
}

// R-F1..F5, R-F8, R-F9, V-F5: the result of a failed save is the old or the new value, never another,
// and nothing is possible after it
#[test]
fn a_save_cut_at_each_step_leaves_one_whole_value() {
    let cases = [
        (2, Step::Write, 20, &["R-F1", "R-F8"][..]),
        (2, Step::Sync, 20, &["R-F2"]),
        (2, Step::Rename, 20, &["R-F3"]),
        (2, Step::SyncDir, 21, &["R-F4", "R-F9"]),
        (100, Step::Append, 20, &["R-F1"]),
        (100, Step::SyncJournal, 21, &["R-F9"]),
    ];
    for (count, step, expected, points) in cases {
        let (_parent, store) = place();
        let parts = tables(count);
        let mut first = saved(&store, &parts);
        first.cut.at = Some((step, io::ErrorKind::StorageFull));
        let error = first.save(&record(1, 21, parts.clone()), &CHECKPOINT).unwrap_err();
        assert!(error.chain().ends_with("no storage space"), "{}", error.chain());
        assert!(error.next_step().starts_with("free space"), "{}", error.next_step());
        first.cut.at = None;
        let again = first.save(&record(1, 22, parts.clone()), &CHECKPOINT);
        assert!(matches!(again, Err(StoreError::Poisoned { .. })));
        assert!(matches!(first.load(), Err(StoreError::Poisoned { .. })));
        assert!(matches!(first.check(), Err(StoreError::Poisoned { .. })));
        drop(first);
        assert_eq!(checkpoint(&store), expected, "{step:?}");
        // The next start goes on from there, over what the crash left behind (R-F7).
        let mut next = owned(&store);
        assert_eq!(next.load().unwrap(), Some(record(1, expected, parts.clone())));
        next.save(&record(2, 30, parts.clone()), &ALL).unwrap();
        next.save(&record(2, 31, parts.clone()), &CHECKPOINT).unwrap();
        assert_eq!(checkpoint(&store), 31, "{step:?}");
        // The process dies right behind the last sync.
        drop(next);
        assert_eq!(owned(&store).load().unwrap(), Some(record(2, 31, parts)));
        for &point in points.iter().chain(&["R-F5", "V-F5", "V-I4"]) {
            walferry_coverage::reached(point);
        }
    }
}

// R-F1..F3: crash in the first save of all
#[test]
fn a_first_save_that_is_cut_leaves_an_empty_place() {
    for step in [Step::Write, Step::Sync, Step::Rename] {
        let (_parent, store) = place();
        let mut first = owned(&store);
        first.cut.at = Some((step, io::ErrorKind::Other));
        assert!(first.save(&record(1, 20, tables(2)), &ALL).is_err());
        drop(first);
        assert_eq!(store.observe().unwrap(), None);
        assert_eq!(owned(&store).load().unwrap(), None);
    }
}

// R-F6
#[test]
fn a_torn_or_empty_record_is_damaged_and_said_to_be() {
    let (_parent, store) = place();
    drop(saved(&store, &tables(2)));
    let whole = bytes(&store, RECORD);
    for cut in [0, 1, whole.len() / 2, whole.len() - 1] {
        fs::write(store.dir().join(RECORD), &whole[..cut]).unwrap();
        for error in [store.observe().unwrap_err(), owned(&store).load().unwrap_err()] {
            assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
            assert!(error.to_string().contains("state/record is damaged"), "{error}");
        }
    }
    // A damaged record is never replaced.
    let mut blocked = owned(&store);
    assert!(blocked.save(&record(9, 99, tables(2)), &ALL).is_err());
    assert_eq!(bytes(&store, RECORD), &whole[..whole.len() - 1]);
    walferry_coverage::reached("R-F6");
}

// R-F7
#[test]
fn a_temporary_file_of_a_crash_does_not_matter() {
    let (_parent, store) = place();
    drop(saved(&store, &tables(2)));
    for name in ["record.tmp", "owner.tmp", JOURNAL] {
        fs::write(store.dir().join(name), "half a").unwrap();
    }
    let mut next = owned(&store);
    assert_eq!(next.load().unwrap(), Some(record(1, 20, tables(2))));
    next.save(&record(2, 21, tables(2)), &ALL).unwrap();
    assert_eq!(checkpoint(&store), 21);
    let temporary = store.dir().join("record.tmp");
    assert!(!temporary.exists() && !store.dir().join(JOURNAL).exists());
    walferry_coverage::reached("R-F7");
}

// R-F8
#[test]
fn a_directory_in_place_of_a_file_is_named() {
    for name in ["lock", "owner", "owner.tmp", "record", "record.tmp"] {
        let (_parent, store) = place();
        let path = store.dir().join(name);
        fs::create_dir_all(path.join("inside")).unwrap();
        let error = store
            .acquire(TOKEN)
            .and_then(|mut owned| owned.save(&record(1, 20, tables(2)), &ALL))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{} is a directory, expected a file", path.display()),
            "{name}"
        );
        assert!(error.next_step().contains(&format!("move {} away", path.display())));
    }
    walferry_coverage::reached("R-F8");
}

#[test]
fn a_place_that_cannot_be_a_directory_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    for store in [FileStore::open(&file), FileStore::open(file.join("below"))] {
        assert!(store.acquire(TOKEN).is_err());
        assert!(store.observe().is_err());
    }
    let error = FileStore::open(&file).acquire(TOKEN).unwrap_err();
    assert_eq!(error.to_string(), format!("{} is a file, expected a directory", file.display()));

    let deep = FileStore::open(parent.path().join("a/b"));
    let error = deep.acquire(TOKEN).unwrap_err();
    let (dir, above) = (deep.dir().display(), parent.path().join("a"));
    assert_eq!(
        error.to_string(),
        format!("{dir} cannot be created: {} does not exist", above.display())
    );
    assert_eq!(error.next_step(), format!("create it: mkdir -p {}", above.display()));
    assert_eq!(deep.observe().unwrap(), None);
}

// V-03, V-I2: whoever took the lock file or the token away has taken the place over
#[test]
fn a_late_save_of_an_owner_that_lost_the_place_changes_nothing() {
    let (_parent, store) = place();
    let mut late = saved(&store, &tables(2));
    fs::remove_file(store.dir().join(LOCK)).unwrap();
    assert!(matches!(late.check(), Err(StoreError::Fenced { .. })));
    let mut newer = store.acquire(OwnerToken([8; 16])).unwrap();
    newer.save(&record(2, 30, tables(2)), &ALL).unwrap();
    for epoch in [1, 2, 3] {
        let error = late.save(&record(epoch, 99, tables(2)), &ALL).unwrap_err();
        assert!(
            matches!(error, StoreError::Fenced { .. } | StoreError::Poisoned { .. }),
            "{error}"
        );
    }
    assert_eq!(checkpoint(&store), 30);

    fs::write(store.dir().join(OWNER), "0123\n").unwrap();
    let error = newer.check().unwrap_err().to_string();
    assert!(
        error.ends_with("owner is \"0123\", ours is 08080808080808080808080808080808"),
        "{error}"
    );
    assert!(matches!(newer.save(&record(2, 31, tables(2)), &ALL), Err(StoreError::Fenced { .. })));
    assert_eq!(checkpoint(&store), 30);
    walferry_coverage::reached("V-I2");
}

// V-05
#[test]
fn from_a_hundred_tables_on_a_checkpoint_leaves_the_record_file_alone() {
    let (_parent, store) = place();
    let parts = tables(101);
    let mut owned = saved(&store, &parts);
    let whole = bytes(&store, RECORD);
    for at in 21..40 {
        owned.save(&record(1, at, parts.clone()), &CHECKPOINT).unwrap();
        assert_eq!(checkpoint(&store), at);
    }
    assert!(bytes(&store, RECORD) == whole);
    assert!(bytes(&store, JOURNAL).len() / 19 < 1_000);

    // One changed table is written by itself; a wrong hint loses nothing.
    let mut changed = record(1, 40, parts);
    Arc::make_mut(&mut changed.tables).remove(&TableId(5));
    owned.save(&changed, &CHECKPOINT).unwrap();
    assert!(bytes(&store, RECORD) == whole);
    assert_eq!(owned.load().unwrap(), Some(changed.clone()));

    // The first save of the next owner is whole again, and the journal is gone.
    drop(owned);
    let mut next = self::owned(&store);
    assert_eq!(next.load().unwrap(), Some(changed.clone()));
    changed.epoch.0 += 1;
    next.save(&changed, &ALL).unwrap();
    assert!(!store.dir().join(JOURNAL).exists());
    assert_eq!(store.observe().unwrap(), Some(changed));
}

#[test]
fn a_journal_larger_than_its_record_is_folded_into_it() {
    let (_parent, store) = place();
    let parts = tables(100);
    let mut owned = saved(&store, &parts);
    let limit = JOURNAL_BYTES_MIN.max(bytes(&store, RECORD).len() as u64);
    let whole = bytes(&store, RECORD);
    let base = owned.base.as_mut().unwrap();
    base.journal_bytes = limit;
    owned.save(&record(1, 21, parts.clone()), &CHECKPOINT).unwrap();
    assert!(bytes(&store, RECORD) == whole);
    owned.save(&record(1, 22, parts.clone()), &CHECKPOINT).unwrap();
    assert!(bytes(&store, RECORD) != whole);
    assert!(!store.dir().join(JOURNAL).exists());
    owned.save(&record(1, 23, parts), &CHECKPOINT).unwrap();
    assert_eq!(checkpoint(&store), 23);
}

// R-F4 with a journal: the record is replaced, and the crash comes before the journal is removed
#[test]
fn a_journal_that_outlived_its_record_is_ignored() {
    let (_parent, store) = place();
    let parts = tables(100);
    let mut owned = saved(&store, &parts);
    owned.save(&record(1, 21, parts.clone()), &CHECKPOINT).unwrap();
    let journal = bytes(&store, JOURNAL);
    drop(owned);
    let mut next = self::owned(&store);
    // The same values as at first: only the number of the save tells the record files apart.
    next.save(&record(1, 20, parts.clone()), &ALL).unwrap();
    fs::write(store.dir().join(JOURNAL), journal).unwrap();
    assert_eq!(checkpoint(&store), 20);
    walferry_coverage::reached("R-F4");
}

//
#[test]
fn observers_see_whole_values_in_order_while_the_owner_saves() {
    let (_parent, store) = place();
    let mut owned = saved(&store, &tables(100));
    let writer = std::thread::spawn(move || {
        let parts = tables(100);
        for at in 21..200 {
            if at % 10 == 0 {
                owned.base = None; // the next save is whole
            }
            owned.save(&record(1, at, parts.clone()), &CHECKPOINT).unwrap();
        }
    });
    let mut seen = 20;
    while !writer.is_finished() {
        let at = checkpoint(&store);
        assert!(at >= seen, "{at} after {seen}");
        seen = at;
    }
    writer.join().unwrap();
    assert_eq!(checkpoint(&store), 199);
}

// R-F8
#[test]
fn a_refused_directory_is_named_with_what_to_do() {
    let error = StoreError::io("create", "/s/lock", io::ErrorKind::PermissionDenied.into());
    assert_eq!(error.chain(), "cannot create /s/lock: permission denied");
    assert_eq!(
        error.next_step(),
        "let this user read and write /s/lock, or name another place with --state"
    );
    let (_parent, store) = place();
    drop(saved(&store, &tables(2)));
    fs::set_permissions(store.dir(), fs::Permissions::from_mode(0o500)).unwrap();
    // The superuser may write everywhere, so there the call succeeds.
    if let Err(error) = store.acquire(TOKEN) {
        assert!(error.chain().contains("denied"), "{}", error.chain());
    }
    fs::set_permissions(store.dir(), fs::Permissions::from_mode(0o700)).unwrap();
}
