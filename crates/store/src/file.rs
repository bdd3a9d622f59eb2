//! The file store (V-05): a directory with the record, the journal of later changes, the lock and the
//! token of its owner.
//!
//! Each whole save replaces the record file by a rename; from `JOURNAL_TABLES` tables on a save
//! appends only what it changed to the journal. Either is complete when it is synced, not before.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use walferry_core::effect::Changed;
use walferry_core::record::Record;

use crate::codec::{self, Snapshot};
use crate::contract::{Owned, OwnerToken, Store};
use crate::error::StoreError;
use crate::journal;
use crate::read::{self, JOURNAL, RECORD};

/// Locked by the owner for as long as it lives; holds the pid of the last one.
const LOCK: &str = "lock";
/// Token of the last owner (V-03).
const OWNER: &str = "owner";
/// From this many tables on a save writes what it changed and no more.
const JOURNAL_TABLES: usize = 100;
/// A journal is folded into the record when it is larger than this and than the record itself: so
/// each byte is rewritten once or twice, and a start reads at most twice the record.
const JOURNAL_BYTES_MIN: u64 = 1 << 20;

/// A state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStore {
    dir: PathBuf,
}

/// An owned state directory.
#[derive(Debug)]
pub struct OwnedFile {
    dir: PathBuf,
    lock: File,
    token: OwnerToken,
    /// Last completed save, once it was read.
    last: Option<Last>,
    /// What this owner's last whole save wrote; before it there is none, so no journal is continued
    /// that somebody else began.
    base: Option<Base>,
    poisoned: bool,
    cut: Cut,
}

#[derive(Debug)]
struct Last {
    sequence: u64,
    record: Option<Record>,
}

#[derive(Debug)]
struct Base {
    sum: String,
    bytes: u64,
    journal: Option<File>,
    journal_bytes: u64,
}

/// Places inside a save where it can fail or the process can die (R-F1..F5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Write,
    Sync,
    Rename,
    SyncDir,
    Append,
    SyncJournal,
}

/// Where tests make a save fail; nothing otherwise.
#[derive(Debug, Default)]
struct Cut {
    #[cfg(test)]
    at: Option<(Step, io::ErrorKind)>,
}

impl FileStore {
    /// The store in directory `dir`. Does no IO.
    #[must_use]
    pub fn open(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn create_dir(&self) -> Result<(), StoreError> {
        let dir = &self.dir;
        match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => return sync_dir(parent(dir)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::ParentMissing {
                    path: dir.clone(),
                    parent: parent(dir).to_owned(),
                });
            }
            Err(error) => return Err(StoreError::io("create", dir, error)),
        }
        let meta = fs::metadata(dir).map_err(|e| StoreError::io("open", dir, e))?;
        if meta.is_dir() { Ok(()) } else { Err(read::wrong_kind(dir, "a directory", &meta)) }
    }

    fn lock(&self) -> Result<File, StoreError> {
        let path = self.dir.join(LOCK);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(|e| open_error("open", &path, e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = holder(&mut file);
                return Err(StoreError::Locked { path: self.dir.clone(), holder });
            }
            Err(TryLockError::Error(error)) => return Err(StoreError::io("lock", path, error)),
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(|e| StoreError::io("write", path, e))?;
        Ok(file)
    }
}

impl Store for FileStore {
    type Owned = OwnedFile;

    fn acquire(&self, token: OwnerToken) -> Result<OwnedFile, StoreError> {
        self.create_dir()?;
        let lock = self.lock()?;
        let owned = OwnedFile {
            dir: self.dir.clone(),
            lock,
            token,
            last: None,
            base: None,
            poisoned: false,
            cut: Cut::default(),
        };
        owned.replace_file(OWNER, format!("{token}\n").as_bytes())?;
        owned.holds()?;
        Ok(owned)
    }

    fn observe(&self) -> Result<Option<Record>, StoreError> {
        match fs::metadata(&self.dir) {
            Ok(meta) if meta.is_dir() => {}
            Ok(meta) => return Err(read::wrong_kind(&self.dir, "a directory", &meta)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io("open", &self.dir, error)),
        }
        Ok(read::read(&self.dir)?.map(|snapshot| snapshot.record))
    }
}

impl Owned for OwnedFile {
    fn load(&mut self) -> Result<Option<Record>, StoreError> {
        self.healthy()?;
        Ok(self.read_last()?.record.clone())
    }

    fn save(&mut self, record: &Record, _changed: &Changed) -> Result<(), StoreError> {
        self.healthy()?;
        // Stays set unless the save completes, whatever way it ends.
        self.poisoned = true;
        self.save_checked(record)?;
        self.poisoned = false;
        Ok(())
    }

    fn check(&mut self) -> Result<(), StoreError> {
        self.healthy()?;
        self.holds()
    }

    fn release(self) -> Result<(), StoreError> {
        self.lock.unlock().map_err(|e| StoreError::io("unlock", self.dir.join(LOCK), e))
    }
}

impl OwnedFile {
    fn read_last(&mut self) -> Result<&Last, StoreError> {
        let last = match read::read(&self.dir)? {
            Some(Snapshot { sequence, record }) => Last { sequence, record: Some(record) },
            None => Last { sequence: 0, record: None },
        };
        Ok(self.last.insert(last))
    }

    fn save_checked(&mut self, record: &Record) -> Result<(), StoreError> {
        codec::validate(record, &self.dir.join(RECORD))?;
        self.holds()?;
        if self.last.is_none() {
            self.read_last()?;
        }
        let last = self.last.take().unwrap_or(Last { sequence: 0, record: None });
        let sequence = last.sequence + 1;
        if let Some(stored) = last.record.as_ref().filter(|stored| stored.epoch > record.epoch) {
            let path = self.dir.join(RECORD);
            return Err(fenced(path, "epoch", record.epoch.to_string(), stored.epoch.to_string()));
        }
        match (self.base.take(), last.record) {
            (Some(base), Some(before))
                if record.tables.len() >= JOURNAL_TABLES && !base.is_due_for_folding() =>
            {
                self.append(base, sequence, &before, record)?;
            }
            (Some(_) | None, Some(_) | None) => self.replace_record(sequence, record)?,
        }
        self.last = Some(Last { sequence, record: Some(record.clone()) });
        Ok(())
    }

    /// Whether the lock and the token are still ours (V-03).
    fn holds(&self) -> Result<(), StoreError> {
        let path = self.dir.join(LOCK);
        let failed = |e| StoreError::io("look at", &path, e);
        let ours = self.lock.metadata().map_err(failed)?;
        match fs::metadata(&path) {
            Ok(found) if (found.dev(), found.ino()) == (ours.dev(), ours.ino()) => {}
            Ok(found) => {
                return Err(fenced(path, "inode", ours.ino().to_string(), found.ino().to_string()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(fenced(path, "inode", ours.ino().to_string(), "gone".to_owned()));
            }
            Err(error) => return Err(failed(error)),
        }
        let path = self.dir.join(OWNER);
        let bytes = read::read_file(&path, 64)?.unwrap_or_default();
        let found = String::from_utf8_lossy(&bytes);
        let (ours, found) = (self.token.to_string(), found.trim_end());
        if found == ours { Ok(()) } else { Err(fenced(path, "owner", ours, format!("{found:?}"))) }
    }

    fn healthy(&self) -> Result<(), StoreError> {
        if self.poisoned { Err(StoreError::Poisoned { path: self.dir.clone() }) } else { Ok(()) }
    }

    fn replace_record(&mut self, sequence: u64, record: &Record) -> Result<(), StoreError> {
        let path = self.dir.join(RECORD);
        let whole = Snapshot { sequence, record: record.clone() };
        let encoded = codec::encode(&whole, &path)?;
        if sequence == 1 {
            // Without a record file a journal has no meaning; this removes one whose file was lost.
            self.remove_journal()?;
        }
        self.replace_file(RECORD, &encoded.bytes)?;
        // A journal that stays because of a crash here belongs to the record before: it is ignored.
        self.remove_journal()?;
        self.base = Some(Base {
            sum: encoded.sum,
            bytes: encoded.bytes.len() as u64,
            journal: None,
            journal_bytes: 0,
        });
        Ok(())
    }

    fn append(
        &mut self,
        mut base: Base,
        sequence: u64,
        before: &Record,
        after: &Record,
    ) -> Result<(), StoreError> {
        let path = self.dir.join(JOURNAL);
        let failed = |action| {
            let path = path.clone();
            move |error| StoreError::io(action, path, error)
        };
        let change = journal::difference(&base.sum, sequence, before, after);
        let encoded = codec::encode(&change, &path)?;
        let begun = base.journal.is_none();
        let mut file = match base.journal.take() {
            Some(file) => file,
            None => create_new(&path)?,
        };
        self.cut.at(Step::Append).map_err(failed("append to"))?;
        file.write_all(&encoded.bytes).map_err(failed("append to"))?;
        self.cut.at(Step::SyncJournal).map_err(failed("sync"))?;
        file.sync_data().map_err(failed("sync"))?;
        if begun {
            sync_dir(&self.dir)?;
        }
        base.journal = Some(file);
        base.journal_bytes += encoded.bytes.len() as u64;
        self.base = Some(base);
        Ok(())
    }

    fn remove_journal(&self) -> Result<(), StoreError> {
        remove_leftover(&self.dir.join(JOURNAL))
    }

    /// Replaces a file of the directory by a rename; durable when it returns.
    fn replace_file(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let (path, temp) = (self.dir.join(name), self.dir.join(format!("{name}.tmp")));
        remove_leftover(&temp)?;
        let failed = |action| {
            let temp = temp.clone();
            move |error| StoreError::io(action, temp, error)
        };
        self.cut.at(Step::Write).map_err(failed("write"))?;
        let mut file = create_new(&temp)?;
        file.write_all(bytes).map_err(failed("write"))?;
        self.cut.at(Step::Sync).map_err(failed("sync"))?;
        file.sync_all().map_err(failed("sync"))?;
        self.cut.at(Step::Rename).map_err(failed("rename"))?;
        fs::rename(&temp, &path).map_err(|e| open_error("replace", &path, e))?;
        self.cut.at(Step::SyncDir).map_err(|e| StoreError::io("sync", &self.dir, e))?;
        sync_dir(&self.dir)
    }
}

impl Base {
    fn is_due_for_folding(&self) -> bool {
        self.journal_bytes > self.bytes.max(JOURNAL_BYTES_MIN)
    }
}

impl Cut {
    #[cfg(not(test))]
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "tests make it fail")]
    const fn at(&self, _step: Step) -> io::Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn at(&self, step: Step) -> io::Result<()> {
        match self.at {
            Some((at, kind)) if at == step => Err(kind.into()),
            Some(_) | None => Ok(()),
        }
    }
}

fn fenced(path: PathBuf, what: &'static str, expected: String, found: String) -> StoreError {
    StoreError::Fenced { path, what, expected, found }
}

/// Who holds the lock, as the lock file says.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.take(32).read_to_string(&mut text));
    match (read, text.trim().parse::<u32>()) {
        (Ok(_), Ok(pid)) => format!("process {pid}"),
        (Ok(_) | Err(_), Ok(_) | Err(_)) => "another process".to_owned(),
    }
}

fn parent(dir: &Path) -> &Path {
    match dir.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => dir,
    }
}

fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    let file = File::open(dir).map_err(|e| StoreError::io("open", dir, e))?;
    file.sync_all().map_err(|e| StoreError::io("sync", dir, e))
}

fn create_new(path: &Path) -> Result<File, StoreError> {
    let mut options = OpenOptions::new();
    options.append(true).create_new(true).mode(0o600);
    options.open(path).map_err(|e| open_error("create", path, e))
}

/// Removes a file of an earlier crash, if there is one.
fn remove_leftover(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(open_error("remove", path, error)),
    }
}

/// The error of a file that was to be opened, replaced or removed: if a directory is in its place,
/// that is the cause, whatever the system calls it.
fn open_error(action: &'static str, path: &Path, error: io::Error) -> StoreError {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => read::wrong_kind(path, "a file", &meta),
        Ok(_) | Err(_) => StoreError::io(action, path, error),
    }
}

#[cfg(test)]
mod tests;
