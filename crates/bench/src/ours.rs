//! Our server in this process, for benchmarks that measure its threads or need no separate process.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::mpsc,
    thread,
};

use sluicegate_server::{Config, Server};

/// The addresses of its listeners.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) resp: SocketAddr,
    pub(crate) http: SocketAddr,
}

/// Starts the server, with or without rules, in threads that end with the process.
pub(crate) fn serve(rules: Option<PathBuf>) -> io::Result<Addresses> {
    let mut config = Config::default();
    config.rules.extend(rules);
    serve_with(config)
}

/// The same with these settings, on free ports.
pub(crate) fn serve_with(mut config: Config) -> io::Result<Addresses> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            config.resp.address.set_port(0);
            (config.http.address, config.envoy.address) =
                (Some((Ipv4Addr::LOCALHOST, 0).into()), None);
            let server = Server::bind(config).await?;
            // The receiver may have been dropped.
            let _ = sender.send((server.local_addr()?, server.http_addr()));
            server.run(std::future::pending()).await
        })
    });
    let addresses =
        receiver.recv().ok().and_then(|(resp, http)| Some(Addresses { resp, http: http? }));
    addresses.ok_or_else(|| io::Error::other("our server does not listen"))
}
