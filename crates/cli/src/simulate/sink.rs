//! Receivers of decisions.

use std::io;

use sluicegate_core::Decision;
use sluicegate_simulator::Event;

/// Receives the decisions of a store, in the order of events.
pub(super) trait Sink {
    fn add(&mut self, event: &Event<'_>, decision: &Decision) -> io::Result<()>;
}
