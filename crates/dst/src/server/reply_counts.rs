//! The replies of the server, counted, and its metrics about them.

use sluicegate_server::simulation::SimulatedProtocol;

use super::metrics::Metrics;

/// The name of a protocol in metrics.
pub(super) const fn protocol_name(protocol: SimulatedProtocol) -> &'static str {
    match protocol {
        SimulatedProtocol::Resp => "resp",
        SimulatedProtocol::Http => "http",
        SimulatedProtocol::Grpc => "grpc",
    }
}

/// The replies by one protocol.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyCounts {
    /// Decisions that allow, and those that deny.
    pub(super) decisions: [u64; 2],
    pub(super) commands: u64,
    /// Commands that the server has read, and that have no reply, or whose connection has ended without one.
    pub(super) lost: u64,
}

impl ReplyCounts {
    /// How the metrics of the server differ.
    pub(super) fn compare(&self, protocol: SimulatedProtocol, metrics: &Metrics) -> Option<String> {
        let name = protocol_name(protocol);
        let decisions = |outcome| {
            let labels = [("protocol", name), ("outcome", outcome)];
            metrics.sum("sluicegate_decisions_total", &labels)
        };
        // The request for the metrics is another one.
        let requests = metrics.sum("sluicegate_requests_total", &[("protocol", name)])
            - u64::from(protocol == SimulatedProtocol::Http);
        let found = [decisions("allowed"), decisions("denied")];
        let differs = found != self.decisions
            || !(self.commands..=self.commands + self.lost).contains(&requests);
        differs.then(|| {
            format!(
                "metrics of {name}: {requests} requests, {found:?} allowed and denied, not {self:?}"
            )
        })
    }
}
