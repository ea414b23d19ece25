//! Envoy's rate limit service, version 3, over gRPC.
//!
//! `services` routes a call to `calls`, `decide` evaluates its descriptors, and `response` encodes the outcomes.
//!
//! Invariants:
//! - the response has one status for each descriptor, in their order, and none of them is unknown: a call without a
//!   decision fails, and Envoy applies its `failure_mode_deny`;
//! - a call that fails or panics does not end its connection.

mod context;
mod decide;
pub(crate) mod quota;
mod quota_service;
mod response;
mod services;

use std::{rc::Rc, sync::Arc};

use futures_util::future::LocalBoxFuture;
use tokio::task::JoinSet;

pub(crate) use self::context::EnvoyContext;
use self::services::Services;
use crate::net::{
    clients::ConnectionPermit,
    protocol::Protocol,
    stream::Socket,
    web::{self, WebPort},
    worker::{Service, ServiceFactory},
};

pub(crate) static PROTOCOL: Protocol = Protocol {
    name: "grpc",
    setting: "grpc",
    tls_settings: "--grpc-tls",
    alpn: &[b"h2"],
    reserves_health: false,
    // A client of HTTP/2 tries elsewhere, or later, when it is closed before it has begun.
    rejection: b"",
};

/// Makes the service of each worker.
pub(crate) fn service(context: EnvoyContext, web: web::Settings) -> ServiceFactory {
    let context = Arc::new(context);
    Box::new(move |port| {
        let services = Rc::new(Services::new(&context, &port.stats));
        Rc::new(EnvoyService { services, web: Rc::new(WebPort { port, settings: web.clone() }) })
    })
}

struct EnvoyService {
    services: Rc<Services>,
    web: Rc<WebPort>,
}

impl Service for EnvoyService {
    fn serve(self: Rc<Self>, socket: Socket, permit: ConnectionPermit, tasks: &mut JoinSet<()>) {
        let services = Rc::clone(&self.services);
        let answer = move |request| services.call(request);
        let web = Rc::clone(&self.web);
        tasks.spawn_local(web::serve(socket, permit, web, answer, services::unavailable, |_| {
            web::UNAVAILABLE.into()
        }));
    }

    fn set_serving(&self, serving: bool) -> LocalBoxFuture<'_, ()> {
        Box::pin(self.services.set_serving(serving))
    }
}
