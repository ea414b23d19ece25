//! The store in memory, with the state of the state file, so that a restart does not reset limits.

use std::{
    io::{self, BufReader},
    path::{Path, PathBuf},
    sync::Arc,
};

use sluicegate_commands::plain_error;
use sluicegate_core::{Timestamp, reached};
use sluicegate_memory::{MemoryStore, SnapshotError, WhenFull};

use crate::{
    Config,
    store::{
        disk::{Disk, HostDisk},
        state_file::{StateFile, with_suffix},
    },
};

/// Opens the state file of this server, if it has one.
pub(crate) fn open(config: &Config) -> io::Result<Option<StateFile>> {
    let Some(path) = config.memory.state_file.as_ref().filter(|_| config.store.is_none()) else {
        return Ok(None);
    };
    if config.test_clock {
        let excluded = "invalid --state-file together with --test-clock: remove one of them";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, excluded));
    }
    StateFile::open(Arc::new(HostDisk), path).map(Some)
}

/// The store of a server: with the state of its file, or empty.
pub(crate) fn load(config: &Config, now: Timestamp) -> io::Result<MemoryStore> {
    let (max_bytes, when_full) = (config.memory.max_bytes, config.memory.when_full);
    let loaded = match &config.memory.state_file {
        Some(path) => read(&HostDisk, path, now, max_bytes, when_full)?,
        None => None,
    };
    Ok(loaded.unwrap_or_else(|| MemoryStore::bounded(max_bytes, when_full)))
}

/// A store with the state of the file at `path`; `None` if there is no file, or a damaged one, which is renamed.
///
/// # Errors
/// The file cannot be read, or not renamed, needs more than `max_bytes`, or is of another kind: `path` may be the
/// wrong one.
pub fn read(
    disk: &dyn Disk,
    path: &Path,
    now: Timestamp,
    max_bytes: usize,
    when_full: WhenFull,
) -> io::Result<Option<MemoryStore>> {
    let cannot_read = |error: io::Error| {
        let (path, reason) = (path.display(), plain_error(&error));
        io::Error::new(error.kind(), format!("cannot read the state file {path}: {reason}"))
    };
    let file = match disk.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            reached!(StateFileIsMissing);
            tracing::info!(path = %path.display(), "no state file yet: starting empty");
            return Ok(None);
        }
        Err(error) => return Err(cannot_read(error)),
    };
    match MemoryStore::load(BufReader::new(file), now, max_bytes, when_full) {
        Ok(store) => {
            tracing::info!(path = %path.display(), keys = store.len(), "state file read");
            Ok(Some(store))
        }
        Err(SnapshotError::Io(error)) => Err(cannot_read(error)),
        Err(SnapshotError::NotStateFile) => {
            let invalid = format!(
                "invalid state file `{}`: expected a file that Sluicegate wrote; choose another path, or \
                 remove the file",
                path.display()
            );
            Err(io::Error::new(io::ErrorKind::InvalidData, invalid))
        }
        Err(SnapshotError::TooLarge { needed, max_bytes }) => {
            let (path, needed) = (path.display(), needed.div_ceil(1 << 20));
            let too_small = format!(
                "invalid --max-memory of {max_bytes} bytes: expected at least {needed}mb, which the state file \
                 `{path}` needs; raise it, or remove the file to start empty"
            );
            Err(io::Error::new(io::ErrorKind::InvalidInput, too_small))
        }
        Err(error) => {
            reached!(StateFileIsDamaged);
            let aside = quarantine_path(path, now);
            disk.rename(path, &aside).map_err(cannot_read)?;
            let (path, aside) = (path.display(), aside.display());
            tracing::warn!(%path, %error, %aside, "the state file is invalid: renamed it, starting empty");
            Ok(None)
        }
    }
}

/// The name to which a damaged file is renamed.
fn quarantine_path(path: &Path, now: Timestamp) -> PathBuf {
    with_suffix(path, &format!(".damaged-{}", now.as_micros() / 1_000_000))
}
