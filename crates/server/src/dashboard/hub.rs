//! One frame a second for all who look, and nothing while nobody does.
//!
//! The first viewer starts a task on its worker that reads the counters, writes a frame once and
//! hands it to all through a channel that holds only the last one. When nobody is left the task ends.
//!
//! Invariants:
//! - at most [`MOST`] look at a time;
//! - a viewer that does not take its frames keeps nobody waiting: it finds the last one when it does,
//!   and what lies between is skipped. For how long it may take nothing, `web` says.

use std::{
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream::unfold;
use hyper::body::Frame;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use sluicegate_commands::quote;
use tokio::{
    sync::watch,
    task::spawn_local,
    time::{MissedTickBehavior, interval},
};

use super::{
    Stream,
    frame::Reader,
    history::History,
    known::{KeyFilter, KeyPage, KnownKeys, LINGER, Scale},
};
use crate::{DashboardMode, shared::Shared, shared::stopped, worker::Worker};

/// How many may look at a time.
pub(super) const MOST: usize = 64;
/// How often a frame is made.
const EVERY: Duration = Duration::from_secs(1);

/// What the workers note, and who looks at it.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(super) mode: DashboardMode,
    /// The last frame, as it is sent; empty before the first.
    frames: watch::Sender<Bytes>,
    looking: Mutex<Looking>,
    pub(super) history: History,
    pub(super) known: KnownKeys,
    /// Until when keys are sampled without viewers, in microseconds.
    listed_until: AtomicU64,
    /// What is mixed into a key to make its mask.
    salt: [u8; 16],
}

#[derive(Debug, Default)]
struct Looking {
    viewers: usize,
    /// Whether there is a task that makes frames.
    publishing: bool,
}

impl Hub {
    pub(crate) fn new(mode: DashboardMode) -> Self {
        let random = || ahash::RandomState::new().hash_one(0_u8).to_ne_bytes();
        let mut salt = [0; 16];
        salt[..8].copy_from_slice(&random());
        salt[8..].copy_from_slice(&random());
        Self {
            mode,
            frames: watch::Sender::default(),
            looking: Mutex::default(),
            history: History::default(),
            known: KnownKeys::default(),
            listed_until: AtomicU64::new(0),
            salt,
        }
    }

    /// Adds a sample to the history. Called once a second, whether there are viewers or not.
    pub(crate) fn sample(&self, shared: &Shared) {
        if self.mode != DashboardMode::Off {
            self.history.sample(shared);
        }
    }

    pub(super) fn viewers(&self) -> usize {
        self.looking.lock().viewers
    }

    /// What stands for `key` where keys are not to be read: always the same, until a restart.
    pub(super) fn mask(&self, key: &[u8]) -> String {
        let digest = Sha256::new().chain_update(self.salt).chain_update(key).finalize();
        let tag = digest.iter().take(5).map(|byte| format!("{byte:02x}"));
        format!("#{}", tag.collect::<String>())
    }

    /// `key` as logs and lists of this server show it.
    pub(crate) fn shown_key(&self, key: &[u8]) -> String {
        match self.mode {
            DashboardMode::On => quote(key),
            DashboardMode::Masked => self.mask(key),
            DashboardMode::NoKeys | DashboardMode::Off => "(hidden)".to_owned(),
        }
    }

    /// Ends the task unless somebody looks. Whether it is to end.
    fn rest(&self, shared: &Shared) -> bool {
        let mut looking = self.looking.lock();
        if looking.viewers > 0 || shared.decider.now().as_micros() < self.listed_until.load(Relaxed)
        {
            return false;
        }
        looking.publishing = false;
        shared.stats.workers.iter().for_each(|stats| stats.watch.stop());
        self.frames.send_replace(Bytes::new());
        self.known.replace(Vec::new(), Vec::new(), Scale::default());
        true
    }
}

/// The place of a viewer, until dropped.
struct Viewer(Arc<Shared>);

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.dashboard.looking.lock().viewers -= 1;
    }
}

/// The frames from now on, until the server stops. `None`: too many look already.
pub(super) fn look(worker: &Rc<Worker>) -> Option<Stream> {
    let hub = &worker.shared.dashboard;
    let mut looking = hub.looking.lock();
    if looking.viewers >= MOST {
        return None;
    }
    looking.viewers += 1;
    let viewer = Viewer(Arc::clone(&worker.shared));
    start(&worker.shared, &mut looking);
    drop(looking);
    let mut frames = hub.frames.subscribe();
    frames.mark_changed();
    let events = unfold((frames, worker.stop.subscribe(), viewer), |mut it| async move {
        let (frames, stopping, _) = &mut it;
        let frame = tokio::select! {
            frame = next(frames) => frame?,
            () = stopped(stopping) => return None,
        };
        Some((Ok(Frame::data(frame)), it))
    });
    Some(Box::pin(events))
}

/// Starts the task that makes frames, unless there is one. Must be called on a worker.
fn start(shared: &Arc<Shared>, looking: &mut Looking) {
    if looking.publishing {
        return;
    }
    looking.publishing = true;
    let keys = matches!(shared.dashboard.mode, DashboardMode::On | DashboardMode::Masked);
    shared.stats.workers.iter().for_each(|stats| stats.watch.start(keys));
    // It ends when there are no viewers, or with the worker.
    drop(spawn_local(publish(Publishing { shared: Arc::clone(shared), ended: false })));
}

/// Lists keys that are sampled, and has them sampled for a while. Must be called on a worker.
///
/// # Errors
/// A whole error reply, if the dashboard does not show keys.
pub(crate) fn list_keys(
    shared: &Arc<Shared>,
    cursor: u64,
    count: usize,
    filter: KeyFilter<'_>,
) -> Result<KeyPage, String> {
    let hub = &shared.dashboard;
    if hub.mode != DashboardMode::On {
        let text = "ERR SG.KEYS is disabled: it needs --dashboard on";
        return Err(text.to_owned());
    }
    hub.listed_until.store((shared.decider.now() + LINGER).as_micros(), Relaxed);
    start(shared, &mut hub.looking.lock());
    Ok(hub.known.scan(cursor, count, filter))
}

/// The next frame that was not seen yet: the last one.
async fn next(frames: &mut watch::Receiver<Bytes>) -> Option<Bytes> {
    loop {
        frames.changed().await.ok()?;
        let frame = frames.borrow_and_update().clone();
        if !frame.is_empty() {
            return Some(frame);
        }
    }
}

/// The task that makes frames. Should it fail, the next viewer starts another.
struct Publishing {
    shared: Arc<Shared>,
    /// Whether it has said itself that it ends: another may have been started since.
    ended: bool,
}

impl Drop for Publishing {
    fn drop(&mut self) {
        if !self.ended {
            self.shared.dashboard.looking.lock().publishing = false;
        }
    }
}

async fn publish(mut publishing: Publishing) {
    let shared = Arc::clone(&publishing.shared);
    let shared = &*shared;
    let hub = &shared.dashboard;
    let mut reader = Reader::new(shared);
    let mut turns = interval(EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        if hub.rest(shared) {
            publishing.ended = true;
            return;
        }
        hub.frames.send_replace(reader.event(shared));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_late_finds_the_last_frame() {
        let sender = watch::Sender::new(Bytes::new());
        let mut frames = sender.subscribe();
        for frame in ["one", "two", "three"] {
            sender.send_replace(frame.into());
        }
        assert_eq!(next(&mut frames).await, Some("three".into()));
        sender.send_replace(Bytes::new());
        sender.send_replace("four".into());
        assert_eq!(next(&mut frames).await, Some("four".into()));
        drop(sender);
        assert_eq!(next(&mut frames).await, None);
    }

    #[test]
    fn masks_tell_keys_apart_and_nothing_else() {
        let hub = Hub::new(DashboardMode::Masked);
        assert_eq!(hub.mask(b"a"), hub.mask(b"a"));
        assert_ne!(hub.mask(b"a"), hub.mask(b"b"));
        assert_ne!(hub.mask(b"a"), Hub::new(DashboardMode::Masked).mask(b"a"));
        assert_eq!(hub.mask(b"a").len(), 11);
    }
}
