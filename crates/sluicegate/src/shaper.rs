//! A queue that lets items go at the pace of a `leaky-queue`.

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

use crate::{Error, Limiter, Rule};

/// How long to wait where nobody says for how long.
const PAUSE: Duration = Duration::from_millis(100);

/// A bounded queue, first in, first out, that lets items go at the pace of a `leaky-queue`: alone, or
/// together with the shapers of other processes that have the same key in the same store.
///
/// An item takes its departure from the store when it is the first in the queue, so that a shaper whose
/// items nobody asks for holds no other up.
///
/// ```
/// use sluicegate::{Limiter, Rule, Shaper};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let rule: Rule = "leaky-queue:100/1s".parse()?;
/// let shaper = Shaper::new(Limiter::in_memory(), "third-party", &rule, 3)?;
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
    rule: Rule,
    room: usize,
    queue: Mutex<VecDeque<T>>,
    arrived: Notify,
    closed: AtomicBool,
    /// Held by whoever waits for the first item; the departure that was taken for it.
    departure: tokio::sync::Mutex<Option<Instant>>,
}

/// An item for which there was no room.
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
    /// An empty queue with `room` for so many items.
    ///
    /// # Errors
    /// [`Error::Settings`] unless the policy is one `leaky-queue`.
    pub fn new(
        limiter: Limiter,
        key: impl Into<Vec<u8>>,
        rule: &Rule,
        room: usize,
    ) -> Result<Self, Error> {
        if rule.policy().as_gcra().is_none_or(|it| it.name() != GcraName::LeakyQueue) {
            return Err(Error::Settings(format!(
                "invalid policy `{}` for a shaper: expected one leaky-queue",
                rule.policy()
            )));
        }
        Ok(Self {
            limiter,
            key: key.into(),
            rule: rule.clone(),
            room,
            queue: Mutex::default(),
            arrived: Notify::new(),
            closed: AtomicBool::new(false),
            departure: tokio::sync::Mutex::default(),
        })
    }

    /// Puts an item behind all others.
    ///
    /// # Errors
    /// [`Full`] gives it back if there is no room, or the queue was closed.
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

    /// Takes no more items. Those inside still go.
    pub fn close(&self) {
        // Under the lock, so that nothing is pushed that nobody would wait for.
        let queue = self.queue.lock();
        self.closed.store(true, Ordering::Relaxed);
        drop(queue);
        self.arrived.notify_one();
    }

    /// The first item, when it may go; `None` when the queue is closed and empty. While Redis is away,
    /// the rule says whether items go, and `deny` holds them back. One who gives up waiting loses neither
    /// the item nor its departure.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the key holds something else.
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
            let answer = self.limiter.reserve(&self.key, &self.rule, 1, Duration::MAX).await?;
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

    /// How many items wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// Whether none does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> fmt::Debug for Shaper<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Shaper");
        debug.field("rule", &self.rule).field("waiting", &self.len()).finish_non_exhaustive()
    }
}
