//! Measures the store and the server beside other rate limiters, in one run, and prints the ratios with the
//! bars that they must reach.
//!
//! All subjects run alternately, round by round, because the speed of a machine changes during a run; a figure is the
//! median of its rounds. `memory` measures the store in this process, `resp` servers that it starts.

#[cfg(target_os = "linux")]
mod clock;
#[cfg(target_os = "linux")]
mod dashboard;
#[cfg(target_os = "linux")]
mod denials;
#[cfg(target_os = "linux")]
mod fleet;
#[cfg(target_os = "linux")]
mod grpc;
#[cfg(target_os = "linux")]
mod holds;
#[cfg(target_os = "linux")]
mod http;
#[cfg(target_os = "linux")]
mod keys;
#[cfg(target_os = "linux")]
mod load;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod module;
#[cfg(target_os = "linux")]
mod others;
#[cfg(target_os = "linux")]
mod ours;
#[cfg(target_os = "linux")]
mod pin;
#[cfg(target_os = "linux")]
mod quota;
#[cfg(target_os = "linux")]
mod redis;
#[cfg(target_os = "linux")]
mod replay;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod resp;
#[cfg(target_os = "linux")]
mod tower;

use std::{env, io, process::ExitCode};

const HELP: &str = "\
sluicegate-bench WHAT [--quick]

  memory   the store in this process, compared with governor, throttlecrab and a plain map
  resp     the server over TCP, compared with Redis with redis-cell, throttlecrab-server and a baseline
           server without limits
  http     the server over HTTP/1.1, compared with a hyper server that only echoes, and throttlecrab-server;
           also runs `grpc` and `tower`
  grpc     the rate limit service of Envoy, compared with one of tonic that only echoes
  dashboard  the server with 64 viewers of its dashboard, compared with no viewers
  denials  the server with a denial log, compared with none, at one denial in ten
  redis    the store on Redis and Valkey, compared with the scripts of throttled-py and limits
  module   the module in Redis and Valkey, compared with redis-cell, SET and our scripts
  fleet    eight servers on one Redis that lease units, compared with asking each time and an eighth each
  holds    holds and settles, compared with takes
  quota    one limit that three Envoys divide by the quota service
  tower    the Tower middleware in memory, compared with tower_governor
  replay   an access log through `sluicegate simulate`, compared with GoAccess
  all      all of them

With --quick all sizes are tiny and the servers run in this process. This checks that the benchmarks
work; the figures are not meaningful.

Commands that benchmarks start:
  grow SUBJECT KEYS   one store, from empty to KEYS keys
  echo ADDRESS        the server that only echoes, over HTTP/1.1
  quota-serve GRPC HTTP STORE RULES   the server, on these ports, with its state in STORE
  grpc-echo ADDRESS   the rate limit service that only echoes
  tower-hold          a hold by the layer of tower, in a process of its own
  baseline [ADDRESS]  the baseline server, by default on a free port";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluicegate-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
fn run(arguments: &[&str]) -> io::Result<()> {
    let (what, quick) = match arguments {
        ["grow", subject, keys] => return memory::grow_one(subject, keys),
        ["echo", address] => return http::serve_echo(address),
        ["baseline"] => return resp::serve_baseline(None),
        ["baseline", address] => return resp::serve_baseline(Some(address)),
        ["grpc-echo", address] => return grpc::serve_echo(address),
        ["quota-serve", grpc, http, store, rules] => {
            return quota::serve(grpc, http, store, rules);
        }
        ["tower-hold"] => return tower::hold_one(false),
        ["tower-hold", "--quick"] => return tower::hold_one(true),
        [what] => (*what, false),
        [what, "--quick"] => (*what, true),
        _ => ("", false),
    };
    let runs: &[fn(bool) -> io::Result<()>] = match what {
        "memory" => &[memory::run],
        "resp" => &[resp::run],
        "http" => &[http::run, grpc::run, tower::run],
        "grpc" => &[grpc::run],
        "dashboard" => &[dashboard::run],
        "denials" => &[denials::run],
        "redis" => &[redis::run],
        "module" => &[module::run],
        "fleet" => &[fleet::run],
        "holds" => &[holds::run],
        "quota" => &[quota::run],
        "tower" => &[tower::run],
        "replay" => &[replay::run],
        "all" => &[
            memory::run,
            resp::run,
            http::run,
            grpc::run,
            dashboard::run,
            denials::run,
            redis::run,
            module::run,
            fleet::run,
            holds::run,
            tower::run,
            replay::run,
        ],
        _ => {
            println!("{HELP}");
            return Ok(());
        }
    };
    let all = pin::cores()?;
    for run in runs {
        run(quick)?;
        // A benchmark may have pinned this thread to a core.
        pin::pin(&all)?;
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn run(_: &[&str]) -> io::Result<()> {
    Err(io::Error::other(format!("this needs Linux: it pins to cores and reads /proc\n\n{HELP}")))
}
