//! A process that is a server of Sluicegate, with its clients.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use sluicegate_core::OnError;
use sluicegate_server::{
    Config, StoreConfig,
    simulation::{SimulatedProtocol, SimulatedServer},
};
use tokio::{task::spawn_local, time::sleep};

use super::{
    answers::Answers,
    connection::{Connection, OutstandingCommand},
};
use crate::{
    checked_store::CheckedStore,
    network::Link,
    process::Process,
    random::RandomByTime,
    server::{Command, clock, encode_http},
};

/// Connections of the clients.
const CONNECTIONS: usize = 8;
/// How long an operation may take that is none of the first ones of a pipeline, in milliseconds: two calls of the store.
const OPERATION: u64 = 34;
/// Time for the server to notice that its clients have left.
const LEAVE: Duration = Duration::from_secs(5);

/// The names of the keys of a plan, and the texts of the policies that a process uses.
pub(crate) type NamedKeys = Vec<(String, String)>;

/// A server with its clients.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    process: Process,
    server: SimulatedServer,
    protocol: SimulatedProtocol,
    link: Arc<Link>,
    connections: Vec<Connection>,
    answers: Arc<Mutex<Answers>>,
}

impl ServerProcess {
    pub(crate) fn start(
        process: &Process,
        protocol: SimulatedProtocol,
        random: RandomByTime,
        on_error: OnError,
    ) -> Self {
        let answers = Arc::default();
        let store = CheckedStore::new(process, Arc::clone(&answers));
        let mut config = Config::default();
        let mut settings = StoreConfig::new(process.servers().url());
        settings.on_error = on_error;
        config.store = Some(settings);
        let server = SimulatedServer::start_on(config, clock::now, Arc::new(store));
        let (process, link) = (process.clone(), Link::new(random));
        Self { process, server, protocol, link, connections: Vec::new(), answers }
    }

    /// Sends commands of a client in one pipeline. While all connections wait for replies, it sends nothing.
    pub(crate) fn send(&mut self, keys: &NamedKeys, commands: Vec<Command>) {
        let mut bytes = Vec::new();
        let count = commands.len() as u64;
        let sent = commands.into_iter().map(|command| {
            match self.protocol {
                SimulatedProtocol::Resp => command.encode(keys, &mut bytes),
                SimulatedProtocol::Http => encode_http(&command, keys, &mut bytes),
                SimulatedProtocol::Grpc => {}
            }
            let requests = command.requests();
            let names = requests.iter().map(|it| keys[it.0].0.clone().into_bytes()).collect();
            let wait = u64::try_from(command.timeout().as_millis()).unwrap_or(u64::MAX);
            let most = count * OPERATION + wait + self.process.pause_left();
            OutstandingCommand { command, keys: names, at: self.process.moment(), most }
        });
        let sent: Vec<_> = sent.collect();
        if let Some(connection) = self.connection() {
            connection.send(sent, &bytes);
        }
    }

    /// A connection without an open command. None: all of them wait for replies.
    fn connection(&mut self) -> Option<&Connection> {
        self.connections.retain(|it| !it.has_ended());
        let idle = self.connections.iter().position(|it| it.open() == 0);
        let index = match idle {
            Some(index) => index,
            None if self.connections.len() < CONNECTIONS => {
                let (ours, theirs) = self.link.open();
                let client = format!("client{}", self.connections.len());
                if !self.server.connect(self.protocol, Box::new(theirs), client) {
                    self.process
                        .checks()
                        .violation(format_args!("liveness: a server rejects a client"));
                }
                self.connections.push(Connection::new(
                    ours,
                    &self.process,
                    self.protocol,
                    &self.answers,
                ));
                self.connections.len() - 1
            }
            None => return None,
        };
        self.connections.get(index)
    }

    /// Ends at once: connections are reset.
    pub(crate) fn end(self) {
        self.connections.iter().for_each(|it| it.close(true));
    }

    /// Stops: all requests that were read are answered. Then the process returns its leases.
    pub(crate) fn stop(mut self) {
        self.connections.iter().for_each(Connection::stops);
        spawn_local(async move {
            if self.server.stop().await.is_err() {
                self.process.checks().violation(format_args!("panic: a server has failed"));
            }
            self.process.close();
        });
    }

    /// Commands without an answer.
    pub(crate) fn open(&self) -> usize {
        self.connections.iter().map(Connection::open).sum()
    }

    /// Nothing is left of clients that have gone.
    pub(crate) async fn check_rest(&mut self) {
        self.connections.drain(..).for_each(|it| it.close(false));
        sleep(LEAVE).await;
        let rest = (self.server.clients(), self.server.waiting(), self.server.buffered());
        if rest != (0, 0, 0) {
            let what = format_args!("rest: clients, requests that wait, bytes: {rest:?}");
            self.process.checks().violation(what);
        }
    }
}
