//! What is there, and what is wrong with it.

use std::{fmt, time::Duration};

use redis::{Cmd, Value};
use sluicegate_core::Operation;

use crate::{
    RedisStore, Rule, StoreError, native,
    net::{
        link::{Deadline, Link},
        topology::Topology,
    },
    script::Library,
};
use std::sync::Arc;

/// How long one server may take to tell.
const ASKING: Duration = Duration::from_secs(2);
/// What is taken from to see whether one may. It is reset at once.
const KEY: &[u8] = b"sg:test:status";

/// What is there, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Every server: one, or the primaries of a cluster.
    pub servers: Vec<ServerStatus>,
    /// What is wrong with all of it together.
    pub problems: Vec<Problem>,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStatus {
    /// Where it is.
    pub place: String,
    /// `Redis` or `Valkey`, and its version.
    pub engine: String,
    /// The version of the library of functions that is installed, if it says one.
    pub library: Option<String>,
    /// Whether it has the module, which is then used in place of scripts.
    pub module: bool,
    /// What is wrong with it.
    pub problems: Vec<Problem>,
}

/// Something that is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; {}", self.what, self.remedy)
    }
}

impl Status {
    /// Everything that is wrong, that with single servers included.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().chain(self.servers.iter().flat_map(|server| &server.problems))
    }
}

fn problem(what: impl Into<String>, remedy: impl Into<String>) -> Problem {
    Problem { what: what.into(), remedy: remedy.into() }
}

impl RedisStore {
    /// What is there, and what is wrong with it: takes from a key of its own to see.
    ///
    /// # Errors
    /// [`StoreError`] where nothing answers.
    pub async fn status(&self) -> Result<Status, StoreError> {
        let inner = self.inner();
        let links = inner.topology.all(Deadline::after(ASKING)).await?;
        let mut servers = Vec::new();
        for link in &links {
            // Where nothing answers, nothing else can be told.
            link.command(&redis::cmd("PING"), Deadline::after(ASKING)).await?;
            servers.push(server(link).await);
        }
        let mut problems = Vec::new();
        if let (Topology::Cluster(_), Some(link)) = (&inner.topology, links.first()) {
            problems.extend(cluster(link).await);
        }
        problems.extend(self.tried().await);
        Ok(Status { servers, problems })
    }

    /// What goes wrong with a take, if anything does.
    async fn tried(&self) -> Option<Problem> {
        let rule: Rule = "gcra:1000/1s".parse().ok()?;
        let (inner, deadline) = (self.inner(), Deadline::after(ASKING));
        let key = inner.key(KEY);
        let taken = inner.decide(&key, &rule, Operation::Take(1), deadline).await;
        let error = match taken {
            Ok(_) => inner.decide(&key, &rule, Operation::Reset, deadline).await.err()?,
            Err(error) => error,
        };
        let text = error.to_string();
        let remedy = if ["NOPERM", "ACL failure", "user executing the script"]
            .iter()
            .any(|it| text.contains(it))
        {
            "`ACL SETUSER NAME +@connection +evalsha +eval +get +set +del +pttl +pexpire +pexpireat +time \
             +info ~*`, and for a cluster `+cluster|slots +cluster|info`, would do"
        } else if text.contains("NOAUTH") || text.contains("WRONGPASS") {
            "the right user and password in the URL would do"
        } else if text.contains("OOM") {
            "more `maxmemory` would do"
        } else if text.contains("READONLY") {
            "the URL of the primary, or redis+sentinel://, would do"
        } else if text.contains("CLUSTERDOWN") {
            "a cluster of which every slot has a primary would do"
        } else {
            "see the server's log"
        };
        Some(problem(format!("a take fails: {error}"), remedy))
    }

    /// Installs the library of functions on every server, in place of any other version of it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] with what the server says: one older than Redis 7.0 knows no functions.
    pub async fn install(&self) -> Result<(), StoreError> {
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(Library::text());
        self.everywhere(&load).await
    }

    /// Takes the library of functions away from every server. Keys stay.
    ///
    /// # Errors
    /// As [`RedisStore::install`], and where it is not installed.
    pub async fn uninstall(&self) -> Result<(), StoreError> {
        let mut delete = redis::cmd("FUNCTION");
        delete.arg("DELETE").arg(Library::NAME);
        self.everywhere(&delete).await
    }

    async fn everywhere(&self, command: &Cmd) -> Result<(), StoreError> {
        for link in self.inner().topology.all(Deadline::after(ASKING)).await? {
            text(&link, command).await?;
        }
        Ok(())
    }
}

/// What the server answers in words; its own errors as errors.
async fn text(link: &Arc<Link>, command: &Cmd) -> Result<String, StoreError> {
    match link.command(command, Deadline::after(ASKING)).await? {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(text),
        Value::Okay => Ok("OK".to_owned()),
        Value::ServerError(error) => {
            let words = format!("{} {}", error.code(), error.details().unwrap_or_default());
            Err(StoreError::Unavailable(format!("{}: {words}", link.place())))
        }
        other => Err(StoreError::Unavailable(format!("{}: {other:?}", link.place()))),
    }
}

async fn server(link: &Arc<Link>) -> ServerStatus {
    let place = link.place().to_string();
    let mut problems = Vec::new();
    let info = match text(link, &redis::cmd("INFO")).await {
        Ok(info) => info,
        Err(error) => {
            problems.push(problem(
                format!("{place} does not tell about itself: {error}"),
                "`+info` for the user would do, or an answer at all",
            ));
            String::new()
        }
    };
    let field = |name: &str| {
        let line = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
        info.lines().find_map(line)
    };
    let engine = match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "unknown".to_owned(),
    };
    if field("role").is_some_and(|role| role != "master") {
        problems.push(problem(
            format!("{place} is a replica, which decides nothing"),
            "the URL of the primary, or redis+sentinel://, would do",
        ));
    }
    // `volatile-ttl` takes those that end soonest, which are those with the least used; the others take
    // limits that are in use.
    let policy = field("maxmemory_policy").unwrap_or_default();
    let bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
    if !matches!(&*policy, "" | "noeviction") {
        let when = if bounded { "" } else { " (once `maxmemory` is set)" };
        problems.push(problem(
            format!(
                "{place} has maxmemory-policy `{policy}`, which evicts limits that are in use{when}: \
                 whoever is evicted begins anew"
            ),
            "`CONFIG SET maxmemory-policy noeviction` would do",
        ));
    }
    if field("loading").is_some_and(|loading| loading != "0") {
        problems.push(problem(format!("{place} still loads its data"), "to wait would do"));
    }
    let library = library(link).await;
    if let Some(installed) = library.as_deref().filter(|it| *it != Library::VERSION) {
        problems.push(problem(
            format!(
                "{place} has the functions of version {installed}, and this is {}",
                Library::VERSION
            ),
            "`sluicegate redis install URL` would do",
        ));
    }
    let told = link.command(&native::question(), Deadline::after(ASKING)).await;
    let module = told.is_ok_and(|told| native::is_told(&told));
    ServerStatus { place, engine, library, module, problems }
}

/// The version of the library that is installed.
async fn library(link: &Arc<Link>) -> Option<String> {
    let mut list = redis::cmd("FUNCTION");
    list.arg("LIST").arg("LIBRARYNAME").arg(Library::NAME).arg("WITHCODE");
    let reply = link.command(&list, Deadline::after(ASKING)).await.ok()?;
    let mut found = None;
    texts(&reply, &mut |text| {
        if let Some(version) = Library::version_of(text) {
            found = Some(version.to_owned());
        }
    });
    found
}

/// Every text in a reply, however deep: its shape depends on the protocol.
fn texts(value: &Value, each: &mut impl FnMut(&str)) {
    match value {
        Value::BulkString(bytes) => {
            if let Ok(text) = std::str::from_utf8(bytes) {
                each(text);
            }
        }
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => each(text),
        Value::Array(values) | Value::Set(values) => {
            values.iter().for_each(|value| texts(value, each));
        }
        Value::Map(pairs) => pairs.iter().for_each(|(_, value)| texts(value, each)),
        _ => {}
    }
}

/// What is wrong with a cluster.
async fn cluster(link: &Arc<Link>) -> Option<Problem> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("INFO");
    let info = text(link, &command).await.ok()?;
    let field = |name: &str| info.lines().find_map(|it| it.strip_prefix(name)).map(str::trim);
    let served = field("cluster_slots_ok:").unwrap_or("?");
    if field("cluster_state:") == Some("ok") && served == "16384" {
        return None;
    }
    Some(problem(
        format!("the cluster is half up: {served} of 16384 slots are served"),
        "to start the nodes that are missing, or to assign their slots, would do",
    ))
}
