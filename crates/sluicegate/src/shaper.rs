//! A queue that releases items at the rate of a `leaky-queue`.

use std::{collections::VecDeque, fmt, time::Duration};

use parking_lot::Mutex;
use sluicegate_core::{BoxFuture, Outcome, PreparedPolicy, Retry, StoreError, reached};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use crate::Limiter;

/// Pause before the next try after a denial that names no time, such as a fallback decision.
const PAUSE: Duration = Duration::from_millis(100);

/// A bounded FIFO queue that releases items at the rate of a `leaky-queue`: alone, or together with the
/// shapers of other processes that use the same key in the same store.
///
/// The store assigns an item its send time only when the item is first in the queue. A shaper whose items are
/// not taken out therefore delays no other.
///
/// ```
/// use sluicegate::{Limiter, PreparedPolicy, PushError, Shaper};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let policy: PreparedPolicy = "leaky-queue:100/1s".parse()?;
/// let shaper = Shaper::new(Limiter::in_memory(), "third-party", &policy, 3)?;
/// for request in 1..=3 {
///     shaper.push(request)?;
/// }
/// assert_eq!(shaper.push(4), Err(PushError::Full(4)));
/// shaper.close();
/// while let Some(request) = shaper.next().await? {
///     println!("{request}"); // 10 ms apart
/// }
/// # Ok::<(), sluicegate::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Shaper<T> {
    limiter: Limiter,
    key: Vec<u8>,
    policy: PreparedPolicy,
    capacity: usize,
    queue: Mutex<Queue<T>>,
    arrived: Notify,
    /// Locked by the task that waits for the first item.
    first: tokio::sync::Mutex<FirstItem>,
}

/// Both under one lock, because a queue has ended only if it is closed and empty at the same time.
struct Queue<T> {
    items: VecDeque<T>,
    is_closed: bool,
}

/// The send time of the first item, and the call that takes it. They outlive the futures that wait for the item.
#[derive(Default)]
struct FirstItem {
    reservation: Option<BoxFuture<'static, Result<Instant, StoreError>>>,
    send_time: Option<Instant>,
}

/// The item that a queue did not accept, and why.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError<T> {
    /// The queue is full.
    #[error("the queue is full")]
    Full(T),
    /// The queue is closed.
    #[error("the queue is closed")]
    Closed(T),
}

impl<T> PushError<T> {
    /// The item.
    #[must_use]
    pub fn into_item(self) -> T {
        match self {
            Self::Full(item) | Self::Closed(item) => item,
        }
    }
}

impl<T> fmt::Debug for PushError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}

impl<T> Shaper<T> {
    /// An empty queue for up to `capacity` items, at the rate of `key` under `policy`.
    ///
    /// # Errors
    /// [`StoreError::Settings`] unless the policy is one `leaky-queue`.
    pub fn new(
        limiter: Limiter,
        key: impl Into<Vec<u8>>,
        policy: &PreparedPolicy,
        capacity: usize,
    ) -> Result<Self, StoreError> {
        if !matches!(policy.policy().limits(), [limit] if limit.is_queue()) {
            return Err(StoreError::Settings(format!(
                "invalid policy `{}`: expected one `leaky-queue`",
                policy.policy()
            )));
        }
        Ok(Self {
            limiter,
            key: key.into(),
            policy: policy.clone(),
            capacity,
            queue: Mutex::new(Queue { items: VecDeque::new(), is_closed: false }),
            arrived: Notify::new(),
            first: tokio::sync::Mutex::default(),
        })
    }

    /// Adds an item at the end of the queue.
    ///
    /// # Errors
    /// [`PushError`] returns the item if the queue is full or closed.
    pub fn push(&self, item: T) -> Result<(), PushError<T>> {
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return Err(PushError::Closed(item));
        }
        if queue.items.len() >= self.capacity {
            return Err(PushError::Full(item));
        }
        queue.items.push_back(item);
        drop(queue);
        self.arrived.notify_one();
        Ok(())
    }

    /// Closes the queue for new items. Items in the queue are still released.
    pub fn close(&self) {
        self.queue.lock().is_closed = true;
        self.arrived.notify_one();
    }

    /// Waits until the first item can be sent, and returns it; `None` when the queue is closed and empty. While
    /// the store is unavailable, its `on_error` decides, and `deny` keeps items in the queue. Dropping
    /// this future loses neither the item nor its send time.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the key holds a value that Sluicegate did not write. Under
    /// [`OnError::Fail`](crate::OnError::Fail), also [`StoreError::Unavailable`] or [`StoreError::Timeout`]; the item
    /// stays in the queue.
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers.
    pub async fn next(&self) -> Result<Option<T>, StoreError> {
        let mut first = self.first.lock().await;
        loop {
            {
                let queue = self.queue.lock();
                if !queue.items.is_empty() {
                    break;
                }
                if queue.is_closed {
                    return Ok(None);
                }
            }
            self.arrived.notified().await;
        }
        let at = match first.send_time {
            Some(at) => {
                reached!(ShaperKeepsSendTime);
                at
            }
            None => {
                reached!(ShaperContinuesReservation if first.reservation.is_some());
                let at = first.reservation.get_or_insert_with(|| self.reserve_send_time()).await;
                first.reservation = None;
                *first.send_time.insert(at?)
            }
        };
        sleep_until(at).await;
        first.send_time = None;
        let item = self.queue.lock().items.pop_front();
        debug_assert!(item.is_some(), "an item leaves the queue twice");
        Ok(item)
    }

    /// Takes a unit, and returns the time when the next item can be sent.
    fn reserve_send_time(&self) -> BoxFuture<'static, Result<Instant, StoreError>> {
        let (limiter, key) = (self.limiter.clone(), self.key.clone());
        let policy = self.policy.clone();
        Box::pin(async move {
            loop {
                let start = Instant::now();
                let answer = limiter.reserve(&key, &policy, 1, Duration::MAX).await?;
                match answer.outcome {
                    // From the time of the answer, because an item must not be too early.
                    Outcome::Allow { delay } => {
                        return Ok(Instant::now().checked_add(delay).unwrap_or(start));
                    }
                    Outcome::Deny { retry: Retry::After(wait) } => sleep(wait).await,
                    Outcome::Deny { retry: Retry::Never } => sleep(PAUSE).await,
                }
            }
        })
    }

    /// Number of items in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.lock().items.len()
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
