//! Snapshots of the state in memory, written to the state file while the server runs.

use std::{
    io,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_commands::plain_error;
use sluicegate_core::{Clock as _, Timestamp};
use tokio::sync::oneshot;

use crate::{
    clock::ServerClock,
    store::{open::LocalStore, state_file::StateFile},
};

/// The outcomes of the snapshots since the server started.
pub(crate) type SnapshotLog = Mutex<SnapshotStatus>;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SnapshotStatus {
    /// When the last complete one was written.
    pub(crate) at: Option<Timestamp>,
    /// The keys in it.
    pub(crate) keys: u64,
    pub(crate) written: u64,
    pub(crate) failed: u64,
    /// Whether the last one failed.
    pub(crate) failing: bool,
}

/// The thread that writes snapshots. To drop it instead of [finishing](SnapshotWriter::finish) writes none.
pub(crate) struct SnapshotWriter {
    last: mpsc::Sender<()>,
    finished: oneshot::Receiver<()>,
    thread: JoinHandle<()>,
}

/// The store that snapshots are taken of, the clock that dates them, and the log of their outcomes.
pub(crate) struct SnapshotSource {
    pub(crate) store: Arc<LocalStore>,
    pub(crate) clock: ServerClock,
    pub(crate) log: Arc<SnapshotLog>,
}

impl SnapshotWriter {
    /// Starts the thread. It holds the lock of that file until it has ended.
    /// `every` is the time between two snapshots; zero: one at the end.
    pub(crate) fn start(
        mut file: StateFile,
        every: Duration,
        source: SnapshotSource,
    ) -> io::Result<Self> {
        let (last, wanted) = mpsc::channel();
        let (finishing, finished) = oneshot::channel();
        let every = if every.is_zero() { Duration::MAX } else { every };
        let run = move || {
            let mut failure = String::new();
            loop {
                match wanted.recv_timeout(every) {
                    Ok(()) => {
                        // A failure of the last snapshot loses state: it is logged even if the previous one failed alike.
                        failure.clear();
                        break source.write(&mut file, &mut failure);
                    }
                    Err(mpsc::RecvTimeoutError::Timeout) => source.write(&mut file, &mut failure),
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
            }
            drop(file);
            let _ = finishing.send(());
        };
        let thread = std::thread::Builder::new().name("sluicegate-state".into()).spawn(run)?;
        Ok(Self { last, finished, thread })
    }

    /// Writes a last snapshot and ends the thread.
    pub(crate) async fn finish(self) {
        let _ = self.last.send(());
        let _ = self.finished.await;
        let _ = self.thread.join();
    }
}

impl SnapshotSource {
    /// Writes a snapshot. The error that made the last one fail is logged once.
    fn write(&self, file: &mut StateFile, failure: &mut String) {
        let now = self.clock.now();
        let saved = file.replace(|out| self.store.store().save(out, now));
        let mut status = self.log.lock();
        status.failing = saved.is_err();
        match saved {
            Ok(keys) => {
                status.at = Some(now);
                status.keys = keys;
                status.written += 1;
                failure.clear();
                tracing::debug!(keys, "state file written");
            }
            Err(error) => {
                status.failed += 1;
                let error = plain_error(&error).to_string();
                if *failure != error {
                    tracing::error!(path = %file.path.display(), %error, "cannot write the state file");
                    *failure = error;
                }
            }
        }
    }
}
