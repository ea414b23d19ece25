//! Messages between Envoy and a rate limit or quota service: its protos as Rust.
//!
//! `proto/` holds the parts of Envoy's files that are used, `src/generated/` the code that `cargo xtask
//! codegen` generates from them; a test fails on drift. Names of packages, messages and numbers of
//! fields are Envoy's.
//!
//! ```
//! use prost::Message;
//! use sluicegate_proto::rls::RateLimitRequest;
//!
//! let request = RateLimitRequest { domain: "web".into(), ..RateLimitRequest::default() };
//! assert_eq!(request.encode_to_vec(), b"\x0a\x03web");
//! ```

pub mod codec;

/// All of Envoy's packages that are used, by their names.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::use_self,
    rustdoc::all,
    reason = "generated; the protos have the documentation"
)]
#[rustfmt::skip]
pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                include!("generated/envoy.config.core.v3.rs");
            }
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    include!("generated/envoy.extensions.common.ratelimit.v3.rs");
                }
            }
        }
    }
    pub mod service {
        pub mod rate_limit_quota {
            pub mod v3 {
                include!("generated/envoy.service.rate_limit_quota.v3.rs");
            }
        }
        pub mod ratelimit {
            pub mod v3 {
                include!("generated/envoy.service.ratelimit.v3.rs");
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            include!("generated/envoy.type.v3.rs");
        }
    }
}

pub use envoy::{
    config::core::v3::HeaderValue, extensions::common::ratelimit::v3 as descriptor,
    service::rate_limit_quota::v3 as rlqs, service::ratelimit::v3 as rls, r#type::v3 as strategy,
};

/// The descriptors of all messages and services, as reflection serves them: a `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");
