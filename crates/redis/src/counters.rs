//! The counters of the store, as they are counted.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::Counters;

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

macro_rules! counter_values {
    ($($name:ident,)+) => {
        /// The values of [`Counters`].
        #[derive(Debug, Default)]
        pub(crate) struct CounterValues {
            $(pub(crate) $name: Counter,)+
        }

        impl CounterValues {
            pub(crate) fn read(&self) -> Counters {
                let mut counters = Counters::default();
                $(counters.$name = self.$name.read();)+
                counters
            }
        }
    };
}

counter_values! {
    store,
    cache,
    lease,
    fallback_deny,
    fallback_allow,
    fallback_local,
    timeouts,
    unavailable,
    corrupt,
    module,
    scripts_sent,
    redirects,
    connections,
    breaker_opened,
    lease_returned,
    lease_forfeited,
}
