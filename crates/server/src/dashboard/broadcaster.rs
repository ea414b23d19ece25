//! One frame a second for all viewers, and no work without viewers; and one sample a second, which is kept for 15 minutes.
//! Samples are totals since the start, so that a rate is the difference of two by their times.
//!
//! The first viewer starts a task on its worker, which reads the counters, writes a frame once and
//! sends it to all viewers through a channel that holds only the latest one. The task ends after the last viewer.
//!
//! Invariants:
//! - there are at most [`MAX_VIEWERS`] at a time;
//! - a slow viewer delays no other: it skips to the latest frame. `net::web` closes one that reads nothing;
//! - at most [`CAPACITY`] samples are kept, in memory of a fixed size.

use std::{
    collections::VecDeque,
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
use serde::Serialize;
use tokio::{
    sync::watch,
    task::spawn_local,
    time::{MissedTickBehavior, interval},
};

use super::{
    frame::{FrameReader, LatencyFrame},
    sources::Sources,
};
use crate::{
    DashboardMode,
    protocols::http::BodyStream,
    stats::{KeyFilter, KeyPage, LatencyHistogram, SAMPLING_LINGER, Scale, Stats},
    stopping::stopped,
};

/// Maximum number of viewers at a time.
pub(super) const MAX_VIEWERS: usize = 64;
/// How often a frame is made.
const INTERVAL: Duration = Duration::from_secs(1);

/// Sends frames to all viewers.
#[derive(Debug)]
pub(crate) struct Broadcaster {
    pub(super) sources: Sources,
    pub(super) history: History,
    /// The latest frame; empty before the first.
    frames: watch::Sender<Bytes>,
    viewers: Mutex<ViewerCount>,
    /// Until when keys are sampled without viewers, in microseconds.
    listed_until: AtomicU64,
}

#[derive(Debug, Default)]
struct ViewerCount {
    count: usize,
    /// Whether the task that makes frames runs.
    publishing: bool,
}

impl Broadcaster {
    pub(crate) fn new(sources: Sources) -> Self {
        Self {
            sources,
            history: History::default(),
            frames: watch::Sender::default(),
            viewers: Mutex::default(),
            listed_until: AtomicU64::new(0),
        }
    }

    pub(super) fn mode(&self) -> DashboardMode {
        self.sources.display.mode
    }

    /// Adds a sample to the history. Called once a second, whether there are viewers or not.
    pub(crate) fn sample(&self) {
        if self.mode() != DashboardMode::Off {
            self.history.sample(&self.sources);
        }
    }

    /// Whether the task that makes frames is to end, because nothing needs the samples. Stops sampling then.
    fn stop_if_unused(&self) -> bool {
        let mut viewers = self.viewers.lock();
        let now = self.sources.decider.now();
        if viewers.count > 0 || now.as_micros() < self.listed_until.load(Relaxed) {
            return false;
        }
        viewers.publishing = false;
        self.sources.stats.all().for_each(|stats| stats.sampler.stop());
        self.frames.send_replace(Bytes::new());
        self.sources.sampled.replace(Vec::new(), Vec::new(), Scale::default());
        true
    }

    /// The frames from now on, until the server stops. `None`: there are too many viewers already.
    pub(super) fn subscribe(
        self: &Arc<Self>,
        stopping: watch::Receiver<bool>,
    ) -> Option<BodyStream> {
        let mut viewers = self.viewers.lock();
        if viewers.count >= MAX_VIEWERS {
            return None;
        }
        viewers.count += 1;
        let viewer = Viewer(Arc::clone(self));
        self.start(&mut viewers);
        drop(viewers);
        let mut frames = self.frames.subscribe();
        frames.mark_changed();
        let events = unfold((frames, stopping, viewer), |mut it| async move {
            let (frames, stopping, _) = &mut it;
            let frame = tokio::select! {
                frame = next(frames) => frame?,
                () = stopped(stopping) => return None,
            };
            Some((Ok(Frame::data(frame)), it))
        });
        Some(Box::pin(events))
    }

    /// Starts the task that makes frames, unless it runs. Must be called on a worker.
    fn start(self: &Arc<Self>, viewers: &mut ViewerCount) {
        if viewers.publishing {
            return;
        }
        viewers.publishing = true;
        let keys = matches!(self.mode(), DashboardMode::On | DashboardMode::Masked);
        self.sources.stats.all().for_each(|stats| stats.sampler.start(keys));
        // The task ends by itself, or with the worker.
        let guard = PublishGuard { broadcaster: Arc::clone(self), ended: false };
        drop(spawn_local(publish(guard)));
    }

    /// Lists sampled keys, and keeps sampling on for a while. Must be called on a worker.
    ///
    /// # Errors
    /// A whole error reply, if the dashboard does not show keys.
    pub(crate) fn list_keys(
        self: &Arc<Self>,
        cursor: u64,
        count: usize,
        filter: KeyFilter<'_>,
    ) -> Result<KeyPage, String> {
        if self.mode() != DashboardMode::On {
            let text = "ERR SG.KEYS is disabled: it needs --dashboard on";
            return Err(text.to_owned());
        }
        let until = self.sources.decider.now() + SAMPLING_LINGER;
        self.listed_until.store(until.as_micros(), Relaxed);
        self.start(&mut self.viewers.lock());
        Ok(self.sources.sampled.scan(cursor, count, filter))
    }
}

/// Counts a viewer, until dropped.
struct Viewer(Arc<Broadcaster>);

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.viewers.lock().count -= 1;
    }
}

/// The latest frame, once there is a new one.
async fn next(frames: &mut watch::Receiver<Bytes>) -> Option<Bytes> {
    loop {
        frames.changed().await.ok()?;
        let frame = frames.borrow_and_update().clone();
        if !frame.is_empty() {
            return Some(frame);
        }
    }
}

/// Held by the task that makes frames. If the task fails, the next viewer starts another.
struct PublishGuard {
    broadcaster: Arc<Broadcaster>,
    /// Whether the task has ended by itself: another one may already run.
    ended: bool,
}

impl Drop for PublishGuard {
    fn drop(&mut self) {
        if !self.ended {
            self.broadcaster.viewers.lock().publishing = false;
        }
    }
}

async fn publish(mut guard: PublishGuard) {
    let broadcaster = Arc::clone(&guard.broadcaster);
    let mut reader = FrameReader::new(&broadcaster.sources);
    let mut turns = interval(INTERVAL);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        if broadcaster.stop_if_unused() {
            guard.ended = true;
            return;
        }
        let viewers = broadcaster.viewers.lock().count;
        broadcaster.frames.send_replace(reader.event(&broadcaster.sources, viewers));
    }
}

/// Samples that a history holds: those of 15 minutes.
pub(super) const CAPACITY: usize = 15 * 60;

/// Samples, the oldest first.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<Samples>);

#[derive(Debug, Default)]
struct Samples {
    ring: VecDeque<Sample>,
    /// The latency histogram at the last sample.
    histogram: LatencyHistogram,
}

/// The counters at one time: `[at_us, allowed, denied, p50_us, p99_us]`. The last two are latencies since the previous
/// sample, in microseconds; `null` if there were no decisions.
type Sample = (u64, u64, u64, Option<u32>, Option<u32>);

/// The response of `GET /dashboard/history`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    samples: Vec<Sample>,
}

impl History {
    /// Adds a sample.
    pub(super) fn sample(&self, sources: &Sources) {
        let mut samples = self.0.lock();
        let histogram = sources.latency();
        let latency = LatencyFrame::of(&histogram.since(&samples.histogram));
        samples.histogram = histogram;
        let micros = |micros| u32::try_from(micros).unwrap_or(u32::MAX);
        samples.push((
            sources.decider.now().as_micros(),
            sources.stats.sum(Stats::allowed),
            sources.stats.sum(Stats::denied),
            latency.map(|it| micros(it.p50_us)),
            latency.map(|it| micros(it.p99_us)),
        ));
    }

    pub(super) fn report(&self) -> Report {
        Report { samples: self.0.lock().ring.iter().copied().collect() }
    }
}

impl Samples {
    fn push(&mut self, sample: Sample) {
        if self.ring.capacity() == 0 {
            self.ring.reserve_exact(CAPACITY);
        }
        if self.ring.len() == CAPACITY {
            self.ring.pop_front();
        }
        self.ring.push_back(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn viewer_late_gets_the_last_frame() {
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
}

#[cfg(test)]
mod history_tests {
    use super::*;

    #[test]
    fn history_holds_the_last_15_minutes_in_fixed_memory() {
        let mut samples = Samples::default();
        for second in 0..2_000_u64 {
            let latency = |micros| (second % 2 == 0).then_some(micros);
            samples.push((second * 1_000_000, second, 0, latency(7), latency(9)));
        }
        assert_eq!((samples.ring.len(), samples.ring.capacity()), (CAPACITY, CAPACITY));
        assert_eq!(samples.ring[0].1, 1_100);
        let bytes = samples.ring.capacity() * size_of::<Sample>();
        println!("figure: the history takes {bytes} bytes");
        let last = serde_json::to_string(&samples.ring[CAPACITY - 1]).unwrap();
        assert_eq!(last, "[1999000000,1999,0,null,null]");
        let before = serde_json::to_string(&samples.ring[CAPACITY - 2]).unwrap();
        assert_eq!(before, "[1998000000,1998,0,7,9]");
    }
}
