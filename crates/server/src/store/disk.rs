//! The disk that keeps the state file: that of the host, or one of a simulation.

use std::{
    ffi::OsString,
    fmt::Debug,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    path::Path,
};

/// The operations that a state file needs. Symbolic links are never followed.
pub trait Disk: Debug + Send + Sync {
    /// The kind of the entry at `path`.
    ///
    /// # Errors
    /// There is no entry, or it cannot be read.
    fn kind(&self, path: &Path) -> io::Result<PathKind>;

    /// Opens the lock at `path`, and makes its file if there is none.
    ///
    /// # Errors
    /// The file cannot be made or opened.
    fn open_lock(&self, path: &Path) -> io::Result<Box<dyn LockFile>>;

    /// The names of the regular files in `folder`.
    ///
    /// # Errors
    /// The folder cannot be read.
    fn file_names(&self, folder: &Path) -> io::Result<Vec<OsString>>;

    /// Makes a file that its owner alone can read.
    ///
    /// # Errors
    /// There is a file at `path`, or it cannot be made.
    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>>;

    /// Opens the file at `path`.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// Renames a file, and replaces the one at `to`.
    ///
    /// # Errors
    /// It cannot be renamed.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// It cannot be removed.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in `folder` survive a failure of the power.
    ///
    /// # Errors
    /// The disk fails.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// The kind of an entry of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A regular file.
    File,
    /// A regular file with more names than one.
    FileWithSeveralNames,
    /// A folder.
    Folder,
    /// A symbolic link.
    SymbolicLink,
    /// Anything else, such as a pipe.
    Other,
}

impl PathKind {
    pub(crate) const fn is_file(self) -> bool {
        matches!(self, Self::File | Self::FileWithSeveralNames)
    }
}

/// A file that is read.
pub trait OpenFile: Read + Seek + Send {}

impl<F: Read + Seek + Send> OpenFile for F {}

/// A file that is being written.
pub trait NewFile: Write + Send {
    /// Makes its bytes survive a failure of the power.
    ///
    /// # Errors
    /// The disk fails.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file whose lock ends when it is dropped.
pub trait LockFile: Debug + Send {
    /// Takes the lock.
    ///
    /// # Errors
    /// Another process has it, or the file cannot be locked.
    fn try_lock(&self) -> Result<(), TryLockError>;

    /// Whether this is the file at `path`.
    fn is_at(&self, path: &Path) -> bool;
}

/// The file system of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostDisk;

impl Disk for HostDisk {
    fn kind(&self, path: &Path) -> io::Result<PathKind> {
        let found = fs::symlink_metadata(path)?;
        let kind = found.file_type();
        Ok(if kind.is_dir() {
            PathKind::Folder
        } else if kind.is_symlink() {
            PathKind::SymbolicLink
        } else if !kind.is_file() {
            PathKind::Other
        } else if has_several_names(&found) {
            PathKind::FileWithSeveralNames
        } else {
            PathKind::File
        })
    }

    fn open_lock(&self, path: &Path) -> io::Result<Box<dyn LockFile>> {
        let mut options = File::options();
        let file = for_owner(options.write(true).create(true).truncate(false)).open(path)?;
        Ok(Box::new(file))
    }

    fn file_names(&self, folder: &Path) -> io::Result<Vec<OsString>> {
        let is_file = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
        let entries = fs::read_dir(folder)?.flatten().filter(is_file);
        Ok(entries.map(|entry| entry.file_name()).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        Ok(Box::new(for_owner(File::options().write(true).create_new(true)).open(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(File::open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    #[cfg(unix)]
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }

    /// Other systems cannot open a folder.
    #[cfg(not(unix))]
    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl NewFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl LockFile for File {
    fn try_lock(&self) -> Result<(), TryLockError> {
        Self::try_lock(self)
    }

    #[cfg(unix)]
    fn is_at(&self, path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        let held = self.metadata();
        held.and_then(|held| Ok((held, fs::symlink_metadata(path)?)))
            .is_ok_and(|(held, there)| (held.dev(), held.ino()) == (there.dev(), there.ino()))
    }

    /// Other systems do not let an open file be removed or renamed.
    #[cfg(not(unix))]
    fn is_at(&self, _: &Path) -> bool {
        true
    }
}

#[cfg(unix)]
fn has_several_names(found: &fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::nlink(found) > 1
}

#[cfg(not(unix))]
const fn has_several_names(_: &fs::Metadata) -> bool {
    false
}

#[cfg_attr(not(unix), expect(clippy::missing_const_for_fn, reason = "there is no mode to set"))]
fn for_owner(options: &mut OpenOptions) -> &OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}
