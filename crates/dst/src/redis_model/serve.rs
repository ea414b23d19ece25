//! A connection to a server: commands in, replies out.

use std::sync::Arc;

use sluicegate_resp::{Arguments, Parser};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep_until},
};

use super::{server::RedisModel, servers::Servers};
use crate::network::Stream;

/// Serves a connection of `process` to a node, until it ends.
pub(crate) async fn serve(servers: Arc<Servers>, node: usize, process: usize, mut stream: Stream) {
    let server = Arc::clone(servers.node(node));
    let mut session = server.new_session(process);
    let start = server.state.lock().start;
    let (mut unread, mut parser) = (Vec::new(), Parser::default());
    loop {
        let (mut out, mut received) = (Vec::new(), std::mem::take(&mut unread));
        let mut rest = &mut received[..];
        let mut arguments = Arguments::new();
        while let Ok(true) = parser.parse(&mut rest, &mut arguments) {
            // A paused server runs nothing; what has arrived is run when it continues.
            wait(&server, session.number, false).await;
            if server.state.lock().start != start || !server.is_up() {
                return stream.reset();
            }
            servers.run(node, &mut session, &arguments, &mut out);
        }
        unread = rest.to_vec();
        if !out.is_empty() {
            wait(&server, session.number, true).await;
        }
        if stream.write_all(&out).await.is_err() {
            return;
        }
        if !matches!(stream.read_buf(&mut unread).await, Ok(1..)) {
            return;
        }
    }
}

/// Waits while the server runs no command of the session, or does not reply to it.
async fn wait(server: &RedisModel, session: u64, replies: bool) {
    loop {
        let until = server.waits_until(session, replies);
        if Instant::now() >= until {
            return;
        }
        sleep_until(until).await;
    }
}
