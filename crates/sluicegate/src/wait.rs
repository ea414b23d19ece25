//! Waiting that blocks the thread, in a store in this process.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    thread,
};

use sluicegate_core::{Answer, Store, Timestamp};
use sluicegate_holds::{Guards, PendingRequest, Progress};
use sluicegate_memory::SystemClock;

/// [`PendingRequest::wait`] on a thread. The store answers now.
pub(crate) fn block<S: Store + ?Sized + 'static>(
    mut pending: PendingRequest<S>,
) -> Result<(Answer, Guards<S>), S::Error> {
    let clock = SystemClock::new();
    let now = || Timestamp::EPOCH + clock.uptime();
    loop {
        let progress = {
            let advanced = pin!(pending.advance(now));
            match advanced.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(progress) => progress?,
                Poll::Pending => unreachable!("a store in this process answers now"),
            }
        };
        match progress {
            Progress::SleepUntil(until) => thread::sleep(until.since(now())),
            Progress::Done(answer) => return Ok((answer, pending.into_guards())),
        }
    }
}
