//! The face of Envoy: its rate limit service, version 3, over gRPC.
//!
//! `services` says who answers a call, `calls` carries one out: `decide` finds what to ask of the
//! store for each descriptor and asks it, `answer` makes the response of what was decided, in the
//! words of `unit`.
//!
//! Invariants:
//! - there are as many statuses as descriptors, in their order, and none says that it is unknown: a
//!   call about which nothing can be decided fails, so that Envoy does as it was told to for such a
//!   case;
//! - a call that fails, or panics, ends for itself and leaves the connection be.

mod answer;
mod calls;
mod config;
mod decide;
mod services;
mod unit;

use std::rc::Rc;

pub use self::config::{EnvoyConfig, EnvoyHeaders};
pub(crate) use self::services::Services;
use crate::{shared::Seat, stream::Socket, web, worker::Worker};

/// Serves a client until it leaves, is closed, or the server stops.
pub(crate) async fn serve(socket: Socket, seat: Seat, worker: Rc<Worker>) {
    let services = Rc::clone(&worker.grpc);
    let answer = move |request| services.call(request);
    web::serve(socket, seat, worker, answer, services::unavailable).await;
}
