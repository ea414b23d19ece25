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
    fs::{self, File, OpenOptions, TryLockError},
    hash::{BuildHasher, RandomState},
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
};

use sluicegate_commands::plain_error;

/// Hexadecimal digits in the name of a temporary file.
const DIGITS: usize = 16;

/// A state file that no other server uses, until dropped.
#[derive(Debug)]
pub(crate) struct StateFile {
    pub(crate) path: PathBuf,
    folder: PathBuf,
    name: OsString,
    /// Locked while it is open.
    lock: File,
}

impl StateFile {
    /// Locks the state file at `path`, and writes a file next to it, as a check that snapshots are possible.
    ///
    /// # Errors
    /// `path` is not a regular file, cannot be written, or is used by another server.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or_else(|| invalid(path, "expected the name of a file"))?;
        match fs::symlink_metadata(path).map(|found| found.file_type()) {
            Ok(kind) if kind.is_dir() => {
                return Err(invalid(path, "expected a file, not a folder"));
            }
            Ok(kind) if kind.is_symlink() => {
                return Err(invalid(path, "expected a file, not a symbolic link: name its target"));
            }
            Ok(kind) if !kind.is_file() => return Err(invalid(path, "expected a regular file")),
            Ok(_) if has_several_names(path) => {
                let expected = "expected a file with one name, because each of its hard links would have a lock \
                                of its own: copy it";
                return Err(invalid(path, expected));
            }
            // Errors show when the file is written.
            Ok(_) | Err(_) => {}
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new(".")).to_owned();
        let lock = lock(path, &with_suffix(path, ".lock"))?;
        let file = Self { path: path.to_owned(), folder, name: name.to_owned(), lock };
        file.remove_leftovers();
        let (temporary, _) = file.create_temporary().map_err(|error| unwritable(path, &error))?;
        fs::remove_file(temporary)?;
        Ok(file)
    }

    /// Replaces the file by the output of `write`. On errors it stays as it is; a lost lock is such an error, and is
    /// taken again for the next snapshot.
    pub(crate) fn replace<R, E: From<io::Error>>(
        &mut self,
        write: impl FnOnce(&mut BufWriter<File>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.keep_lock()?;
        let (temporary, file) = self.create_temporary()?;
        let written = (|| {
            let mut out = BufWriter::with_capacity(256 * 1024, file);
            let written = write(&mut out)?;
            out.flush()?;
            out.get_ref().sync_all()?;
            fs::rename(&temporary, &self.path)?;
            Ok(written)
        })();
        if written.is_err() {
            // The disk may be full, and an incomplete snapshot is useless.
            let _ = fs::remove_file(&temporary);
        }
        // A sync of the directory makes the rename durable.
        #[cfg(unix)]
        if written.is_ok() {
            File::open(&self.folder)?.sync_all()?;
        }
        written
    }

    /// Makes sure that the server holds the lock at the path where another server would look for it.
    fn keep_lock(&mut self) -> io::Result<()> {
        let path = with_suffix(&self.path, ".lock");
        if is_at(&self.lock, &path) {
            return Ok(());
        }
        self.lock = lock(&self.path, &path)?;
        let text = format!(
            "`{}` was removed or replaced, so another server may have used the state file; locked again for \
             the next snapshot",
            path.display()
        );
        Err(io::Error::other(text))
    }

    /// A new file next to the state file, for its owner alone.
    fn create_temporary(&self) -> io::Result<(PathBuf, File)> {
        let number = RandomState::new().hash_one(&self.name);
        let path = with_suffix(&self.path, &format!(".tmp-{number:0DIGITS$x}"));
        // It contains the keys of the hash, with which an attacker could make keys collide.
        let file = for_owner(File::options().write(true).create_new(true)).open(&path)?;
        Ok((path, file))
    }

    /// Removes temporary files of killed servers. No other server writes there, because this one holds the lock.
    fn remove_leftovers(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            if is_file
                && self.is_temporary(&entry.file_name())
                && let Err(error) = fs::remove_file(entry.path())
            {
                let path = entry.path();
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

fn lock(path: &Path, lock: &Path) -> io::Result<File> {
    if fs::symlink_metadata(lock).is_ok_and(|found| !found.is_file()) {
        return Err(invalid(lock, "expected a regular file, which locks the state file"));
    }
    let mut options = File::options();
    let file = for_owner(options.write(true).create(true).truncate(false)).open(lock);
    let file = file.map_err(|error| unwritable(path, &error))?;
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

/// Whether `file` is the one at `path`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let held = file.metadata();
    held.and_then(|held| Ok((held, fs::symlink_metadata(path)?)))
        .is_ok_and(|(held, there)| (held.dev(), held.ino()) == (there.dev(), there.ino()))
}

/// Other systems do not let an open file be removed or renamed.
#[cfg(not(unix))]
const fn is_at(_: &File, _: &Path) -> bool {
    true
}

#[cfg(unix)]
fn has_several_names(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).is_ok_and(|found| found.nlink() > 1)
}

#[cfg(not(unix))]
const fn has_several_names(_: &Path) -> bool {
    false
}

#[cfg_attr(not(unix), expect(clippy::missing_const_for_fn, reason = "there is no mode to set"))]
fn for_owner(options: &mut OpenOptions) -> &OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
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
