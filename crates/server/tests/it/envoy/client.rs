//! A client of gRPC, and requests for it.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sluicegate_proto::{
    descriptor::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    rls::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
        rate_limit_service_client::RateLimitServiceClient,
    },
};
use sluicegate_server::Config;
use tokio::runtime::{Builder, Runtime};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use crate::harness::{Running, any_port};

/// A server with gRPC, and a client of it.
pub(crate) struct Service {
    pub(super) runtime: Runtime,
    pub(super) channel: Channel,
    pub(crate) server: Running,
}

impl Service {
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(configure: impl FnOnce(&mut Config)) -> Self {
        let server = Running::with(|config| {
            config.envoy.address = Some(any_port());
            configure(config);
        });
        let (runtime, channel) = connect(server.grpc.unwrap());
        Self { runtime, channel, server }
    }

    pub(crate) fn should_rate_limit(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        call(&self.runtime, &self.channel, request)
    }

    /// The status of the only descriptor of a request.
    pub(crate) fn status_of(&self, descriptor: RateLimitDescriptor) -> DescriptorStatus {
        let response = self.should_rate_limit(request(vec![descriptor])).unwrap();
        let [status] = &response.statuses[..] else { panic!("{response:?}") };
        assert_eq!(status.code, response.overall_code);
        status.clone()
    }
}

/// A connection to the gRPC listener at `address`.
pub(super) fn connect(address: SocketAddr) -> (Runtime, Channel) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let channel = runtime.block_on(endpoint.timeout(Duration::from_secs(60)).connect()).unwrap();
    (runtime, channel)
}

/// Calls `ShouldRateLimit` over a connection.
pub(super) fn call(
    runtime: &Runtime,
    channel: &Channel,
    request: RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let mut client = RateLimitServiceClient::new(channel.clone());
    Ok(runtime.block_on(client.should_rate_limit(request))?.into_inner())
}

pub(crate) fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "shop".to_owned(), descriptors, hits_addend: 0 }
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries =
        entries.iter().map(|&(key, value)| Entry { key: key.into(), value: value.into() });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

/// A descriptor that brings its limit.
pub(crate) fn limited(entries: &[(&str, &str)], requests_per_unit: u32) -> RateLimitDescriptor {
    let limit = RateLimitOverride { requests_per_unit, unit: long_unit().into() };
    RateLimitDescriptor { limit: Some(limit), ..descriptor(entries) }
}

/// A unit whose window on the clock does not end while a test runs.
pub(crate) fn long_unit() -> Unit {
    #[expect(clippy::disallowed_methods, reason = "windows are on the clock")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let left = |seconds: u64| seconds - now % seconds;
    if left(365 * 86_400) > 3_600 { Unit::Year } else { Unit::Week }
}

/// Whether the limit is exceeded, and the units remaining.
pub(crate) fn over_limit_and_remaining(status: &DescriptorStatus) -> (bool, u32) {
    (status.code() == Code::OverLimit, status.limit_remaining)
}
