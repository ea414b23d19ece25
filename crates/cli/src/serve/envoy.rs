//! Responses to Envoy.

use std::time::Duration;

use clap::Args;
use sluicegate_server::{EnvoyConfig, EnvoyHeaders};

use crate::values::{self, Choices};

#[derive(Args, Debug)]
pub(super) struct Envoy {
    /// Rate limit headers that Envoy is to add to responses; Envoy can also add its own
    #[arg(long, value_name = "HEADERS", default_value = values::word(HEADERS, &EnvoyConfig::default().headers), value_parser = values::choice(HEADERS))]
    envoy_headers: EnvoyHeaders,
    /// Return the descriptors of each request to Envoy, as dynamic metadata
    #[arg(long, value_parser = values::switch)]
    envoy_metadata: bool,
    /// Close gRPC connections at about this age, to rebalance clients over servers; 0 disables it
    #[arg(long, value_name = "DURATION", default_value = values::span_text(EnvoyConfig::default().max_age), value_parser = values::seconds)]
    grpc_max_age: Duration,
    /// Maximum number of Envoys that are assigned quotas at a time
    #[arg(long, value_name = "COUNT", default_value_t = EnvoyConfig::default().max_quota_streams)]
    quota_max_streams: usize,
    /// Maximum number of quota buckets of one Envoy
    #[arg(long, value_name = "COUNT", default_value_t = EnvoyConfig::default().max_quota_buckets)]
    quota_max_buckets: usize,
}

const HEADERS: Choices<EnvoyHeaders> = &[
    ("none", "", EnvoyHeaders::None),
    ("ratelimit", "", EnvoyHeaders::RateLimit),
    ("x-ratelimit", "", EnvoyHeaders::XRateLimit),
];

impl Envoy {
    pub(super) fn apply(self, config: &mut EnvoyConfig) {
        config.headers = self.envoy_headers;
        config.metadata = self.envoy_metadata;
        config.max_age = self.grpc_max_age;
        config.max_quota_streams = self.quota_max_streams;
        config.max_quota_buckets = self.quota_max_buckets;
    }
}
