//! A queue that releases items at the rate of a `leaky-queue`.

use std::{
    collections::VecDeque,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::{GcraName, Outcome, Retry};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use crate::{Error, Limiter, PreparedPolicy};

/// How long to wait where nobody says for how long.
const PAUSE: Duration = Duration::from_millis(100);

/// A bounded FIFO queue that releases items at the rate of a `leaky-queue`: alone, or together with the
/// shapers of other processes that use the same key in the same store.
///
/// The store assigns an item its send time only when the item is first in the queue. A shaper whose items are
/// not taken out therefore delays no other.
///
/// ```
/// use sluicegate::{Limiter, PreparedPolicy, Shaper};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let policy: PreparedPolicy = "leaky-queue:100/1s".parse()?;
/// let shaper = Shaper::new(Limiter::in_memory(), "third-party", &policy, 3)?;
/// for request in 1..=3 {
///     shaper.push(request)?;
/// }
/// assert_eq!(shaper.push(4).unwrap_err().0, 4); // full
/// shaper.close();
/// while let Some(request) = shaper.next().await? {
///     println!("{request}"); // 10 ms apart
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Shaper<T> {
    limiter: Limiter,
    key: Vec<u8>,
    policy: PreparedPolicy,
    room: usize,
    queue: Mutex<VecDeque<T>>,
    arrived: Notify,
    closed: AtomicBool,
    /// Held by whoever waits for the first item; the departure that was taken for it.
    departure: tokio::sync::Mutex<Option<Instant>>,
}

/// The item that a full or closed queue did not accept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Full<T>(pub T);

impl<T> fmt::Debug for Full<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Full")
    }
}

impl<T> fmt::Display for Full<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the queue is full, or closed")
    }
}

impl<T> std::error::Error for Full<T> {}

impl<T> Shaper<T> {
    /// An empty queue for up to `room` items.
    ///
    /// # Errors
    /// [`Error::Settings`] unless the policy is one `leaky-queue`.
    pub fn new(
        limiter: Limiter,
        key: impl Into<Vec<u8>>,
        policy: &PreparedPolicy,
        room: usize,
    ) -> Result<Self, Error> {
        if policy.policy().as_gcra().is_none_or(|it| it.name() != GcraName::LeakyQueue) {
            return Err(Error::Settings(format!(
                "invalid policy `{}`: expected one `leaky-queue`",
                policy.policy()
            )));
        }
        Ok(Self {
            limiter,
            key: key.into(),
            policy: policy.clone(),
            room,
            queue: Mutex::default(),
            arrived: Notify::new(),
            closed: AtomicBool::new(false),
            departure: tokio::sync::Mutex::default(),
        })
    }

    /// Adds an item at the end of the queue.
    ///
    /// # Errors
    /// [`Full`] returns the item if the queue is full or closed.
    pub fn push(&self, item: T) -> Result<(), Full<T>> {
        let mut queue = self.queue.lock();
        if queue.len() >= self.room || self.closed.load(Ordering::Relaxed) {
            return Err(Full(item));
        }
        queue.push_back(item);
        drop(queue);
        self.arrived.notify_one();
        Ok(())
    }

    /// Closes the queue for new items. Items in the queue are still released.
    pub fn close(&self) {
        // Under the lock, so that nothing is pushed that nobody would wait for.
        let queue = self.queue.lock();
        self.closed.store(true, Ordering::Relaxed);
        drop(queue);
        self.arrived.notify_one();
    }

    /// Waits until the first item can be sent, and returns it; `None` when the queue is closed and empty. While
    /// the store is unavailable, its `on_error` decides, and `deny` keeps items in the queue. Dropping
    /// this future loses neither the item nor its send time.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the key holds a value that Sluicegate did not write.
    pub async fn next(&self) -> Result<Option<T>, Error> {
        let mut departure = self.departure.lock().await;
        while self.queue.lock().is_empty() {
            if self.closed.load(Ordering::Relaxed) {
                return Ok(None);
            }
            self.arrived.notified().await;
        }
        let at = match *departure {
            Some(at) => at,
            None => *departure.insert(self.depart().await?),
        };
        sleep_until(at).await;
        *departure = None;
        Ok(self.queue.lock().pop_front())
    }

    /// When the next item may go.
    async fn depart(&self) -> Result<Instant, Error> {
        loop {
            let asked = Instant::now();
            let answer = self.limiter.reserve(&self.key, &self.policy, 1, Duration::MAX).await?;
            match answer.outcome {
                // From when it was answered, so as not to be too early.
                Outcome::Allow { delay } => {
                    return Ok(Instant::now().checked_add(delay).unwrap_or(asked));
                }
                Outcome::Deny { retry: Retry::After(wait) } => sleep(wait).await,
                Outcome::Deny { retry: Retry::Never } => sleep(PAUSE).await,
            }
        }
    }

    /// Number of items in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// Whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> fmt::Debug for Shaper<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Shaper");
        debug.field("policy", &self.policy).field("waiting", &self.len()).finish_non_exhaustive()
    }
}
