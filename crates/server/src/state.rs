//! State in a file, so that a restart does not reset limits.
//!
//! A snapshot is written beside the file, synced, and put in its place by a rename, which is synced
//! too ([`StateFile`]): whatever moment the process or the machine dies, the file is a whole one or there is none.

use std::{
    fs::{self, File},
    io::{self, BufReader},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_commands::plain_error;
use sluicegate_core::Timestamp;
use sluicegate_memory::{MemoryStore, SnapshotError};
use tokio::sync::oneshot;

use crate::{
    Config,
    shared::Shared,
    state_file::{StateFile, beside},
};

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

/// Opens the state file of this server, where there is one.
pub(crate) fn open(config: &Config) -> io::Result<Option<StateFile>> {
    let Some(path) = config.state_file.as_ref().filter(|_| config.store.is_none()) else {
        return Ok(None);
    };
    if config.test_clock {
        let excluded = "invalid --state-file together with --test-clock: remove one of them";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, excluded));
    }
    StateFile::open(path).map(Some)
}

/// The store as the state file says, or an empty one. A file that cannot be understood is set aside.
pub(crate) fn load(config: &Config, now: Timestamp) -> io::Result<MemoryStore> {
    let empty = || MemoryStore::bounded(config.max_memory, config.when_full);
    let Some(path) = &config.state_file else { return Ok(empty()) };
    let told = |error: io::Error| {
        let (path, reason) = (path.display(), plain_error(&error));
        io::Error::new(error.kind(), format!("cannot read the state file {path}: {reason}"))
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::info!(path = %path.display(), "no state file yet: starting empty");
            return Ok(empty());
        }
        Err(error) => return Err(told(error)),
    };
    match MemoryStore::load(BufReader::new(file), now, config.max_memory, config.when_full) {
        Ok(store) => {
            tracing::info!(path = %path.display(), keys = store.len(), "state file read");
            let (dropped, max_bytes) = (store.usage().keys_dropped, store.usage().max_bytes);
            if dropped > 0 {
                tracing::warn!(
                    kept = store.len(),
                    dropped,
                    max_bytes,
                    "the state file exceeds --max-memory: dropped the keys whose limits recover soonest"
                );
            }
            Ok(store)
        }
        Err(SnapshotError::Io(error)) => Err(told(error)),
        Err(error) => {
            let aside = aside(path, now);
            fs::rename(path, &aside).map_err(told)?;
            let (path, aside) = (path.display(), aside.display());
            tracing::warn!(%path, %error, %aside, "the state file is invalid: renamed it, starting empty");
            Ok(empty())
        }
    }
}

/// Where a damaged file goes.
fn aside(path: &Path, now: Timestamp) -> PathBuf {
    beside(path, &format!(".damaged-{}", now.as_micros() / 1_000_000))
}

/// The thread that writes snapshots. To drop it instead of [finishing](Writer::finish) writes none.
pub(crate) struct Writer {
    last: mpsc::Sender<()>,
    finished: oneshot::Receiver<()>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Starts the thread, if there is a state file. It holds that file's lock until it has ended.
    pub(crate) fn start(shared: &Arc<Shared>, file: Option<StateFile>) -> io::Result<Option<Self>> {
        let Some(mut file) = file else { return Ok(None) };
        let (last, wanted) = mpsc::channel();
        let (finishing, finished) = oneshot::channel();
        let shared = Arc::clone(shared);
        let run = move || {
            let every = match shared.config.snapshot_every {
                Duration::ZERO => Duration::MAX,
                every => every,
            };
            let mut failure = String::new();
            loop {
                match wanted.recv_timeout(every) {
                    Ok(()) => {
                        // What is lost now is logged, whatever was logged before.
                        failure.clear();
                        break snapshot(&shared, &mut file, &mut failure);
                    }
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        snapshot(&shared, &mut file, &mut failure);
                    }
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
            }
            drop(file);
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

/// Writes one. What made the last one fail is logged once.
fn snapshot(shared: &Shared, file: &mut StateFile, failure: &mut String) {
    let now = shared.now();
    let Some(store) = shared.home.memory() else { return };
    let saved = file.replace(|out| store.save(out, now));
    let mut told = shared.snapshots.0.lock();
    told.failing = saved.is_err();
    match saved {
        Ok(keys) => {
            told.at = Some(now);
            told.keys = keys;
            told.written += 1;
            failure.clear();
            tracing::debug!(keys, "state file written");
        }
        Err(error) => {
            told.failed += 1;
            let error = plain_error(&error).to_string();
            if *failure != error {
                tracing::error!(path = %file.path().display(), %error, "cannot write the state file");
                *failure = error;
            }
        }
    }
}
