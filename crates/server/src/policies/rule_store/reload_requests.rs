//! Requests to the thread that watches the files.

use std::sync::mpsc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Result of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReloadReport {
    /// Number of the active version: the first is 1.
    pub version: u64,
    /// Number of its rules.
    pub rules: usize,
    /// Whether the reload changed it.
    pub changed: bool,
}

/// A request to the thread.
#[derive(Debug)]
pub(super) enum ReloadRequest {
    /// The files may have changed.
    Check,
    /// Read the files, and send the result.
    Reload(oneshot::Sender<Result<ReloadReport, String>>),
    Stop,
}

/// The queue of requests, which exists before the thread starts.
#[derive(Debug)]
pub(super) struct ReloadRequests {
    pub(super) sender: mpsc::Sender<ReloadRequest>,
    /// The thread takes it when it starts.
    pub(super) receiver: Mutex<Option<mpsc::Receiver<ReloadRequest>>>,
}

impl ReloadRequests {
    /// Reloads, now or when the thread starts. `None` if it has ended.
    pub(super) async fn reload(&self) -> Option<Result<ReloadReport, String>> {
        let (reply, result) = oneshot::channel();
        self.sender.send(ReloadRequest::Reload(reply)).ok()?;
        result.await.ok()
    }
}

impl Default for ReloadRequests {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel();
        Self { sender, receiver: Mutex::new(Some(receiver)) }
    }
}
