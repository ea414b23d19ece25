//! The thread that reloads rules when their files change, or on request.
//!
//! It watches folders, because Kubernetes changes a file by replacing a link to its folder: a watch on the file would only
//! see it vanish. An event is a reason to compare the contents, nothing more. The files are also compared every few
//! seconds, because some systems report no events.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::oneshot;

use sluicegate_core::Clock as _;

use super::{
    RuleStore,
    reload_requests::{ReloadReport, ReloadRequest},
};
use crate::clock::ServerClock;

/// Interval at which files are compared without an event.
const POLL: Duration = Duration::from_secs(5);
/// Time without events before the files are compared.
const QUIET: Duration = Duration::from_millis(50);
/// Maximum time to wait for that.
const MAX_QUIET_WAIT: Duration = Duration::from_millis(500);

/// The thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct FileWatcher(Option<mpsc::Sender<ReloadRequest>>);

impl FileWatcher {
    /// Starts the thread, if there are files.
    pub(crate) fn start(rules: &Arc<RuleStore>, clock: ServerClock) -> io::Result<Self> {
        if rules.paths.is_empty() {
            return Ok(Self(None));
        }
        let Some(receiver) = rules.requests.receiver.lock().take() else {
            return Ok(Self(None));
        };
        let sender = rules.requests.sender.clone();
        let (rules, events) = (Arc::clone(rules), sender.clone());
        let run = move || watch(&rules, clock, &events, &receiver);
        std::thread::Builder::new().name("sluicegate-rules".into()).spawn(run)?;
        Ok(Self(Some(sender)))
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(ReloadRequest::Stop);
        }
    }
}

fn watch(
    rules: &RuleStore,
    clock: ServerClock,
    events: &mpsc::Sender<ReloadRequest>,
    receiver: &mpsc::Receiver<ReloadRequest>,
) {
    let mut folders = Folders::new(&rules.paths, events.clone());
    // A change between the first reading and the watch had no event.
    let _ = rules.reload_if_changed(false, clock.now());
    loop {
        let mut replies = Vec::new();
        match receiver.recv_timeout(POLL) {
            Ok(ReloadRequest::Check) if !wait_until_quiet(receiver, &mut replies) => break,
            Ok(ReloadRequest::Reload(reply)) => replies.push(reply),
            Ok(ReloadRequest::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Ok(ReloadRequest::Check) | Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        folders.watch();
        let result = rules.reload_if_changed(!replies.is_empty(), clock.now());
        for reply in replies {
            let _ = reply.send(result.clone());
        }
    }
}

/// Waits for a time without events, or for a request to reload. Returns whether the thread continues.
#[expect(clippy::disallowed_methods, reason = "measures a wait, whatever the clock of the store")]
fn wait_until_quiet(
    receiver: &mpsc::Receiver<ReloadRequest>,
    replies: &mut Vec<oneshot::Sender<Result<ReloadReport, String>>>,
) -> bool {
    let start = Instant::now();
    while start.elapsed() < MAX_QUIET_WAIT {
        match receiver.recv_timeout(QUIET) {
            Ok(ReloadRequest::Check) => {}
            // A request to reload means that the files are complete.
            Ok(ReloadRequest::Reload(reply)) => {
                replies.push(reply);
                break;
            }
            Ok(ReloadRequest::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => return false,
            Err(mpsc::RecvTimeoutError::Timeout) => break,
        }
    }
    true
}

/// The folders of the files.
struct Folders {
    watcher: Option<RecommendedWatcher>,
    /// Folders that are not watched yet.
    missing: BTreeSet<PathBuf>,
}

impl Folders {
    fn new(paths: &[PathBuf], events: mpsc::Sender<ReloadRequest>) -> Self {
        let report = move |event: notify::Result<notify::Event>| {
            // Reading a file is no change. An error is a reason to compare, because events may have been lost.
            if !matches!(event, Ok(notify::Event { kind: EventKind::Access(_), .. })) {
                let _ = events.send(ReloadRequest::Check);
            }
        };
        let watcher = notify::recommended_watcher(report)
            .inspect_err(|error| tracing::warn!(%error, "cannot watch the rules files: checking them every {POLL:?}"))
            .ok();
        let mut missing = BTreeSet::new();
        for path in paths {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            missing.insert(parent.unwrap_or(Path::new(".")).to_owned());
            if path.is_dir() {
                missing.insert(path.clone());
            }
        }
        let mut folders = Self { watcher, missing };
        folders.watch();
        folders
    }

    /// Watches the missing folders that exist by now.
    fn watch(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        self.missing.retain(|folder| watcher.watch(folder, RecursiveMode::NonRecursive).is_err());
    }
}
