//! Where lines go: appending, syncing, and repairing what a crash has torn.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use walferry_core::fault::DestinationClass;
use walferry_core::ids::Epoch;

use super::claim::{self, Claim};
use crate::contract::DestinationError;

/// An open sink. After a failure that may have left half a line nothing is written any more.
pub(super) struct Sink {
    out: Out,
    broken: bool,
}

enum Out {
    File { path: PathBuf, file: File, pipeline: String, length: u64, synced: bool },
    Stream(Box<dyn Write + Send>),
}

impl Sink {
    /// Claims, opens and repairs a file.
    pub(super) fn file(path: &Path, claim: &Claim) -> Result<Self, DestinationError> {
        look(path)?;
        claim::take(path, claim)?;
        let open = || {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
            let length = repair(&mut file)?;
            file.sync_all()?;
            sync_folder(path)?;
            Ok((file, length))
        };
        let (file, length) = open().map_err(|error| failed(path, "open it", error))?;
        let (path, pipeline) = (path.to_owned(), claim.pipeline.clone());
        Ok(Self { out: Out::File { path, file, pipeline, length, synced: true }, broken: false })
    }

    /// Something that cannot be read back, like standard output.
    pub(super) fn stream(out: Box<dyn Write + Send>) -> Self {
        Self { out: Out::Stream(out), broken: false }
    }

    /// Whether a call of `epoch` may write (DS-14).
    pub(super) fn admit(&self, epoch: Epoch) -> Result<(), DestinationError> {
        match &self.out {
            Out::File { path, pipeline, .. } => claim::admit(path, pipeline, epoch),
            Out::Stream(_) => Ok(()),
        }
    }

    /// Appends whole lines, or nothing.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<(), DestinationError> {
        self.check()?;
        match &mut self.out {
            Out::File { path, file, length, synced, .. } => {
                *synced = false;
                match file.write_all(lines) {
                    Ok(()) => *length += lines.len() as u64,
                    Err(error) => {
                        self.broken = file.set_len(*length).is_err();
                        let mut error = failed(path, "append to it", error);
                        error.no_effect_on_others = !self.broken;
                        return Err(error);
                    }
                }
            }
            Out::Stream(out) => {
                if let Err(error) = out.write_all(lines).and_then(|()| out.flush()) {
                    self.broken = true;
                    return Err(failed(Path::new("-"), "write to standard output", error));
                }
            }
        }
        Ok(())
    }

    /// Makes everything appended durable, as far as the sink can.
    pub(super) fn sync(&mut self) -> Result<(), DestinationError> {
        self.check()?;
        match &mut self.out {
            Out::File { path, file, synced, .. } => {
                if !*synced {
                    // What a failed sync has dropped no later one brings back.
                    file.sync_data().map_err(|error| {
                        self.broken = true;
                        failed(path, "sync it", error)
                    })?;
                    *synced = true;
                }
                Ok(())
            }
            Out::Stream(_) => Ok(()),
        }
    }

    fn check(&self) -> Result<(), DestinationError> {
        if !self.broken {
            return Ok(());
        }
        let message = match &self.out {
            Out::File { path, .. } => {
                format!("file {}: an earlier write failed; start again", path.display())
            }
            Out::Stream(_) => "standard output: an earlier write failed".to_owned(),
        };
        Err(DestinationError::new(DestinationClass::Manual, message).of_the_sink())
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("broken", &self.broken).finish_non_exhaustive()
    }
}

fn look(path: &Path) -> Result<(), DestinationError> {
    let problem = if path.is_dir() {
        "it is a folder; name a file in it".to_owned()
    } else if path.exists() && !path.is_file() {
        "it is not a regular file; use jsonl:- and a redirection".to_owned()
    } else if let Some(folder) = path.parent().filter(|folder| !folder.is_dir()) {
        let folder = folder.display();
        format!("its folder does not exist; create it: mkdir -p '{folder}'")
    } else {
        return Ok(());
    };
    let message = format!("file {}: {problem}", path.display());
    Err(DestinationError::new(DestinationClass::Manual, message).of_the_sink())
}

/// Cuts off what follows the last newline. Returns the length that is left.
fn repair(file: &mut File) -> io::Result<u64> {
    let mut chunk = [0; 8_192];
    let length = file.seek(SeekFrom::End(0))?;
    let mut end = length;
    while end > 0 {
        let size = usize::try_from(end).unwrap_or(chunk.len()).min(chunk.len());
        let start = end - size as u64;
        file.seek(SeekFrom::Start(start))?;
        let part = chunk.get_mut(..size).unwrap_or_default();
        file.read_exact(part)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            end = start + at as u64 + 1;
            break;
        }
        end = start;
    }
    if end < length {
        tracing::warn!(bytes = length - end, "a torn last line was cut off");
        file.set_len(end)?;
    }
    Ok(end)
}

/// Makes the name of a new file durable.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// What an error of the file system means: nothing of it passes by itself.
pub(super) fn failed(path: &Path, doing: &str, error: io::Error) -> DestinationError {
    use io::ErrorKind::{
        BrokenPipe, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    let steps = [
        (StorageFull, "; free space on its disk, then start again"),
        (QuotaExceeded, "; its user may not store more there"),
        (BrokenPipe, "; its reader has gone"),
        (PermissionDenied, "; give this user the right to write there"),
        (ReadOnlyFilesystem, "; its file system is read-only"),
    ];
    let next = steps.iter().find(|(kind, _)| *kind == error.kind()).map_or("", |(_, next)| next);
    let message = format!("file {}: cannot {doing}{next}", path.display());
    DestinationError::new(DestinationClass::Manual, message).caused_by(error).of_the_sink()
}
