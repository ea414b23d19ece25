//! How workers serve RESP.

use std::{future::poll_fn, io, pin::pin, rc::Rc, sync::Arc, task::Poll};

use tokio::{task::JoinSet, time::timeout};

use super::{
    connection::Connection,
    worker::{RespContext, RespWorker},
};
use crate::{
    net::{
        CONNECTION_BYTES, LINGER,
        clients::{Client, ConnectionPermit},
        protocol::Protocol,
        stream::Socket,
        worker::{Service, ServiceFactory},
    },
    stopping::stopped,
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

/// Serves a client until it disconnects, is closed, or the server stops.
async fn serve(socket: Socket, permit: ConnectionPermit, worker: Rc<RespWorker>) {
    let client = &*permit.client;
    let mut stopping = worker.port.worker.stop.subscribe();
    // Boxed, so that not every connection has the space for a handshake.
    let opened = Box::pin(worker.port.open(socket, client, &mut stopping)).await;
    let Some(stream) = opened else { return };
    let mut connection = Connection::new(stream, &worker, client, stopping);
    // Its own last command may have killed it: replies are sent if possible.
    if !matches!(serve_until_killed(&mut connection, client).await, Some(Err(_))) {
        let _ = timeout(LINGER, connection.close()).await;
    }
    worker.shared.buffers.count_freed(CONNECTION_BYTES);
}

/// `None`: the client was killed.
async fn serve_until_killed(
    connection: &mut Connection<'_>,
    client: &Client,
) -> Option<io::Result<()>> {
    let mut stopping = connection.stopping.clone();
    let (mut stop, mut killed) = (pin!(stopped(&mut stopping)), pin!(client.killed()));
    let mut run = pin!(connection.run());
    let mut is_registered = false;
    poll_fn(|context| {
        // They are polled once and not with every request, to register this task. It is woken after the flags are set that
        // are checked below.
        if !std::mem::replace(&mut is_registered, true) {
            let _ = (stop.as_mut().poll(context), killed.as_mut().poll(context));
        }
        match run.as_mut().poll(context) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending if client.is_killed() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
