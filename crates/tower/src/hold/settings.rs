//! The settings that only layers with holds have.

use std::time::Duration;

use http::HeaderName;
use sluicegate_core::Operation;

use crate::NamedPolicy;

/// The settings of a layer that only holds have.
#[derive(Clone, Debug)]
pub(super) struct HoldSettings {
    pub(super) ttl: Duration,
    /// The lifetime under the only policy, if there is one for all requests.
    pub(super) only_ttl: Option<Duration>,
    /// The header or trailer of responses with the units that were used.
    pub(super) used_from: Option<HeaderName>,
}

impl HoldSettings {
    /// The lifetime of holds under `policy`.
    pub(super) fn ttl_under(&self, policy: &NamedPolicy) -> Duration {
        // An id and no lifetime: the longest one is then the default.
        let hold = Operation::Hold { id: b"-", cost: 0, ttl: None };
        let longest = policy.policy().check_operation(hold);
        longest.map_or(self.ttl, |micros| self.ttl.min(Duration::from_micros(micros)))
    }
}
