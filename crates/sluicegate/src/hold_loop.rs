//! The attempts of a request that waits until a hold fits: one loop for one key and for several, on a task and on a
//! thread.

use std::{
    future::ready,
    pin::pin,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use sluicegate_core::{Answer, PreparedPolicy};
use sluicegate_memory::SystemClock;
use tokio::time::{Instant, sleep};

use sluicegate_holds::{HoldWait, WaitOptions};

use crate::HoldOutcome;

/// Measures and spends the time of one request, from its start.
trait Timer {
    fn elapsed(&self) -> Duration;

    fn sleep(&self, pause: Duration) -> impl Future<Output = ()> + Send;
}

/// By the timers of tokio.
struct TaskTimer(Instant);

impl Timer for TaskTimer {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, pause: Duration) -> impl Future<Output = ()> + Send {
        sleep(pause)
    }
}

/// By blocking the thread: its futures are never pending.
struct ThreadTimer(SystemClock);

impl Timer for ThreadTimer {
    fn elapsed(&self) -> Duration {
        self.0.uptime()
    }

    fn sleep(&self, pause: Duration) -> impl Future<Output = ()> + Send {
        thread::sleep(pause);
        ready(())
    }
}

/// Repeats `hold`, which may need a `peek` before it, until it is allowed or its denial is the answer.
async fn repeat<P, E, Peek, Hold>(
    timer: impl Timer,
    wait: WaitOptions,
    policies: &[&PreparedPolicy],
    peek: impl Fn() -> Peek,
    hold: impl Fn() -> Hold,
) -> Result<HoldOutcome<P>, E>
where
    Peek: Future<Output = Result<Answer, E>>,
    Hold: Future<Output = Result<HoldOutcome<P>, E>>,
{
    let wait = HoldWait::new(wait);
    loop {
        if policies.iter().any(|policy| wait.peeks(timer.elapsed(), policy)) {
            let retry = peek().await?.retry();
            // A denial that is the answer is recorded by the hold below.
            if let Some(pause) = wait.pause(timer.elapsed(), retry) {
                timer.sleep(pause).await;
                continue;
            }
        }
        let outcome = hold().await?;
        let HoldOutcome::Denied(answer) = &outcome else { return Ok(outcome) };
        let Some(pause) = wait.pause(timer.elapsed(), answer.retry()) else {
            return Ok(outcome);
        };
        timer.sleep(pause).await;
    }
}

/// Waits on the timers of tokio until `hold` is allowed.
pub(crate) async fn until_held<P, E, Peek, Hold>(
    wait: WaitOptions,
    policies: &[&PreparedPolicy],
    peek: impl Fn() -> Peek,
    hold: impl Fn() -> Hold,
) -> Result<HoldOutcome<P>, E>
where
    Peek: Future<Output = Result<Answer, E>>,
    Hold: Future<Output = Result<HoldOutcome<P>, E>>,
{
    repeat(TaskTimer(Instant::now()), wait, policies, peek, hold).await
}

/// Blocks the thread until `hold` is allowed.
pub(crate) fn blocking_until_held<P, E>(
    wait: WaitOptions,
    policies: &[&PreparedPolicy],
    peek: impl Fn() -> Result<Answer, E>,
    hold: impl Fn() -> Result<HoldOutcome<P>, E>,
) -> Result<HoldOutcome<P>, E> {
    let timer = ThreadTimer(SystemClock::new());
    let held = repeat(timer, wait, policies, || ready(peek()), || ready(hold()));
    match pin!(held).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("the timer blocks, and the attempts answer now"),
    }
}
