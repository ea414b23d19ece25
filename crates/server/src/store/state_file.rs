//! The state file: used by one server at a time, and replaced atomically.
//!
//! - The lock is on a separate file, `PATH.lock`, because each snapshot replaces `PATH` by another file. The
//!   system releases the lock at the end of the process; the file stays. If an operator removes or renames it,
//!   another server can lock a new one, so before each snapshot the server checks that it holds the file at that path.
//! - A file with several names (hard links) would have several locks, and is rejected.
//! - A snapshot is written to a new file, `PATH.tmp-` and sixteen random digits, synced, and renamed to `PATH`.
//!   Symbolic links are never followed. Whenever the process or the machine dies, the state file is complete or absent.

use std::{
    ffi::{OsStr, OsString},
    fs::TryLockError,
    hash::{BuildHasher, RandomState},
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use sluicegate_commands::plain_error;
use sluicegate_core::reached;

use crate::store::disk::{Disk, LockFile, NewFile, PathKind};

/// Hexadecimal digits in the name of a temporary file.
const DIGITS: usize = 16;

/// A state file that no other server uses, until dropped.
#[derive(Debug)]
pub struct StateFile {
    disk: Arc<dyn Disk>,
    pub(crate) path: PathBuf,
    folder: PathBuf,
    name: OsString,
    /// Locked while it is open.
    lock: Box<dyn LockFile>,
}

impl StateFile {
    /// Locks the state file at `path`, and writes a file next to it, as a check that snapshots are possible.
    ///
    /// # Errors
    /// `path` is not a regular file, cannot be written, or is used by another server.
    pub fn open(disk: Arc<dyn Disk>, path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or_else(|| invalid(path, "expected the name of a file"))?;
        let expected = match disk.kind(path) {
            Ok(PathKind::Folder) => "expected a file, not a folder",
            Ok(PathKind::SymbolicLink) => "expected a file, not a symbolic link: name its target",
            Ok(PathKind::Other) => "expected a regular file",
            Ok(PathKind::FileWithSeveralNames) => {
                "expected a file with one name, because each of its hard links would have a lock of its own: \
                 copy it"
            }
            // Errors show when the file is written.
            Ok(PathKind::File) | Err(_) => "",
        };
        if !expected.is_empty() {
            return Err(invalid(path, expected));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new(".")).to_owned();
        let lock = lock(&*disk, path, &with_suffix(path, ".lock"))?;
        let file = Self { disk, path: path.to_owned(), folder, name: name.to_owned(), lock };
        file.remove_leftovers();
        let (temporary, _) = file.create_temporary().map_err(|error| unwritable(path, &error))?;
        file.disk.remove(&temporary)?;
        Ok(file)
    }

    /// Replaces the file by the output of `write`. On errors it stays as it is; a lost lock is such an error, and is
    /// taken again for the next snapshot.
    ///
    /// # Errors
    /// That of `write`, or the disk fails. If only the last step fails, which makes the new name survive a failure of the power,
    /// the file has been replaced.
    pub fn replace<R, E: From<io::Error>>(
        &mut self,
        write: impl FnOnce(&mut BufWriter<Box<dyn NewFile>>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.keep_lock()?;
        let (temporary, file) = self.create_temporary()?;
        let written = (|| {
            let mut out = BufWriter::with_capacity(256 * 1024, file);
            let written = write(&mut out)?;
            out.flush()?;
            out.get_mut().sync()?;
            self.disk.rename(&temporary, &self.path)?;
            Ok(written)
        })();
        if written.is_err() {
            reached!(SnapshotFails);
            // The disk may be full, and an incomplete snapshot is useless.
            let _ = self.disk.remove(&temporary);
        } else {
            // A sync of the folder makes the rename durable.
            self.disk.sync_folder(&self.folder)?;
        }
        written
    }

    /// Makes sure that the server holds the lock at the path where another server would look for it.
    fn keep_lock(&mut self) -> io::Result<()> {
        let path = with_suffix(&self.path, ".lock");
        if self.lock.is_at(&path) {
            return Ok(());
        }
        self.lock = lock(&*self.disk, &self.path, &path)?;
        reached!(LockOfStateFileIsLost);
        let text = format!(
            "`{}` was removed or replaced, so another server may have used the state file; locked again for \
             the next snapshot",
            path.display()
        );
        Err(io::Error::other(text))
    }

    /// A new file next to the state file, for its owner alone.
    fn create_temporary(&self) -> io::Result<(PathBuf, Box<dyn NewFile>)> {
        let number = RandomState::new().hash_one(&self.name);
        let path = with_suffix(&self.path, &format!(".tmp-{number:0DIGITS$x}"));
        // It contains the keys of the hash, with which an attacker could make keys collide.
        let file = self.disk.create(&path)?;
        Ok((path, file))
    }

    /// Removes temporary files of killed servers. No other server writes there, because this one holds the lock.
    fn remove_leftovers(&self) {
        let names = self.disk.file_names(&self.folder).unwrap_or_default();
        for name in names.iter().filter(|name| self.is_temporary(name)) {
            let path = self.folder.join(name);
            reached!(TemporaryFileIsLeftOver);
            if let Err(error) = self.disk.remove(&path) {
                tracing::warn!(path = %path.display(), %error, "cannot remove a temporary file");
            }
        }
    }

    /// Whether this is the name of an incomplete snapshot, of this version or an older one.
    fn is_temporary(&self, name: &OsStr) -> bool {
        let (name, own) = (name.as_encoded_bytes(), self.name.as_encoded_bytes());
        let Some(rest) = name.strip_prefix(own).and_then(|rest| rest.strip_prefix(b".tmp")) else {
            return false;
        };
        let digits = rest.strip_prefix(b"-").unwrap_or_default();
        rest.is_empty() || digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit)
    }
}

/// A path with `suffix` at the end of its file name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn lock(disk: &dyn Disk, path: &Path, lock: &Path) -> io::Result<Box<dyn LockFile>> {
    if disk.kind(lock).is_ok_and(|kind| !kind.is_file()) {
        return Err(invalid(lock, "expected a regular file, which locks the state file"));
    }
    let file = disk.open_lock(lock).map_err(|error| unwritable(path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let (path, lock) = (path.display(), lock.display());
            let used = format!(
                "state file `{path}` is unavailable: another server uses it and has locked `{lock}`; use \
                 another file for each server"
            );
            Err(io::Error::new(io::ErrorKind::AddrInUse, used))
        }
        Err(TryLockError::Error(error)) => {
            let (path, lock) = (path.display(), lock.display());
            let text = format!(
                "state file `{path}` is unavailable: `{lock}` cannot be locked: {}",
                plain_error(&error)
            );
            Err(io::Error::new(error.kind(), text))
        }
    }
}

fn invalid(path: &Path, expected: &str) -> io::Error {
    let text = format!("invalid state file `{}`: {expected}", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn unwritable(path: &Path, error: &io::Error) -> io::Error {
    invalid(
        path,
        &format!(
            "expected a file in a folder that exists and can be written to ({})",
            plain_error(error)
        ),
    )
}
