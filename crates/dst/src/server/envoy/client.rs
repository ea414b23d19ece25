//! A client of the service: one connection at a time, and a stream for each call.

use std::sync::Arc;

use bytes::Bytes;
use h2::client::{SendRequest, handshake};
use http::{HeaderMap, Request};
use parking_lot::Mutex;
use sluicegate_server::simulation::{SimulatedProtocol, SimulatedServer};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::{JoinHandle, JoinSet, spawn_local},
};

use super::{
    calls::Calls,
    message::{self, Call, CallResponse},
};
use crate::{
    network::{Link, Stream},
    server::server_end::ServerEnd,
};

const METHOD: &str = "http://server/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Calls without a response beyond which no further ones are made.
const MAX_OPEN: usize = 32;

#[derive(Debug)]
pub(crate) struct EnvoyClient {
    index: usize,
    link: Arc<Link>,
    calls: Arc<Mutex<Calls>>,
    connection: Option<Connected>,
}

#[derive(Debug)]
struct Connected {
    number: usize,
    wanted: UnboundedSender<Call>,
    task: JoinHandle<()>,
}

impl EnvoyClient {
    pub(crate) const fn new(index: usize, link: Arc<Link>, calls: Arc<Mutex<Calls>>) -> Self {
        Self { index, link, calls, connection: None }
    }

    /// Makes a call, on a new connection if there is none. Whether the server accepts it.
    pub(crate) fn call(&mut self, server: &SimulatedServer, call: Call) -> bool {
        if self.connection.as_ref().is_some_and(|it| it.task.is_finished()) {
            self.leave();
        }
        let connected = match self.connection.take() {
            Some(connected) => connected,
            None => match self.connect(server) {
                Some(connected) => connected,
                None => return false,
            },
        };
        if self.calls.lock().unanswered(connected.number) < MAX_OPEN {
            // An error means that the connection has just ended.
            let _ = connected.wanted.send(call);
        }
        self.connection = Some(connected);
        true
    }

    fn connect(&self, server: &SimulatedServer) -> Option<Connected> {
        let (stream, of_server) = self.link.open();
        let number = self.calls.lock().open(self.index);
        let end = ServerEnd { stream: of_server, observer: Arc::clone(&self.calls), number };
        let address = format!("envoy{}", self.index);
        let is_accepted = server.connect(SimulatedProtocol::Grpc, Box::new(end), address);
        let (wanted, to_make) = unbounded_channel();
        let task = spawn_local(run(stream, number, Arc::clone(&self.calls), to_make));
        is_accepted.then_some(Connected { number, wanted, task })
    }

    /// Closes its connection. What the server still sends is lost.
    pub(crate) fn leave(&mut self) {
        if let Some(Connected { number, task, .. }) = self.connection.take() {
            self.calls.lock().end(number);
            task.abort();
        }
    }
}

/// Makes calls on a connection until it ends.
async fn run(
    stream: Stream,
    number: usize,
    calls: Arc<Mutex<Calls>>,
    mut to_make: UnboundedReceiver<Call>,
) {
    if let Ok((sender, connection)) = handshake(stream).await {
        let making = async {
            let mut tasks = JoinSet::new();
            while let Some(call) = to_make.recv().await {
                tasks.spawn_local(make(sender.clone(), number, Arc::clone(&calls), call));
            }
        };
        tokio::select! {
            biased;
            _ended = connection => {}
            () = making => {}
        }
    }
    calls.lock().end(number);
}

/// Makes a call. Without a response it ends with the connection.
async fn make(
    sender: SendRequest<Bytes>,
    number: usize,
    calls: Arc<Mutex<Calls>>,
    call: Call,
) -> Option<()> {
    let mut sender = sender.ready().await.ok()?;
    let request = Request::post(METHOD)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .ok()?;
    let (response, mut body) = sender.send_request(request, false).ok()?;
    let id = (number, u32::from(response.stream_id()));
    let message = message::encode(&call);
    calls.lock().send(id, call);
    body.send_data(message, true).ok()?;
    let (head, mut body) = response.await.ok()?.into_parts();
    let mut bytes = Vec::new();
    while let Some(part) = body.data().await {
        let part = part.ok()?;
        bytes.extend_from_slice(&part);
        body.flow_control().release_capacity(part.len()).ok()?;
    }
    let trailers = body.trailers().await.ok()?;
    let response = response_of(trailers.as_ref().unwrap_or(&head.headers), &bytes);
    calls.lock().receive(id, &response);
    Some(())
}

/// The response, from the fields with its status and the message.
fn response_of(fields: &HeaderMap, message: &[u8]) -> CallResponse {
    match fields.get("grpc-status") {
        Some(status) if status == "0" => message::decode(message),
        status => Err(format!("status {status:?}: {:?}", fields.get("grpc-message"))),
    }
}
