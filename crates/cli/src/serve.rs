//! `serve`: the server until a signal comes.

mod file;
mod settings;
mod store;

use std::io::{self, Write};

use anyhow::{Context, anyhow};
use sluicegate_server::{Config, Reloader, Server};
use tracing_subscriber::EnvFilter;

pub(crate) use self::{file::read, settings::Settings};
use crate::arguments::Serve;

/// The environment variable that says what is logged, as `debug` or `sluicegate_server=trace`.
const LOG: &str = "SLUICEGATE_LOG";

pub(crate) fn serve(options: Serve) -> anyhow::Result<()> {
    let text = std::env::var(LOG).unwrap_or_else(|_| "info".to_owned());
    let filter = EnvFilter::try_new(&text)
        .with_context(|| format!("{LOG} `{text}` is no filter; `info` or `debug` would do"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .init();

    let mut config = Config::default();
    config.listen = options.listen;
    config.http = options.http.0;
    config.grpc = options.grpc.0;
    config.requirepass = options.requirepass;
    config.test_clock = options.test_clock;
    config.max_clients = options.max_clients;
    options.settings.apply(&mut config)?;

    // It only accepts clients: the server has threads of its own to serve them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let unix = config.unix.is_some();
        let stop = stop_signal()?;
        let rules = !config.rules.is_empty();
        let server = Server::bind(config).await.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse if !unix => anyhow!(
                "{error}; another with --listen, --http or --grpc, or port 0 for any, would do"
            ),
            _ => anyhow!("cannot serve: {error}"),
        })?;
        // Whoever has started us may have closed our output: that is no reason not to serve.
        let mut out = io::stdout().lock();
        let _ = tell(&server, &mut out);
        drop(out);
        if rules {
            reload_signal(server.reloader())?;
        }
        server.run(stop).await?;
        Ok(())
    })
}

/// Says where it listens: the face for RESP first, then those that are not switched off.
fn tell(server: &Server, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "listening on {}", server.local_addr()?)?;
    for (name, address) in [("http", server.http_addr()), ("grpc", server.grpc_addr())] {
        if let Some(address) = address {
            writeln!(out, "{name} on {address}")?;
        }
    }
    out.flush()
}

/// Is ready when the process is asked to stop. From now on it is not simply ended.
#[cfg(unix)]
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Reads the rules again whenever the process is told to (`SIGHUP`).
#[cfg(unix)]
fn reload_signal(reloader: Reloader) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            // What is wrong is logged.
            let _ = reloader.reload().await;
        }
    });
    Ok(())
}

/// There is no such signal.
#[cfg(not(unix))]
fn reload_signal(_: Reloader) -> io::Result<()> {
    Ok(())
}

/// Is ready when the process is asked to stop.
#[cfg(not(unix))]
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}
