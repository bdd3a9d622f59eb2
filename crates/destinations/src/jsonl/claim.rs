//! Who owns a file of lines: a small file beside it (DS-16).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use walferry_core::fault::DestinationClass;
use walferry_core::ids::Epoch;

use super::sink;
use crate::contract::DestinationError;

/// Version of the lines and of this file. A newer one is refused.
const FORMAT: u32 = 1;

/// Who wants the file.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) pipeline: String,
    pub(super) epoch: Epoch,
    pub(super) take_over: bool,
}

/// What stands in the claim file.
#[derive(Debug, Serialize, Deserialize)]
struct Owner {
    format: u32,
    pipeline: String,
    epoch: Epoch,
}

/// Path of the claim file of a file of lines.
pub(super) fn path(lines: &Path) -> PathBuf {
    let mut path = lines.as_os_str().to_owned();
    path.push(".walferry");
    path.into()
}

/// Makes (pipeline, epoch) the owner of the file, or says who is.
pub(super) fn take(lines: &Path, claim: &Claim) -> Result<(), DestinationError> {
    match read(lines)? {
        Some(owner) => allowed(lines, claim, &owner)?,
        None => {
            let holds_lines = fs::metadata(lines).is_ok_and(|found| found.len() > 0);
            if holds_lines && !claim.take_over {
                return Err(manual(
                    lines,
                    "it is not empty and walferry did not write it; name another file or move it \
                     away",
                ));
            }
        }
    }
    let owner = Owner { format: FORMAT, pipeline: claim.pipeline.clone(), epoch: claim.epoch };
    let place = path(lines);
    replace(&place, &owner).map_err(|error| sink::failed(&place, "claim the file", error))
}

/// Whether a call of `epoch` may still write; read anew each time, because another process may have
/// taken the file meanwhile (DS-14).
pub(super) fn admit(lines: &Path, pipeline: &str, epoch: Epoch) -> Result<(), DestinationError> {
    let Some(owner) = read(lines)? else {
        return Err(manual(lines, "its claim file is gone; start again"));
    };
    if owner.pipeline != pipeline || owner.epoch > epoch {
        let (name, newer) = (&owner.pipeline, owner.epoch);
        let message = format!(
            "file {}: a newer run owns it (pipeline {name:?}, epoch {newer}; this one has {epoch})",
            lines.display()
        );
        return Err(DestinationError::new(DestinationClass::Fenced, message));
    }
    Ok(())
}

fn allowed(lines: &Path, claim: &Claim, owner: &Owner) -> Result<(), DestinationError> {
    let (found, wanted) = (&owner.pipeline, &claim.pipeline);
    if owner.format > FORMAT {
        let format = owner.format;
        let problem = format!(
            "it was written by a newer walferry (format {format}, this one knows {FORMAT}); use \
             that version"
        );
        return Err(manual(lines, &problem));
    }
    if found != wanted {
        if claim.take_over {
            return Ok(());
        }
        let problem = format!(
            "it belongs to the pipeline {found:?}, this is {wanted:?}; use another file, or \
             --take-over if {found:?} will never run again"
        );
        return Err(manual(lines, &problem));
    }
    if owner.epoch > claim.epoch {
        let message = format!(
            "file {}: a newer run owns it (epoch {}, this one has {})",
            lines.display(),
            owner.epoch,
            claim.epoch
        );
        return Err(DestinationError::new(DestinationClass::Fenced, message));
    }
    Ok(())
}

fn read(lines: &Path) -> Result<Option<Owner>, DestinationError> {
    let place = path(lines);
    match fs::read(&place) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let place = place.display();
            let problem = format!(
                "its claim file {place} is damaged; remove both files, or only the claim file and \
                 start with --take-over"
            );
            manual(lines, &problem).caused_by(error)
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(sink::failed(&place, "read it", error)),
    }
}

fn replace(place: &Path, owner: &Owner) -> io::Result<()> {
    let mut draft = place.as_os_str().to_owned();
    draft.push(".new");
    let draft = PathBuf::from(draft);
    let mut file = File::create(&draft)?;
    file.write_all(serde_json::to_string(owner)?.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, place)?;
    sink::sync_folder(place)
}

fn manual(lines: &Path, problem: &str) -> DestinationError {
    let message = format!("file {}: {problem}", lines.display());
    DestinationError::new(DestinationClass::Manual, message).of_the_sink()
}
