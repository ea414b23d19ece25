//! `redis install`, `status` and `uninstall`: the functions on a Redis or Valkey, and its problems.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use sluicegate_redis::{Options, RedisStore, ServerStatus, Status};

use crate::{
    arguments::{self, Redis, Url},
    output::{FAILED, output},
    usage::MASKED,
};

pub(crate) fn run(command: &Redis) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let out = &mut output();
        match command {
            Redis::Install(at) => {
                let store = store(at, "")?;
                store.install().await?;
                let servers = store.inspect().await?.servers;
                for server in &servers {
                    writeln!(out, "{}: installed {}", server.endpoint, functions(server))?;
                }
                if let Some(server) = servers.first() {
                    let redis_cli = redis_cli(&at.url, &server.endpoint);
                    let call = "FCALL sg_take 1 user123 gcra:30/60s:burst=16 1";
                    writeln!(out, "try: {redis_cli} {call}")?;
                }
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

/// `redis-cli` with the options that connect it to the store at `url`, the password masked. Of a cluster and of sentinels,
/// it connects to the node at `endpoint`.
fn redis_cli(url: &str, endpoint: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    let (scheme, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
    let scheme = if scheme.ends_with('s') && scheme != "redis" { "rediss" } else { "redis" };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let user = match login.split_once(':') {
        // `redis-cli` takes an empty name for that of a user.
        Some(("", _)) | None => "default",
        Some((user, _)) => user,
    };
    if endpoint.starts_with('/') {
        let login =
            if login.is_empty() { String::new() } else { format!(" --user {user} -a {MASKED}") };
        let database = path.split_once("?db=").map_or("0", |(_, database)| database);
        return format!("redis-cli -s {endpoint}{login} -n {database}");
    }
    let login = if login.is_empty() { String::new() } else { format!("{user}:{MASKED}@") };
    match kind {
        "" => format!("redis-cli -u {scheme}://{login}{host}{path}"),
        "cluster" => format!("redis-cli -c -u {scheme}://{login}{endpoint}"),
        _ => format!("redis-cli -u {scheme}://{login}{endpoint}"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_cli_connects_to_the_store_without_its_password() {
        for (url, endpoint, expected) in [
            ("redis://127.0.0.1:16379", "127.0.0.1:16379", "-u redis://127.0.0.1:16379"),
            ("redis://h/3", "h:6379", "-u redis://h/3"),
            ("redis://u:pw@h:1/3", "h:1", "-u redis://u:********@h:1/3"),
            ("redis://:pw@h", "h:6379", "-u redis://default:********@h"),
            ("valkeys://:p@w@h", "h:6379", "-u rediss://default:********@h"),
            ("valkey://h", "h:6379", "-u redis://h"),
            ("rediss+cluster://u:pw@a,b", "c:7000", "-c -u rediss://u:********@c:7000"),
            ("redis+sentinel://:pw@a,b/main/2", "c:7000", "-u redis://default:********@c:7000"),
            ("redis://pw@h", "h:6379", "-u redis://default:********@h"),
            ("unix:///run/r.sock", "/run/r.sock", "-s /run/r.sock -n 0"),
            ("unix://:pw@/r.sock?db=3", "/r.sock", "-s /r.sock --user default -a ******** -n 3"),
        ] {
            assert_eq!(redis_cli(url, endpoint), format!("redis-cli {expected}"), "{url}");
        }
    }
}
