//! What is counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $text:literal])+ $name:ident,)+) => {
        /// What a store has counted since it was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[doc = $text])+ pub $name: u64,)+
        }

        impl Counters {
            /// Each with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }
        }

        #[derive(Debug, Default)]
        pub(crate) struct CounterValues {
            $(pub(crate) $name: Counter,)+
        }

        impl CounterValues {
            pub(crate) fn read(&self) -> Counters {
                Counters { $($name: self.$name.read(),)+ }
            }
        }
    };
}

counters! {
    /// Decisions that the store made.
    store,
    /// Denials repeated here.
    cache,
    /// Decisions from a lease.
    lease,
    /// Decisions that `on_error = deny` made.
    fallback_deny,
    /// Decisions that `on_error = allow` made.
    fallback_allow,
    /// Decisions that `on_error = local` made.
    fallback_local,
    /// Questions that got no answer in time.
    timeouts,
    /// Questions that could not be asked, or that the server refused to answer.
    unavailable,
    /// Questions about a key whose state cannot be used.
    corrupt,
    /// Decisions of the store that its module made, and no script.
    module,
    /// Scripts sent in full, since the server did not know them.
    scripts_sent,
    /// Questions that another node of the cluster had to be asked.
    redirects,
    /// Connections made.
    connections,
    /// Times that the circuit breaker of a node opened.
    breaker_opened,
    /// Units of leases that went back.
    lease_returned,
    /// Units of leases that were neither used nor went back.
    lease_forfeited,
}
