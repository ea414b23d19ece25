//! How Envoy is answered.

use std::time::Duration;

use clap::{Args, ValueEnum};
use sluicegate_server::{EnvoyConfig, EnvoyHeaders};

#[derive(Args, Debug)]
pub(crate) struct Envoy {
    /// Which fields Envoy is to add to responses; `none` if not given, as it can do so by itself
    #[arg(long, env = "SLUICEGATE_ENVOY_HEADERS", value_enum)]
    envoy_headers: Option<Fields>,
    /// Tell Envoy what it asked, as dynamic metadata
    #[arg(long, env = "SLUICEGATE_ENVOY_METADATA")]
    envoy_metadata: bool,
    /// End connections of gRPC at about this age, so that clients spread anew; 0: never
    #[arg(long, env = "SLUICEGATE_GRPC_MAX_AGE", value_name = "SECONDS", default_value_t = 0)]
    grpc_max_age: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fields {
    None,
    Ratelimit,
    XRatelimit,
}

impl Envoy {
    pub(super) fn config(self) -> EnvoyConfig {
        let mut config = EnvoyConfig::default();
        config.headers = match self.envoy_headers {
            Some(Fields::Ratelimit) => EnvoyHeaders::RateLimit,
            Some(Fields::XRatelimit) => EnvoyHeaders::XRateLimit,
            Some(Fields::None) | None => EnvoyHeaders::None,
        };
        config.metadata = self.envoy_metadata;
        config.max_age = Duration::from_secs(self.grpc_max_age);
        config
    }
}
