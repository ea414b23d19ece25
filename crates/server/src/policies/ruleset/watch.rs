//! The thread that reads the rules again when their files change, or when it is asked to.
//!
//! What is watched are folders: Kubernetes changes a file by putting another link in its folder's
//! place, and a watch on the file would see it vanish, and nothing more. Whatever happens there is
//! only a reason to look; what counts is what the files say. Where the system tells nothing, they
//! are looked at every few seconds all the same.

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
use sluicegate_memory::SystemClock;

use super::{
    Live,
    wishes::{Reloaded, Wish},
};

/// How often files are looked at where nothing is heard of them.
const POLL: Duration = Duration::from_secs(5);
/// How long it must be quiet before what has changed is looked at.
const QUIET: Duration = Duration::from_millis(50);
/// The longest that is waited for quiet.
const LONGEST: Duration = Duration::from_millis(500);

/// The thread, until dropped.
#[derive(Debug)]
pub(crate) struct Watch(Option<mpsc::Sender<Wish>>);

impl Watch {
    /// Starts the thread, if there are files.
    pub(crate) fn start(rules: &Arc<Live>, clock: SystemClock) -> io::Result<Self> {
        if rules.paths.is_empty() {
            return Ok(Self(None));
        }
        let Some(wanted) = rules.wishes.wanted.lock().take() else {
            return Ok(Self(None));
        };
        let wishes = rules.wishes.wishes.clone();
        let (rules, heard) = (Arc::clone(rules), wishes.clone());
        let run = move || watch(&rules, clock, &heard, &wanted);
        std::thread::Builder::new().name("sluicegate-rules".into()).spawn(run)?;
        Ok(Self(Some(wishes)))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(wishes) = self.0.take() {
            let _ = wishes.send(Wish::Stop);
        }
    }
}

fn watch(
    rules: &Live,
    clock: SystemClock,
    heard: &mpsc::Sender<Wish>,
    wanted: &mpsc::Receiver<Wish>,
) {
    let mut folders = Folders::new(&rules.paths, heard.clone());
    // What changed between the first reading and the watch was seen by nobody.
    let _ = rules.look(false, clock.now());
    loop {
        let mut replies = Vec::new();
        match wanted.recv_timeout(POLL) {
            Ok(Wish::Look) if !settle(wanted, &mut replies) => break,
            Ok(Wish::Reload(reply)) => replies.push(reply),
            Ok(Wish::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Ok(Wish::Look) | Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        folders.watch();
        let told = rules.look(!replies.is_empty(), clock.now());
        for reply in replies {
            let _ = reply.send(told.clone());
        }
    }
}

/// Waits until it is quiet, or somebody asks for the files to be read. Whether the thread is to go on.
#[expect(
    clippy::disallowed_methods,
    reason = "how long it was waited, whatever the clock of the store"
)]
fn settle(
    wanted: &mpsc::Receiver<Wish>,
    replies: &mut Vec<oneshot::Sender<Result<Reloaded, String>>>,
) -> bool {
    let start = Instant::now();
    while start.elapsed() < LONGEST {
        match wanted.recv_timeout(QUIET) {
            Ok(Wish::Look) => {}
            // Who asks says that the files are as they shall be.
            Ok(Wish::Reload(reply)) => {
                replies.push(reply);
                break;
            }
            Ok(Wish::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => return false,
            Err(mpsc::RecvTimeoutError::Timeout) => break,
        }
    }
    true
}

/// The folders that are watched.
struct Folders {
    watcher: Option<RecommendedWatcher>,
    /// Those that are not watched yet.
    missing: BTreeSet<PathBuf>,
}

impl Folders {
    fn new(paths: &[PathBuf], heard: mpsc::Sender<Wish>) -> Self {
        let tell = move |event: notify::Result<notify::Event>| {
            // That somebody reads, as we do, changes nothing. What went wrong, as when more happened
            // than the system could tell, is a reason to look.
            if !matches!(event, Ok(notify::Event { kind: EventKind::Access(_), .. })) {
                let _ = heard.send(Wish::Look);
            }
        };
        let watcher = notify::recommended_watcher(tell)
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

    /// Watches those that could not be watched until now.
    fn watch(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        self.missing.retain(|folder| watcher.watch(folder, RecursiveMode::NonRecursive).is_err());
    }
}
