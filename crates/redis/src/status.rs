//! Versions, functions and problems of a store.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use redis::{Cmd, Value, from_redis_value, from_redis_value_ref};
use sluicegate_core::{Operation, StoreError};

use crate::{
    PlannedOperation, PlannedPolicy,
    inner::Inner,
    native,
    net::{
        node_connection::{Deadline, NodeConnection},
        topology::Topology,
    },
    script::Library,
};

/// Maximum time of one command.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// The key that is taken from, as a test. It is reset immediately.
const STATUS_KEY: &[u8] = b"sg:test:status";

/// The nodes of a store, and their problems.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Every server: one, or the primaries of a cluster.
    pub servers: Vec<ServerStatus>,
    /// Problems of the store as a whole.
    pub problems: Vec<StoreProblem>,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStatus {
    /// Its address.
    pub endpoint: String,
    /// `Redis` or `Valkey`, and its version.
    pub engine: String,
    /// The version of the library of functions that is installed, where it can be read.
    pub library: Option<String>,
    /// Whether the library is installed; `None` where the user lacks the permission to check.
    pub functions: Option<bool>,
    /// Whether it has the module, which the client then uses instead of scripts.
    pub module: bool,
    /// Checks that failed, and why. They are no problems: a user needs no permission for them.
    pub notes: Vec<String>,
    /// Its problems.
    pub problems: Vec<StoreProblem>,
}

/// A problem, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreProblem {
    /// The problem.
    pub what: String,
    /// The remedy.
    pub remedy: String,
}

impl fmt::Display for StoreProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; {}", self.what, self.remedy)
    }
}

impl Status {
    /// All problems, including those of single servers.
    pub fn problems(&self) -> impl Iterator<Item = &StoreProblem> {
        self.problems.iter().chain(self.servers.iter().flat_map(|server| &server.problems))
    }
}

fn problem(what: impl Into<String>, remedy: impl Into<String>) -> StoreProblem {
    StoreProblem { what: what.into(), remedy: remedy.into() }
}

impl Inner {
    /// The nodes of the store, and their problems. Takes from a key of its own, and resets it.
    ///
    /// # Errors
    /// [`StoreError`] if no server replies.
    pub(crate) async fn inspect(&self) -> Result<Status, StoreError> {
        let nodes = self.topology.all(Deadline::after(STATUS_TIMEOUT)).await?;
        let mut servers = Vec::new();
        for node in &nodes {
            node.command(&redis::cmd("PING"), Deadline::after(STATUS_TIMEOUT)).await?;
            servers.push(server(node).await);
        }
        let mut problems = Vec::new();
        if let (Topology::Cluster(_), Some(node)) = (&self.topology, nodes.first()) {
            problems.extend(cluster(node).await);
        }
        problems.extend(self.cluster_problem().await);
        problems.extend(self.tried().await);
        Ok(Status { servers, problems })
    }

    /// The problem of a URL that names one server, if that is a node of a cluster.
    async fn cluster_problem(&self) -> Option<StoreProblem> {
        let Topology::One(node) = &self.topology else { return None };
        let info = text(node, redis::cmd("CLUSTER").arg("INFO")).await.ok()?;
        let size = info.lines().find_map(|line| line.strip_prefix("cluster_size:"))?;
        let nodes: u32 = size.trim().parse().ok()?;
        (nodes > 1).then(|| {
            let endpoint = &node.endpoint;
            problem(
                format!("{endpoint} is one of {nodes} nodes of a cluster: it decides on its own keys only"),
                "use a URL with redis+cluster://",
            )
        })
    }

    /// The problem of a take, if it fails.
    async fn tried(&self) -> Option<StoreProblem> {
        let policy = PlannedPolicy::new(&"gcra:1000/1s".parse().ok()?);
        let (inner, deadline) = (self, Deadline::after(STATUS_TIMEOUT));
        let key = inner.key(STATUS_KEY).ok()?;
        let planned = |operation| PlannedOperation { key: &key, policy: &policy, operation };
        let error = match inner.decide(planned(Operation::Take(1)), deadline).await {
            Ok(_) => inner.decide(planned(Operation::Reset), deadline).await.err()?,
            Err(error) => error,
        };
        let text = error.to_string();
        Some(problem(
            format!("a take fails: {error}"),
            remedy(&text, &String::from_utf8_lossy(&key)),
        ))
    }

    /// Installs the library of functions on every server, in place of any other version of it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] with the error of the server; [`StoreError::Settings`] for one older than Redis 7.0.
    pub(crate) async fn install(&self) -> Result<(), StoreError> {
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(Library::text());
        self.everywhere(&load).await
    }

    /// Removes the library of functions from every server. Keys stay.
    ///
    /// # Errors
    /// As [`RedisStore::install`], and [`StoreError::Arguments`] if the library is not installed.
    pub(crate) async fn uninstall(&self) -> Result<(), StoreError> {
        let mut delete = redis::cmd("FUNCTION");
        delete.arg("DELETE").arg(Library::NAME);
        self.everywhere(&delete).await
    }

    async fn everywhere(&self, command: &Cmd) -> Result<(), StoreError> {
        for node in self.topology.all(Deadline::after(STATUS_TIMEOUT)).await? {
            text(&node, command).await?;
        }
        Ok(())
    }
}

/// The text of a reply. An error of the server is an error.
async fn text(node: &Arc<NodeConnection>, command: &Cmd) -> Result<String, StoreError> {
    match node.command(command, Deadline::after(STATUS_TIMEOUT)).await? {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(text),
        Value::Okay => Ok("OK".to_owned()),
        Value::ServerError(error) => {
            let (endpoint, details) = (&node.endpoint, error.details().unwrap_or_default());
            // Redis 6 quotes the name in backticks, Redis 7 in apostrophes.
            let unknown = details.strip_prefix("unknown command ");
            if unknown
                .is_some_and(|name| name.trim_start_matches(['\'', '`']).starts_with("FUNCTION"))
            {
                return Err(StoreError::Settings(format!(
                    "{endpoint} has no functions: expected Redis 7.0 or later, or Valkey (a Sluicegate server \
                     needs none)"
                )));
            }
            if details == "Library not found" {
                return Err(StoreError::Arguments(format!(
                    "{endpoint} has no library `{}`: it is not installed, nothing to remove",
                    Library::NAME
                )));
            }
            Err(StoreError::Unavailable(format!("{endpoint}: {} {details}", error.code())))
        }
        other => Err(StoreError::Unavailable(format!("{}: {other:?}", node.endpoint))),
    }
}

/// The remedy for a take that fails.
fn remedy(error: &str, key: &str) -> String {
    const REMEDIES: [(&[&str], &str); 6] = [
        (
            &["NOPERM", "ACL failure", "user executing the script"],
            "run `ACL SETUSER NAME +@connection +evalsha +eval +get +set +del +pttl +pexpire +pexpireat +time`, \
             and for a cluster also `+cluster|slots`",
        ),
        (&["NOAUTH", "WRONGPASS"], "correct the user and the password in the URL"),
        (&["OOM"], "increase `maxmemory`"),
        (&["READONLY"], "use the URL of the primary, or redis+sentinel://"),
        (&["redis+cluster://"], "use such a URL"),
        (&["CLUSTERDOWN"], "start the missing nodes, or assign their slots"),
    ];
    let has = |classes: &[&str]| classes.iter().any(|class| error.contains(class));
    if has(&["one of the keys", "access a key"]) {
        return format!(
            "the take used the key `{key}`: use a prefix that the user may access \
             (`redis status --prefix`, `serve --store-prefix`), or grant its keys with \
             `ACL SETUSER NAME ~PREFIX*`"
        );
    }
    let found = REMEDIES.iter().find(|(classes, _)| has(classes));
    found.map_or("see the log of the node", |(_, remedy)| remedy).to_owned()
}

async fn server(node: &Arc<NodeConnection>) -> ServerStatus {
    let endpoint = node.endpoint.to_string();
    let (mut problems, mut notes) = (Vec::new(), Vec::new());
    let info = match text(node, &redis::cmd("INFO")).await {
        Ok(info) => info,
        Err(error) => {
            let note = "the user may not run INFO (`+info`): maxmemory-policy is not checked";
            match error {
                StoreError::Unavailable(why) if why.contains("NOPERM") => {
                    notes.push(format!("{endpoint}: {note}"));
                }
                error => problems.push(problem(
                    format!("{endpoint} does not answer INFO: {error}"),
                    "see the log of the node",
                )),
            }
            hello(node).await
        }
    };
    let field = |name: &str| {
        let line = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
        info.lines().find_map(line)
    };
    // The others have a version of Redis, too, which they are compatible with.
    let named = [
        ("a Sluicegate server", "sluicegate_version"),
        ("Valkey", "valkey_version"),
        ("Redis", "redis_version"),
    ];
    let engine =
        named.into_iter().find_map(|(name, version)| Some(format!("{name} {}", field(version)?)));
    let engine = engine.unwrap_or_else(|| "unknown".to_owned());
    if field("role").is_some_and(|role| role != "master") {
        problems.push(problem(
            format!("{endpoint} is a replica, which makes no decisions"),
            "use the URL of the primary, or redis+sentinel://",
        ));
    }
    // `volatile-ttl` evicts the keys that expire soonest, which have used the least; the others evict limits
    // that are in use.
    let policy = field("maxmemory_policy").unwrap_or_default();
    let bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
    if !matches!(&*policy, "" | "noeviction") {
        let when = if bounded { "" } else { " (once `maxmemory` is set)" };
        problems.push(problem(
            format!(
                "{endpoint} has maxmemory-policy `{policy}`, which evicts limits that are in use{when}: an \
                 evicted key loses its limit"
            ),
            "run `CONFIG SET maxmemory-policy noeviction`",
        ));
    }
    if field("loading").is_some_and(|loading| loading != "0") {
        problems
            .push(problem(format!("{endpoint} is loading its data"), "wait until it has finished"));
    }
    let (library, functions) = library(node).await;
    if functions.is_none() {
        notes.push(format!(
            "{endpoint}: the user may run neither FUNCTION LIST (`+function|list`) nor FCALL_RO: functions are \
             not checked"
        ));
    }
    if let Some(installed) = library.as_deref().filter(|it| *it != Library::VERSION) {
        problems.push(problem(
            format!(
                "{endpoint} has functions of version {installed}; this program has version {}",
                Library::VERSION
            ),
            "run `sluicegate redis install URL`",
        ));
    }
    let actual = node.command(&native::probe_command(), Deadline::after(STATUS_TIMEOUT)).await;
    let module = actual.is_ok_and(|actual| native::lists_command(&actual));
    ServerStatus { endpoint, engine, library, functions, module, notes, problems }
}

/// Version and role in the format of `INFO`, from the reply to `HELLO`, which every user may send.
async fn hello(node: &Arc<NodeConnection>) -> String {
    let reply = node.command(&redis::cmd("HELLO"), Deadline::after(STATUS_TIMEOUT)).await;
    let fields =
        reply.ok().and_then(|reply| from_redis_value::<HashMap<String, Value>>(reply).ok());
    let field = |name: &str| from_redis_value_ref::<String>(fields.as_ref()?.get(name)?).ok();
    let server = field("server").unwrap_or_else(|| "redis".to_owned());
    let version = field("version").map(|version| format!("{server}_version:{version}\n"));
    let role = field("role").map(|role| format!("role:{role}\n"));
    version.unwrap_or_default() + &role.unwrap_or_default()
}

/// The version of the library, and whether it is installed, as far as the user may check.
async fn library(node: &Arc<NodeConnection>) -> (Option<String>, Option<bool>) {
    let mut list = redis::cmd("FUNCTION");
    list.arg("LIST").arg("LIBRARYNAME").arg(Library::NAME).arg("WITHCODE");
    match node.command(&list, Deadline::after(STATUS_TIMEOUT)).await {
        Ok(Value::ServerError(error)) if error.code() == "NOPERM" => {}
        Ok(reply) => {
            let mut found = None;
            texts(&reply, &mut |text| {
                if let Some(version) = Library::version_of(text) {
                    found = Some(version.to_owned());
                }
            });
            let installed = found.is_some();
            return (found, Some(installed));
        }
        Err(_) => return (None, None),
    }
    // A missing function has another error than one that is called without its key.
    let mut call = redis::cmd("FCALL_RO");
    call.arg(Library::FUNCTIONS[1]).arg(0);
    let installed = match node.command(&call, Deadline::after(STATUS_TIMEOUT)).await {
        Ok(Value::ServerError(error)) => match error.details() {
            _ if error.code() == "NOPERM" => None,
            Some(details) => Some(!details.contains("Function not found")),
            None => None,
        },
        Ok(_) => Some(true),
        Err(_) => None,
    };
    (None, installed)
}

/// Every text in a reply, at any depth, because its shape depends on the protocol.
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

/// The problem of a cluster.
async fn cluster(node: &Arc<NodeConnection>) -> Option<StoreProblem> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("INFO");
    incomplete_cluster(&text(node, &command).await.ok()?)
}

/// The problem of a cluster, by its `CLUSTER INFO`.
fn incomplete_cluster(info: &str) -> Option<StoreProblem> {
    let field = |name: &str| info.lines().find_map(|it| it.strip_prefix(name)).map(str::trim);
    let (state, served) = (field("cluster_state:")?, field("cluster_slots_ok:").unwrap_or("?"));
    match (state, served) {
        ("ok", "16384") => None,
        (state, "16384") => Some(problem(
            format!(
                "the cluster is down (cluster_state:{state}): too few of its nodes reach each other"
            ),
            "wait until the nodes have joined; otherwise see their logs",
        )),
        (_, served) => Some(problem(
            format!("the cluster serves only {served} of 16384 slots"),
            "start the missing nodes, or assign their slots",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_cluster_names_the_cause() {
        for (info, expected) in [
            ("cluster_state:ok\r\ncluster_slots_ok:16384\r\n", None),
            (
                "cluster_state:fail\r\ncluster_slots_ok:16384\r\n",
                Some(
                    "the cluster is down (cluster_state:fail): too few of its nodes reach each other; wait until the \
                     nodes have joined; otherwise see their logs",
                ),
            ),
            (
                "cluster_state:fail\r\ncluster_slots_ok:8001\r\n",
                Some(
                    "the cluster serves only 8001 of 16384 slots; start the missing nodes, or assign their slots",
                ),
            ),
        ] {
            let actual = incomplete_cluster(info).map(|problem| problem.to_string());
            assert_eq!(actual.as_deref(), expected, "{info}");
        }
    }
}
