//! Clients of gRPC, as Envoy is one: one connection of HTTP/2 for many calls at a time.

use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_proto::rls::{
    rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};
use tokio::runtime::Builder;
use tonic::transport::Endpoint;

use super::ProtocolCounts;
use crate::{
    envoy::client::{descriptor, request},
    harness::{Random, Running, TEST_TIMEOUT},
};

/// Calls at a time.
const CALLS: u64 = 16;

/// One client until `stop`.
pub(super) fn client(server: &Running, seed: u64, stop: &AtomicBool) -> ProtocolCounts {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let address = format!("http://{}", server.grpc.unwrap());
    let mut seen = ProtocolCounts::default();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(address).unwrap().timeout(TEST_TIMEOUT);
        let channel = endpoint.connect().await.unwrap();
        let mut random = Random(seed);
        while !stop.load(Ordering::Relaxed) {
            let calls = (0..CALLS).map(|_| {
                let user = format!("u{}", random.below(20));
                // Without a descriptor it is an error.
                let has_descriptor = random.below(10) > 0;
                let descriptors = has_descriptor.then(|| descriptor(&[("user", &user)]));
                let mut client = RateLimitServiceClient::new(channel.clone());
                tokio::spawn(async move {
                    let request = request(descriptors.into_iter().collect());
                    client.should_rate_limit(request).await.map(tonic::Response::into_inner)
                })
            });
            let calls: Vec<_> = calls.collect();
            for call in calls {
                seen.requests += 1;
                match call.await.unwrap() {
                    Ok(response) => seen.decided(response.overall_code() == Code::Ok),
                    Err(_) => seen.errors += 1,
                }
            }
        }
    });
    seen
}
