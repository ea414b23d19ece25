//! How workers serve RESP.

use std::{rc::Rc, sync::Arc};

use tokio::task::JoinSet;

use super::{context::RespContext, serve::serve, worker::RespWorker};
use crate::net::{
    clients::ConnectionPermit,
    protocol::Protocol,
    stream::Socket,
    worker::{Service, ServiceFactory},
};

pub(crate) static PROTOCOL: Protocol = Protocol {
    name: "resp",
    setting: "listen",
    tls_settings: "--tls",
    alpn: &[],
    reserves_health: false,
    rejection: b"-ERR max number of clients reached\r\n",
};

/// Makes the service of each worker.
pub(crate) fn service(context: RespContext) -> ServiceFactory {
    let context = Arc::new(context);
    Box::new(move |port| Rc::new(RespWorker::new(Arc::clone(&context), port)))
}

impl Service for RespWorker {
    fn serve(self: Rc<Self>, socket: Socket, permit: ConnectionPermit, tasks: &mut JoinSet<()>) {
        tasks.spawn_local(serve(socket, permit, self));
    }
}
