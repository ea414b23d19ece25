//! State in a file, so that a restart is no amnesty.
//!
//! A snapshot is written beside the file, synced, and put in its place by a rename, which is synced
//! too: whatever moment the process or the machine dies, the file is a whole one or there is none.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::Timestamp;
use sluicegate_memory::{MemoryStore, SnapshotError};
use tokio::sync::oneshot;

use crate::{Config, shared::Shared};

/// What became of the snapshots so far.
#[derive(Debug, Default)]
pub(crate) struct Snapshots(Mutex<Told>);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// When the last good one was written.
    pub(crate) at: Option<Timestamp>,
    /// The keys in it.
    pub(crate) keys: u64,
    pub(crate) written: u64,
    pub(crate) failed: u64,
    /// Whether the last one failed.
    pub(crate) failing: bool,
}

impl Snapshots {
    pub(crate) fn told(&self) -> Told {
        *self.0.lock()
    }
}

/// The store as the state file says, or an empty one. A file that cannot be understood is set aside.
pub(crate) fn load(config: &Config, now: Timestamp) -> io::Result<MemoryStore> {
    let empty = || MemoryStore::bounded(config.max_memory, config.when_full);
    let Some(path) = &config.state_file else { return Ok(empty()) };
    let told = |error: io::Error| {
        io::Error::new(error.kind(), format!("state file {}: {error}", path.display()))
    };
    if config.test_clock {
        let excluded = "a state file and a test clock exclude each other";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, excluded));
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::info!(path = %path.display(), "there is no state file yet: starting empty");
            return Ok(empty());
        }
        Err(error) => return Err(told(error)),
    };
    match MemoryStore::load(BufReader::new(file), now, config.max_memory, config.when_full) {
        Ok(store) => {
            tracing::info!(path = %path.display(), keys = store.len(), "state was read");
            Ok(store)
        }
        Err(SnapshotError::Io(error)) => Err(told(error)),
        Err(error) => {
            let aside = aside(path, now);
            fs::rename(path, &aside).map_err(told)?;
            let (path, aside) = (path.display(), aside.display());
            tracing::warn!(%path, %error, %aside, "the state file was set aside: starting empty");
            Ok(empty())
        }
    }
}

/// Where a damaged file goes.
fn aside(path: &Path, now: Timestamp) -> PathBuf {
    beside(path, &format!(".damaged-{}", now.as_micros() / 1_000_000))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Writes the state to the file: all of it, or nothing. Tells how many keys it has.
fn save(store: &MemoryStore, path: &Path, now: Timestamp) -> Result<u64, SnapshotError> {
    let new = beside(path, ".tmp");
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    // It holds the keys of the hash: who knows them can make keys that collide.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut out = BufWriter::with_capacity(256 * 1024, options.open(&new)?);
    let keys = store.save(&mut out, now)?;
    out.flush()?;
    out.get_ref().sync_all()?;
    fs::rename(&new, path)?;
    // The rename is lasting once the directory is.
    #[cfg(unix)]
    {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(keys)
}

/// The thread that writes snapshots. To drop it instead of [finishing](Writer::finish) writes none.
pub(crate) struct Writer {
    last: mpsc::Sender<()>,
    finished: oneshot::Receiver<()>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Starts the thread, if state is to be kept.
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Option<Self>> {
        let Some(path) = shared.config.state_file.clone() else { return Ok(None) };
        let (last, wanted) = mpsc::channel();
        let (finishing, finished) = oneshot::channel();
        let shared = Arc::clone(shared);
        let run = move || {
            let every = match shared.config.snapshot_every {
                Duration::ZERO => Duration::MAX,
                every => every,
            };
            loop {
                match wanted.recv_timeout(every) {
                    Ok(()) => break snapshot(&shared, &path),
                    Err(mpsc::RecvTimeoutError::Timeout) => snapshot(&shared, &path),
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
            }
            let _ = finishing.send(());
        };
        let thread = std::thread::Builder::new().name("sluicegate-state".into()).spawn(run)?;
        Ok(Some(Self { last, finished, thread }))
    }

    /// Writes a last snapshot and ends the thread.
    pub(crate) async fn finish(self) {
        let _ = self.last.send(());
        let _ = self.finished.await;
        let _ = self.thread.join();
    }
}

fn snapshot(shared: &Shared, path: &Path) {
    let now = shared.now();
    let Some(store) = shared.home.memory() else { return };
    let saved = save(store, path, now);
    let mut told = shared.snapshots.0.lock();
    told.failing = saved.is_err();
    match saved {
        Ok(keys) => {
            told.at = Some(now);
            told.keys = keys;
            told.written += 1;
            tracing::debug!(keys, "state was written");
        }
        Err(error) => {
            told.failed += 1;
            tracing::error!(path = %path.display(), %error, "state could not be written");
        }
    }
}
