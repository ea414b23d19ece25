//! `redis install`, `status` and `uninstall`: the functions on a Redis or Valkey, and its problems.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use sluicegate_redis::{Options, RedisStore, ServerStatus, Status};

use crate::{
    arguments::{self, Redis, Url},
    exit_status::FAILED,
    output::output,
};

pub(crate) fn run(command: &Redis) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let out = &mut output();
        match command {
            Redis::Install(at) => {
                let store = store(at, "")?;
                store.install().await?;
                for server in store.inspect().await?.servers {
                    writeln!(out, "{}: installed {}", server.endpoint, functions(&server))?;
                }
                writeln!(out, "try: redis-cli FCALL sg_take 1 user123 gcra:30/60s:burst=16 1")?;
                Ok(ExitCode::SUCCESS)
            }
            Redis::Uninstall(at) => {
                store(at, "")?.uninstall().await?;
                writeln!(out, "functions removed; keys stay until their limits have recovered")?;
                Ok(ExitCode::SUCCESS)
            }
            Redis::Status(arguments::Status { at, prefix }) => {
                let status = store(at, prefix)?.inspect().await?;
                print(&status, out)?;
                let fine = status.problems().next().is_none();
                Ok(if fine { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
            }
        }
    })
}

fn store(at: &Url, prefix: &str) -> anyhow::Result<RedisStore> {
    let mut options = Options::default();
    options.prefix = prefix.as_bytes().to_vec();
    Ok(RedisStore::new(&at.url, options)?)
}

fn print(status: &Status, out: &mut impl Write) -> io::Result<()> {
    for server in &status.servers {
        let (functions, module) =
            (functions(server), if server.module { ", the module" } else { "" });
        writeln!(out, "{}: {}, {functions}{module}", server.endpoint, server.engine)?;
    }
    for note in status.servers.iter().flat_map(|server| &server.notes) {
        writeln!(out, "note: {note}")?;
    }
    for problem in status.problems() {
        writeln!(out, "problem: {}\n    fix: {}", problem.what, problem.remedy)?;
    }
    if status.problems().next().is_none() {
        writeln!(out, "no problems found")?;
    }
    Ok(())
}

/// The functions of a node, in words.
fn functions(server: &ServerStatus) -> String {
    match (&server.library, server.functions) {
        (Some(version), _) => format!("functions {version}"),
        (None, Some(true)) => "functions of an unknown version".to_owned(),
        (None, Some(false)) => "no functions".to_owned(),
        (None, None) => "functions unknown".to_owned(),
    }
}
