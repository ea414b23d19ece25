//! The seam between decisions and state: what every store does, and its status.

use std::{fmt::Debug, sync::Arc, time::Duration};

use crate::{
    answer::Answer,
    applied::Applied,
    decision::Operation,
    entry::Entry,
    prepared_policy::PreparedPolicy,
    request::{KeyedOperation, Request},
    time::Timestamp,
};

/// Reads the entry of a key, if there is one that has not recovered, and the time of the store. It may run under a
/// lock: it must neither take long nor call the store.
pub type ReadEntry<'a> = &'a mut (dyn FnMut(Option<&Entry>, Timestamp) + Send);

/// A store of state, which decides requests, each atomically, by its own clock.
///
/// A store makes whole decisions, not get and compare-and-swap, because a process, a script and a module
/// are atomic in different ways. Each method answers now or later ([`Applied`]).
///
/// ```
/// use sluicegate_core::{Operation, PreparedPolicy, Request, Store};
///
/// async fn admit<S: Store>(store: &S, user: &[u8], policy: &PreparedPolicy) -> Result<bool, S::Error> {
///     Ok(store.apply(Request::one(user, policy, Operation::Take(1))).await?.allowed())
/// }
/// ```
pub trait Store: Debug + Send + Sync {
    /// Reason for which no decision was made. A denial is an answer, never an error.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Decides a request. A hold, a settle and a renew may be repeated where the answer was lost. If a key is given twice,
    /// only its first operation counts.
    ///
    /// # Errors
    /// The store is unavailable and has no fallback ([`OnError`](crate::OnError)) for the operation; the operation is
    /// invalid for the policy or the stored value; or the key has as many open holds as there can be.
    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, Self::Error>>;

    /// Takes `cost` units of `key`, all or none.
    ///
    /// # Errors
    /// As [`Store::apply`].
    #[inline(always)]
    fn take<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        cost: u32,
    ) -> Applied<'a, Result<Answer, Self::Error>> {
        self.apply(Request::one(key, policy, Operation::Take(cost)))
    }

    /// Applies independent operations, in order. The answers are in the same order.
    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, Self::Error>>> {
        Applied::in_order(operations.iter().map(|it| self.apply((*it).into())))
    }

    /// Calls `read` with the entry of `key`, once.
    ///
    /// # Errors
    /// The store is unavailable, or the stored value is not an entry.
    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), Self::Error>>;

    /// Resets `key`, for every policy. Whether it had state that had not recovered.
    ///
    /// # Errors
    /// As [`Store::apply`].
    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, Self::Error>>;

    /// Checks whether an operation on units may have `key`. Each operation checks it as well; this is for several keys
    /// of which none may be charged before all are valid.
    ///
    /// # Errors
    /// The key is empty or too long for this store.
    #[inline]
    fn check_key(&self, key: &[u8]) -> Result<(), Self::Error> {
        let _ = key;
        Ok(())
    }

    /// Brings the state of `key` near, for an operation that follows soon.
    fn prefetch(&self, key: &[u8]) {
        let _ = key;
    }

    /// The status of the store, without a call to it.
    fn status(&self) -> StoreStatus;

    /// Returns what this process holds of the store's units, such as leases. The store stays usable.
    fn close(&self) -> Applied<'_, ()> {
        Applied::Now(())
    }
}

/// A type with a store inside that it shares all operations with. It is thereby a [`Store`].
pub trait AsStore: Debug + Send + Sync {
    /// The type of the store inside.
    type Inner: Store + ?Sized;

    /// The store inside.
    fn as_store(&self) -> &Self::Inner;
}

impl<S: Store + ?Sized> AsStore for Arc<S> {
    type Inner = S;

    #[inline]
    fn as_store(&self) -> &S {
        self
    }
}

impl<T: AsStore + ?Sized> Store for T {
    type Error = <T::Inner as Store>::Error;

    #[inline(always)]
    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, Self::Error>> {
        self.as_store().apply(request)
    }

    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, Self::Error>>> {
        self.as_store().apply_many(operations)
    }

    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), Self::Error>> {
        self.as_store().read(key, read)
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, Self::Error>> {
        self.as_store().reset(key)
    }

    #[inline]
    fn check_key(&self, key: &[u8]) -> Result<(), Self::Error> {
        self.as_store().check_key(key)
    }

    fn prefetch(&self, key: &[u8]) {
        self.as_store().prefetch(key);
    }

    fn status(&self) -> StoreStatus {
        self.as_store().status()
    }

    fn close(&self) -> Applied<'_, ()> {
        self.as_store().close()
    }
}

/// Status of a store.
#[derive(Clone, Debug)]
pub enum StoreStatus {
    /// State in this process: every operation is answered now.
    Local(TableUsage),
    /// State elsewhere.
    Remote(Box<RemoteStatus>),
}

/// Memory of a store in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUsage {
    /// Stored keys, including recovered ones that have not been reclaimed yet.
    pub keys: usize,
    /// Bytes in use.
    pub bytes: usize,
    /// Upper bound on `bytes`.
    pub max_bytes: usize,
    /// Requests on new keys while the table was full: denied, or allowed uncounted.
    pub table_full: u64,
}

/// The last known state of a store elsewhere.
#[derive(Clone, Debug, Default)]
pub struct RemoteStatus {
    /// Its nodes.
    pub nodes: Vec<NodeHealth>,
    /// Why no decision of the store can be had now: its node, or every node of a cluster, is unavailable, or
    /// lets the user use no key. `None` while it can, as far as is known.
    pub unavailable: Option<String>,
    /// Counters since the store was created.
    pub counters: Counters,
    /// Durations of round trips so far.
    pub round_trips: RoundTrips,
}

/// Last known state of one node of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// Its address.
    pub endpoint: String,
    /// Whether there is a connection to it.
    pub connected: bool,
    /// Whether its circuit breaker is open: it cannot be reached, does not answer, or takes no writes, and
    /// is only probed.
    pub breaker_open: bool,
}

/// Round trips to a store that ended with a reply: of one command, or of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// Their number in each bucket.
    pub counts: [u64; Self::BUCKETS],
    /// Sum of their durations.
    pub total: Duration,
}

impl RoundTrips {
    /// Number of buckets.
    pub const BUCKETS: usize = Self::BOUNDS.len() + 1;
    /// Upper bounds of the buckets, in microseconds; the last bucket has none.
    pub const BOUNDS: [u64; 14] = [
        50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 15_000, 25_000, 50_000, 100_000, 250_000,
        1_000_000,
    ];

    /// Number of round trips in each bucket, with the upper bound of the bucket. The last has none.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bounds = Self::BOUNDS.into_iter().map(|micros| Some(Duration::from_micros(micros)));
        bounds.chain([None]).zip(self.counts)
    }
}

/// Passes the counters of a store, each with its documentation, to a macro.
#[doc(hidden)]
#[macro_export]
macro_rules! store_counters {
    ($with:ident) => {
        $with! {
            /// Decisions that the store made.
            store,
            /// Denials from the denial cache.
            cache,
            /// Decisions from a lease.
            lease,
            /// Decisions that `on_error = deny` made.
            fallback_deny,
            /// Decisions that `on_error = allow` made.
            fallback_allow,
            /// Decisions that `on_error = local` made.
            fallback_local,
            /// Operations without a reply in time.
            timeouts,
            /// Operations that could not be sent, or that the server rejected.
            unavailable,
            /// Operations on a key whose state cannot be used.
            corrupt,
            /// Decisions of the store by its module, not by a script.
            module,
            /// Scripts sent in full, because the server did not have them.
            scripts_sent,
            /// Operations that were redirected to another node of the cluster.
            redirects,
            /// Connections established.
            connections,
            /// Times that the circuit breaker of a node opened.
            breaker_opened,
            /// Units of leases that were refunded.
            lease_returned,
            /// Units of leases that were neither used nor refunded.
            lease_forfeited,
        }
    };
}

macro_rules! counters {
    ($($(#[doc = $text:literal])+ $name:ident,)+) => {
        /// Counters of a store since it was created.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[doc = $text])+ pub $name: u64,)+
        }

        impl Counters {
            /// All counters with their names.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }
        }
    };
}

store_counters!(counters);
