//! Rate limits as a layer of tower: for axum, tonic, hyper and whatever else serves HTTP.
//!
//! ```
//! use std::net::SocketAddr;
//! use axum::{Router, extract::ConnectInfo, routing::get};
//! use sluicegate::Limiter;
//! use sluicegate_tower::{Address, NamedPolicy, RateLimitLayer};
//!
//! let limiter = Limiter::in_memory(); // or Limiter::connect("redis://127.0.0.1/").await?
//! let policy = NamedPolicy::new("hello", "gcra:30/60s:burst=16".parse()?);
//! let layer = RateLimitLayer::new(limiter, policy)
//!     .by(Address::peer().found_in::<ConnectInfo<SocketAddr>>());
//!
//! let app: Router = Router::new().route("/hello", get(async || "hello")).layer(layer);
//! // axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`RateLimitLayer`]: over any [`Store`](sluicegate_core::Store), in this process or on Redis or Valkey.
//! - [`Address`], [`Part`]: whom a request is about.
//! - [`NamedPolicy`], [`Routes`], [`Rules`]: which policy it is under.
//! - [`Headers`], [`Refuse`], [`ProblemJson`], [`Grpc`]: what responses say, and what is answered to whom it
//!   denies.
//!
//! A request of which the state is in this process is decided at once, without a future of its own. Nothing
//! here is of axum or tonic.

mod address;
mod ask;
mod head;
mod headers;
mod key;
mod layer;
mod refuse;
mod rules;
mod service;

pub use address::Address;
pub use head::Head;
pub use headers::Headers;
pub use key::Part;
pub use layer::RateLimitLayer;
pub use refuse::{Event, Grpc, ProblemJson, Refusal, Refuse};
pub use rules::{NamedPolicy, Routes, Rules};
pub use service::{RateLimit, ResponseFuture};
pub use sluicegate_headers::PathOptions;

/// The programs of a page of the documentation are compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tower.md")]
mod page {}
