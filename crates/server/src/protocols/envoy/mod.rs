//! Envoy's rate limit service, version 3, over gRPC.
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
mod context;
mod decide;
mod services;
mod unit;

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
        Rc::new(EnvoyService { services, web: Rc::new(WebPort::new(port, web.clone())) })
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
        tasks.spawn_local(web::serve(socket, permit, web, answer, services::unavailable));
    }

    fn set_serving(&self, serving: bool) -> LocalBoxFuture<'_, ()> {
        Box::pin(self.services.set_serving(serving))
    }
}
