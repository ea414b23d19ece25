//! The disk of a host: it fills up, fails, and loses what was not synced when the power does.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::TryLockError,
    io::{self, Cursor, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use sluicegate_server::simulation::{Disk, LockFile, NewFile, OpenFile, PathKind, StateFile};

use crate::random::Random;

/// The path of the state file, and how the names of all files next to it begin.
pub(super) const STATE_FILE: &str = "/state/table";

/// One write in this number takes only a part of its bytes.
const SHORT_WRITES: u64 = 50;

/// Why a disk is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Off {
    /// The process has ended.
    Process,
    /// The power has failed.
    Power,
}

/// A disk. Clones are the same one.
#[derive(Clone, Debug)]
pub(super) struct SimulatedDisk(Arc<Mutex<DiskState>>);

#[derive(Debug)]
struct DiskState {
    random: Random,
    /// Files by number.
    files: Vec<FileState>,
    /// The numbers of files by name, as programs see them and as they are on the disk.
    names: BTreeMap<PathBuf, usize>,
    synced_names: BTreeMap<PathBuf, usize>,
    /// Changes of names since the folder was synced, in order. Some of them are on the disk as well.
    changes: Vec<NameChange>,
    locked: BTreeSet<PathBuf>,
    /// Names that could not be removed.
    unremoved: BTreeSet<PathBuf>,
    /// The bytes that it has space for in the next file.
    space: usize,
    /// Operations until one fails, and until the power does.
    fails_in: Option<u64>,
    power_fails_in: Option<u64>,
    /// Why nothing that a process does has an effect.
    off: Option<Off>,
}

#[derive(Debug)]
struct FileState {
    bytes: Vec<u8>,
    /// How many of them are on the disk for sure.
    synced: usize,
}

#[derive(Clone, Debug)]
enum NameChange {
    Created(PathBuf, usize),
    Renamed(PathBuf, PathBuf),
    Removed(PathBuf),
}

impl SimulatedDisk {
    pub(super) fn new(random: Random) -> Self {
        Self(Arc::new(Mutex::new(DiskState {
            random,
            files: Vec::new(),
            names: BTreeMap::new(),
            synced_names: BTreeMap::new(),
            changes: Vec::new(),
            locked: BTreeSet::new(),
            unremoved: BTreeSet::new(),
            space: usize::MAX,
            fails_in: None,
            power_fails_in: None,
            off: None,
        })))
    }

    /// Opens the state file of a process that starts.
    pub(super) fn open_state_file(&self) -> Result<StateFile> {
        let file = StateFile::open(Arc::new(self.clone()), Path::new(STATE_FILE));
        file.context("cannot open the state file")
    }

    /// The disk has space for this number of bytes of the next file.
    pub(super) fn fill(&self, space: usize) {
        self.0.lock().space = space;
    }

    /// The operation after this number of others fails.
    pub(super) fn fail_in(&self, operations: u64) {
        self.0.lock().fails_in = Some(operations);
    }

    /// The power fails instead of the operation after this number of others.
    pub(super) fn fail_power_in(&self, operations: u64) {
        self.0.lock().power_fails_in = Some(operations);
    }

    /// The file that is locked is removed. Its lock does not apply to another file of the same name.
    pub(super) fn remove_lock(&self) {
        let mut disk = self.0.lock();
        let locked = std::mem::take(&mut disk.locked);
        locked.into_iter().for_each(|path| disk.change(NameChange::Removed(path)));
    }

    /// Nothing that the process still does has an effect.
    pub(super) fn turn_off(&self, off: Off) {
        let mut disk = self.0.lock();
        disk.off = disk.off.max(Some(off));
    }

    /// Why it is off, if it is.
    pub(super) fn off(&self) -> Option<Off> {
        self.0.lock().off
    }

    /// Another process uses it, and the faults of the disk have been repaired. If the power failed, what was not synced is lost
    /// in part.
    pub(super) fn start_process(&self) {
        let mut disk = self.0.lock();
        if disk.off == Some(Off::Power) {
            disk.lose_power();
        }
        (disk.off, disk.fails_in, disk.power_fails_in) = (None, None, None);
        disk.locked.clear();
        disk.unremoved.clear();
    }

    /// Which file has this name, if there is one.
    pub(super) fn number(&self, path: &Path) -> Option<usize> {
        self.0.lock().names.get(path).copied()
    }

    /// A temporary file that could have been removed.
    pub(super) fn leftover(&self) -> Option<PathBuf> {
        let disk = self.0.lock();
        let is_leftover = |path: &&PathBuf| {
            path.to_string_lossy().contains(".tmp") && !disk.unremoved.contains(*path)
        };
        disk.names.keys().find(is_leftover).cloned()
    }

    /// Changes the bytes of a file, if there is one.
    pub(super) fn damage(&self, path: &Path, damage: impl FnOnce(&mut Vec<u8>)) {
        let mut disk = self.0.lock();
        let Some(&number) = disk.names.get(path) else { return };
        let file = &mut disk.files[number];
        damage(&mut file.bytes);
        file.synced = file.bytes.len();
    }
}

impl DiskState {
    /// Begins an operation.
    fn begin(&mut self) -> io::Result<()> {
        if self.off.is_some() {
            return Err(io::Error::other("the process has ended"));
        }
        match &mut self.power_fails_in {
            Some(0) => {
                self.off = Some(Off::Power);
                return Err(io::Error::other("the power fails"));
            }
            Some(left) => *left -= 1,
            None => {}
        }
        match &mut self.fails_in {
            Some(0) => {
                self.fails_in = None;
                return Err(io::Error::other("the disk fails"));
            }
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }

    fn change(&mut self, change: NameChange) {
        change.apply_to(&mut self.names);
        self.changes.push(change);
    }

    /// Some of the last changes of names have not happened, and files end within their last bytes.
    fn lose_power(&mut self) {
        let happened = self.random.index(self.changes.len() + 1);
        for change in self.changes.drain(..).take(happened) {
            change.apply_to(&mut self.synced_names);
        }
        self.names.clone_from(&self.synced_names);
        for file in &mut self.files {
            let lost = file.bytes.len() - file.synced;
            file.bytes.truncate(file.synced + self.random.index(lost + 1));
            file.synced = file.bytes.len();
        }
    }
}

impl NameChange {
    fn apply_to(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Self::Created(path, number) => {
                names.insert(path.clone(), *number);
            }
            Self::Renamed(from, to) => {
                if let Some(number) = names.remove(from) {
                    names.insert(to.clone(), number);
                }
            }
            Self::Removed(path) => {
                names.remove(path);
            }
        }
    }
}

impl Disk for SimulatedDisk {
    fn kind(&self, path: &Path) -> io::Result<PathKind> {
        let found = self.number(path).map(|_| PathKind::File);
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn open_lock(&self, path: &Path) -> io::Result<Box<dyn LockFile>> {
        let mut disk = self.0.lock();
        disk.begin()?;
        let number = match disk.names.get(path) {
            Some(number) => *number,
            None => disk.create(path),
        };
        Ok(Box::new(Lock { disk: self.clone(), path: path.to_owned(), number }))
    }

    fn file_names(&self, folder: &Path) -> io::Result<Vec<OsString>> {
        let disk = self.0.lock();
        let paths = disk.names.keys().filter(|path| path.parent() == Some(folder));
        Ok(paths.filter_map(|path| path.file_name().map(OsString::from)).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        let mut disk = self.0.lock();
        disk.begin()?;
        if disk.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let number = disk.create(path);
        Ok(Box::new(WrittenFile { disk: self.clone(), number }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let mut disk = self.0.lock();
        disk.begin()?;
        let number = *disk.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Cursor::new(disk.files[number].bytes.clone())))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.0.lock();
        disk.begin()?;
        if !disk.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        disk.change(NameChange::Renamed(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.0.lock();
        if let Err(error) = disk.begin() {
            disk.unremoved.insert(path.to_owned());
            return Err(error);
        }
        if !disk.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        disk.change(NameChange::Removed(path.to_owned()));
        Ok(())
    }

    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        let mut disk = self.0.lock();
        disk.begin()?;
        disk.changes.clear();
        disk.synced_names = disk.names.clone();
        Ok(())
    }
}

impl DiskState {
    fn create(&mut self, path: &Path) -> usize {
        self.files.push(FileState { bytes: Vec::new(), synced: 0 });
        let number = self.files.len() - 1;
        self.change(NameChange::Created(path.to_owned(), number));
        number
    }
}

/// A file that is being written.
struct WrittenFile {
    disk: SimulatedDisk,
    number: usize,
}

impl Write for WrittenFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut disk = self.disk.0.lock();
        disk.begin()?;
        let is_short = bytes.len() > 1 && disk.random.below(SHORT_WRITES) == 0;
        let taken = if is_short { &bytes[..bytes.len() / 2] } else { bytes };
        if disk.files[self.number].bytes.len() + taken.len() > disk.space {
            disk.space = usize::MAX;
            return Err(io::ErrorKind::StorageFull.into());
        }
        disk.files[self.number].bytes.extend_from_slice(taken);
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl NewFile for WrittenFile {
    fn sync(&mut self) -> io::Result<()> {
        let mut disk = self.disk.0.lock();
        disk.begin()?;
        let file = &mut disk.files[self.number];
        file.synced = file.bytes.len();
        Ok(())
    }
}

/// A file to lock.
#[derive(Debug)]
struct Lock {
    disk: SimulatedDisk,
    path: PathBuf,
    number: usize,
}

impl LockFile for Lock {
    fn try_lock(&self) -> Result<(), TryLockError> {
        let is_free = self.disk.0.lock().locked.insert(self.path.clone());
        if is_free { Ok(()) } else { Err(TryLockError::WouldBlock) }
    }

    fn is_at(&self, path: &Path) -> bool {
        self.disk.number(path) == Some(self.number)
    }
}
