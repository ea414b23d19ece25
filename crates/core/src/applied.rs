//! The result of a store operation: at once, or later.

use std::{
    fmt,
    future::{Future, IntoFuture, Ready, ready},
    pin::Pin,
    task::{Context, Poll},
};

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The result of an operation of a [`Store`](crate::Store). Can be awaited.
///
/// A store in this process answers now, so that its callers need no future. A remote store answers later; until its
/// future is polled for the first time, the operation has not begun, and dropping the future leaves the key unchanged.
#[must_use = "an operation that is answered later does nothing until it is awaited"]
pub enum Applied<'a, T> {
    /// The result.
    Now(T),
    /// The future of the result.
    Later(BoxFuture<'a, T>),
}

impl<'a, T: Send + 'a> Applied<'a, T> {
    /// A result that comes later.
    pub fn later(future: impl Future<Output = T> + Send + 'a) -> Self {
        Self::Later(Box::pin(future))
    }

    /// The result, if it is there now. Otherwise the operation is dropped, and has not begun.
    #[inline(always)]
    pub fn now(self) -> Option<T> {
        match self {
            Self::Now(result) => Some(result),
            Self::Later(_) => None,
        }
    }

    /// Applies `change` to the result.
    pub fn map<U>(self, change: impl FnOnce(T) -> U + Send + 'a) -> Applied<'a, U> {
        match self {
            Self::Now(result) => Applied::Now(change(result)),
            Self::Later(future) => Applied::Later(Box::pin(async { change(future.await) })),
        }
    }

    /// The results of `operations`, one after the other: now, if all of them are.
    pub fn in_order(mut operations: impl Iterator<Item = Self> + Send + 'a) -> Applied<'a, Vec<T>> {
        let mut results = Vec::with_capacity(operations.size_hint().0);
        while let Some(operation) = operations.next() {
            let future = match operation {
                Self::Now(result) => {
                    results.push(result);
                    continue;
                }
                Self::Later(future) => future,
            };
            return Applied::later(async move {
                results.push(future.await);
                for operation in operations {
                    results.push(operation.await);
                }
                results
            });
        }
        Applied::Now(results)
    }
}

impl<'a, T> IntoFuture for Applied<'a, T> {
    type Output = T;
    type IntoFuture = AppliedFuture<'a, T>;

    fn into_future(self) -> AppliedFuture<'a, T> {
        AppliedFuture(match self {
            Self::Now(result) => Ok(ready(result)),
            Self::Later(future) => Err(future),
        })
    }
}

impl<T: fmt::Debug> fmt::Debug for Applied<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(result) => formatter.debug_tuple("Now").field(result).finish(),
            Self::Later(_) => formatter.write_str("Later"),
        }
    }
}

/// The future of an [`Applied`].
pub struct AppliedFuture<'a, T>(Result<Ready<T>, BoxFuture<'a, T>>);

impl<T> Future for AppliedFuture<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut self.0 {
            Ok(result) => Pin::new(result).poll(context),
            Err(future) => future.as_mut().poll(context),
        }
    }
}

impl<T> fmt::Debug for AppliedFuture<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AppliedFuture")
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, poll_fn},
        pin::pin,
        task::Waker,
    };

    use super::*;

    fn poll<T>(applied: Applied<'_, T>) -> Poll<T> {
        pin!(applied.into_future()).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn applied_now_and_later_await_to_their_results() {
        assert_eq!(poll(Applied::Now(1)), Poll::Ready(1));
        assert_eq!(poll(Applied::later(async { 2 })), Poll::Ready(2));
        assert_eq!(poll(Applied::later(pending::<u32>())), Poll::Pending);
        assert_eq!(poll(Applied::later(async { 2 }).map(|it| it + 1)), Poll::Ready(3));
    }

    #[test]
    fn in_order_all_now_is_now() {
        let applied = Applied::in_order((0..3).map(Applied::Now));
        assert_eq!(applied.now(), Some(vec![0, 1, 2]));
    }

    #[test]
    fn in_order_one_later_starts_the_next_when_it_has_ended() {
        let mut waits = true;
        let first =
            poll_fn(
                move |_| {
                    if std::mem::take(&mut waits) { Poll::Pending } else { Poll::Ready(1) }
                },
            );
        let mut first = Some(first);
        let mut started = 0;
        let operations = (0..3).map(|index| {
            started += 1;
            if index == 1 {
                Applied::later(first.take().expect("one"))
            } else {
                Applied::Now(index)
            }
        });
        let mut all = pin!(Applied::in_order(operations).into_future());
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(all.as_mut().poll(&mut context), Poll::Pending);
        assert_eq!(all.as_mut().poll(&mut context), Poll::Ready(vec![0, 1, 2]));
    }
}
