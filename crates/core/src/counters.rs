//! Counters of a store.

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
