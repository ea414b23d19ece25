//! `serve`: the server until a signal comes.

mod check;
mod file;
mod http;
mod log;
mod print;
mod settings;
mod store;

use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};

use clap::{ArgMatches, Command, FromArgMatches, parser::ValueSource};
use sluicegate_server::{Reloader, Server};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::log::Log;
pub(crate) use self::settings::Serve;
use crate::{
    output::{output, report},
    usage::{FileSetting, Origins, client_variables, unknown_variables},
};

const SERVE: &str = "serve";

/// The settings of the command line, the environment and the configuration file, in this order of precedence.
pub(crate) fn read(command: &Command) -> anyhow::Result<(ArgMatches, Option<Settings>)> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Only for the path of the file: its settings may correct an error.
    let first = command.clone().ignore_errors(true).try_get_matches_from(&arguments).ok();
    let serve = first.as_ref().and_then(|matches| matches.subcommand_matches(SERVE));
    let path = serve.and_then(|serve| serve.get_one::<PathBuf>("config")).cloned();
    let known = command.find_subcommand(SERVE).map(file::settings_of).unwrap_or_default();
    let (mut whole, mut from_file) = (arguments.clone(), Vec::new());
    if let (Some(serve), Some(path)) = (serve, &path) {
        from_file = file::read(path, &known)?;
        let is_used = |setting: &FileSetting| {
            let source = serve.value_source(&setting.name.replace('-', "_"));
            !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
        };
        from_file.retain(is_used);
        file::check_masks(path, &from_file)?;
        whole.extend(from_file.iter().filter_map(|setting| setting.flag.clone()));
    }
    let file = path.as_deref().map(|path| (path, &*from_file));
    let origins = Origins { command, arguments: &arguments, file };
    let matches = command.clone().try_get_matches_from(whole);
    let matches = matches.map_err(|error| origins.explain(&error))?;
    let Some(serve) = matches.subcommand_matches(SERVE) else {
        unknown_variables(command)
            .iter()
            .for_each(|unknown| report(format_args!("warning: {unknown}")));
        return Ok((matches, None));
    };
    check::check(serve, &origins)?;
    if serve.get_flag("print_config") {
        output().write_all(print::in_force(&known, serve, &origins).as_bytes())?;
        std::process::exit(0);
    }
    let options = Serve::from_arg_matches(serve)?;
    let (log, mut warnings) = (options.log.clone(), unknown_variables(command));
    warnings.extend(client_variables(serve, &origins));
    if serve.get_one::<u32>("lease").is_some_and(|units| *units > 0) && !serve.contains_id("store")
    {
        let text = "--lease has no effect without --store: the state is in this process";
        warnings.push(text.to_owned());
    }
    let config = options.config(&origins)?;
    Ok((matches, Some(Settings { config, log, warnings })))
}

/// A server to start.
#[derive(Debug)]
pub(crate) struct Settings {
    config: sluicegate_server::Config,
    log: Log,
    warnings: Vec<String>,
}

pub(crate) fn serve(settings: Settings) -> anyhow::Result<()> {
    let Settings { config, log, warnings } = settings;
    let _writes_last_lines = log.start(config.telemetry.as_ref());
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    // It only accepts clients: the server has threads of its own to serve them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let stop = stop_signal()?;
        // Before the rules are read, which takes time: it would end the process.
        let (hangup, has_rules) = (hangup_signal()?, !config.rules.is_empty());
        let server = Server::bind(config).await?;
        // The server also runs with a closed standard output.
        let mut out = io::stdout().lock();
        let _ = print_addresses(&server, &mut out);
        drop(out);
        reload_on(hangup, has_rules.then(|| server.reloader()));
        server.run(stop).await?;
        Ok(())
    });
    // A name that is being resolved, which can take many seconds, is not waited for.
    runtime.shutdown_timeout(Duration::from_millis(100));
    served
}

/// Prints the addresses of all listeners, RESP first.
fn print_addresses(server: &Server, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "listening on {}", server.local_addr()?)?;
    for (name, address) in [("http", server.http_addr()), ("grpc", server.grpc_addr())] {
        if let Some(address) = address {
            writeln!(out, "{name} on {address}")?;
        }
    }
    out.flush()
}

/// Completes when the process receives a signal to stop, which no longer ends it at once.
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// `SIGHUP`, which no longer ends the process.
fn hangup_signal() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Reloads the rules, if there are any, on every `SIGHUP`, one that has come already included.
fn reload_on(mut hangup: Signal, reloader: Option<Reloader>) {
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            match &reloader {
                // Errors are logged.
                Some(reloader) => _ = reloader.reload().await,
                None => tracing::info!("SIGHUP is ignored: there are no rules files to reload"),
            }
        }
    });
}
