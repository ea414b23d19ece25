//! Tower middleware for rate limits: for axum, tonic, hyper and everything else that serves HTTP.
//!
//! ```
//! use std::net::SocketAddr;
//! use axum::{Router, extract::ConnectInfo, routing::get};
//! use sluicegate::Limiter;
//! use sluicegate_tower::{ClientAddress, NamedPolicy, RateLimitLayer};
//!
//! let limiter = Limiter::in_memory(); // or Limiter::new(RedisStore::new("redis://127.0.0.1/", Options::default())?)
//! let policy = NamedPolicy::new("hello", "gcra:30/60s:burst=16".parse()?);
//! let layer = RateLimitLayer::new(limiter, policy)
//!     .by(ClientAddress::peer().found_in::<ConnectInfo<SocketAddr>>());
//!
//! let app: Router = Router::new().route("/hello", get(async || "hello")).layer(layer);
//! // axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`RateLimitLayer`]: the layer, over any [`Store`](sluicegate_core::Store), in memory or in Redis or Valkey.
//! - [`HoldLayer`]: the layer for requests in flight, which holds units until the body of the response has ended.
//! - [`ClientAddress`], [`KeyPart`]: the key of a request.
//! - [`NamedPolicy`], [`Routes`], [`Rules`]: the policy of a request.
//! - [`HeaderStyle`], [`RejectionHandler`], [`ProblemJson`], [`Grpc`]: rate limit headers, and responses to denied requests.
//!
//! With state in this process, a request is decided immediately, without a future. This crate does not depend
//! on axum or tonic.

mod address;
mod head;
mod hold;
mod key;
mod key_bytes;
mod layer;
mod rejection;
mod response;
mod rules;
mod service;
mod settings;
mod wait;

pub use address::ClientAddress;
pub use head::Head;
pub use hold::{HeldBody, HoldFuture, HoldLayer, HoldService};
pub use key::KeyPart;
pub use layer::RateLimitLayer;
pub use rejection::{Event, Grpc, ProblemJson, Rejection, RejectionHandler};
pub use rules::{NamedPolicy, Routes, Rules};
pub use service::{RateLimit, ResponseFuture};
pub use sluicegate_headers::{HeaderStyle, PathOptions};
pub use sluicegate_holds::Jitter;

/// The programs of the page on this crate are compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tower.md")]
mod page {}

/// The program of the README is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
