//! Our server in this process, where it is measured by its threads or need not be measured alone.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::mpsc,
    thread,
};

use sluicegate_server::{Config, Server};

/// Where it listens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) resp: SocketAddr,
    pub(crate) http: SocketAddr,
}

/// Serves, with rules or without, in threads that end with the process.
pub(crate) fn serve(rules: Option<PathBuf>) -> io::Result<Addresses> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut config = Config::default();
            config.resp.address.set_port(0);
            (config.http.address, config.envoy.address) =
                (Some((Ipv4Addr::LOCALHOST, 0).into()), None);
            config.rules.extend(rules);
            let server = Server::bind(config).await?;
            // Nobody waits for the addresses of a server that is not needed any more.
            let _ = tell.send((server.local_addr()?, server.http_addr()));
            server.run(std::future::pending()).await
        })
    });
    let addresses = told.recv().ok().and_then(|(resp, http)| Some(Addresses { resp, http: http? }));
    addresses.ok_or_else(|| io::Error::other("our server does not listen"))
}
