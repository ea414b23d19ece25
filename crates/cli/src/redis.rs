//! `redis install`, `status` and `uninstall`: the functions on a Redis or Valkey, and what is wrong with it.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use sluicegate_redis::{Options, RedisStore, Status};

use crate::{
    FAILED,
    arguments::{Redis, Url},
};

pub(crate) fn run(command: &Redis) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let out = &mut io::stdout().lock();
        match command {
            Redis::Install(at) => {
                let store = store(at)?;
                store.install().await?;
                for server in store.status().await?.servers {
                    let version = server.library.unwrap_or_default();
                    writeln!(
                        out,
                        "{}: functions of version {version} are installed",
                        server.place
                    )?;
                }
                writeln!(out, "try: redis-cli FCALL sg_take 1 user123 gcra:30/60s:burst=16 1")?;
                Ok(ExitCode::SUCCESS)
            }
            Redis::Uninstall(at) => {
                store(at)?.uninstall().await?;
                writeln!(out, "the functions are gone; keys stay until they are as if never used")?;
                Ok(ExitCode::SUCCESS)
            }
            Redis::Status(at) => {
                let status = store(at)?.status().await?;
                print(&status, out)?;
                // So that a script can tell.
                let fine = status.problems().next().is_none();
                Ok(if fine { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
            }
        }
    })
}

fn store(at: &Url) -> anyhow::Result<RedisStore> {
    Ok(RedisStore::new(&at.url, Options::default())?)
}

fn print(status: &Status, out: &mut impl Write) -> io::Result<()> {
    for server in &status.servers {
        let library = server
            .library
            .as_ref()
            .map_or("no functions".to_owned(), |version| format!("functions of version {version}"));
        let module = if server.module { ", the module" } else { "" };
        writeln!(out, "{}: {}, {library}{module}", server.place, server.engine)?;
    }
    for problem in status.problems() {
        writeln!(out, "problem: {}\n     do: {}", problem.what, problem.remedy)?;
    }
    if status.problems().next().is_none() {
        writeln!(out, "nothing is wrong")?;
    }
    Ok(())
}
