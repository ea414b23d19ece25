//! Serving a client, from its first byte until it leaves, is closed, or the server stops.

use std::{future::poll_fn, io, pin::pin, rc::Rc, task::Poll, time::Duration};

use tokio::time::timeout;

use super::{connection::Connection, worker::RespWorker};
use crate::{
    net::{
        clients::{Client, ConnectionPermit},
        stream::Socket,
    },
    stopping::stopped,
};

/// How long a closed client has for hearing the last words.
const LINGER: Duration = Duration::from_millis(500);

/// What a connection takes up, about, in bytes; it is not reserved.
const CONNECTION: usize = 3 * 1024;

/// Serves a client until it leaves, is closed, or the server stops.
pub(super) async fn serve(socket: Socket, permit: ConnectionPermit, worker: Rc<RespWorker>) {
    let client = &*permit.client;
    let mut stopping = worker.stopping();
    // In a box: what a handshake takes is no part of each connection.
    let opened = Box::pin(worker.open(socket, client, &mut stopping)).await;
    let Some(stream) = opened else { return };
    let mut connection = Connection::new(stream, &worker, client, stopping);
    // Its own last command may have killed it: what was answered is sent, if it can be.
    if !matches!(serve_until_killed(&mut connection, client).await, Some(Err(_))) {
        let _ = timeout(LINGER, connection.close()).await;
    }
    worker.shared.buffers.count_freed(CONNECTION);
}

/// `None`: somebody has the client closed.
async fn serve_until_killed(
    connection: &mut Connection<'_>,
    client: &Client,
) -> Option<io::Result<()>> {
    let mut stopping = connection.stopping.clone();
    let (mut stop, mut killed) = (pin!(stopped(&mut stopping)), pin!(client.killed()));
    let mut run = pin!(connection.run());
    let mut asked = false;
    poll_fn(|context| {
        // They are asked once, not with every request: from then on they wake this task, which looks
        // at what was set before they did. So what they say at once needs no looking at either.
        if !std::mem::replace(&mut asked, true) {
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
