//! Supervises the connection to one server: probes it, opens and closes its circuit breaker, and finds the
//! primary again.
//!
//! A probe is a script that would change a key that does not exist. Only a server that runs scripts and accepts
//! writes runs it; a demoted primary replies to `PING`, and a server without memory to `DEL`. While the breaker is
//! open, the server is probed every [`PROBE_EVERY`]; while it is closed, after a command without reply, and after
//! [`IDLE`] without commands. Therefore an outage starts and ends without commands too.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use redis::{Cmd, RedisResult, Value, aio::MultiplexedConnection};
use sluicegate_core::{StoreError, Timestamp};
use tokio::time::{sleep, timeout};

use super::{
    breaker::PROBE_EVERY,
    context::Endpoint,
    node_connection::{Deadline, NodeConnection, OpenConnection, PROBE_TIMEOUT},
    report::OutageLine,
    url::Kind,
};
use crate::{
    reply::MissingPermission,
    script::{Script, TEST_PREFIX},
    script_command::begin,
};

/// Time without commands after which the server is probed.
const IDLE: Duration = Duration::from_secs(1);
/// Minimum time between two probes.
const SPACING: Duration = Duration::from_millis(20);
/// Time between two queries of the sentinels while their primary accepts no writes.
const RESOLVE_EVERY: Duration = Duration::from_millis(400);
/// Time between two replacements of a connection to a server that accepts no writes, because its address may
/// belong to another server by now.
const REPLACE_EVERY: Duration = Duration::from_secs(2);

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ProbeResult {
    /// The server replies, and accepts writes.
    Works,
    /// It replies, but later than the deadline of a command.
    Slow(Duration),
    /// It replies that it accepts no writes.
    RejectsWrites(String),
    /// The user may not run the commands of a take.
    MayNot(String),
    /// The user may not use the key of the probe, so that writes are unknown.
    Forbidden(String),
    /// No reply, or no connection.
    Fails(String),
}

/// Whether the reply says that the server accepts no writes now, on any key.
pub(crate) fn rejects_writes(reply: &Value) -> bool {
    const CODES: [&str; 10] = [
        "READONLY",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "UNBLOCKED",
        "LOADING",
        "NOREPLICAS",
        "MISCONF",
        "BUSY",
        "OOM",
        "NOAUTH",
    ];
    const IN_SCRIPT: [&str; 5] =
        ["READONLY You", "NOREPLICAS Not", "MISCONF ", "OOM command", "while the cluster is down"];
    let Value::ServerError(error) = reply else { return false };
    if is_about_slot(error.details()) {
        return false;
    }
    // In a script, the error of the server may follow other text.
    CODES.contains(&error.code())
        || error.details().is_some_and(|details| IN_SCRIPT.iter().any(|it| details.contains(it)))
}

/// Whether the server says that it is a replica.
fn is_demoted(error: &redis::ServerError) -> bool {
    error.code() == "READONLY" || error.details().is_some_and(|it| it.contains("READONLY You"))
}

/// Whether a `CLUSTERDOWN` is about the slot of one key.
fn is_about_slot(details: Option<&str>) -> bool {
    details.is_some_and(|details| details.starts_with("Hash slot not served"))
}

impl NodeConnection {
    /// Starts the keeper task, unless it runs.
    pub(super) fn start_keeper(self: &Arc<Self>) {
        if !self.is_kept.swap(true, Ordering::Relaxed) {
            let (node, wake) = (Arc::downgrade(self), Arc::clone(&self.wake));
            let context = Arc::clone(&self.context);
            self.context.spawn(async move {
                let mut keeper = Keeper { node, resolved_at: None };
                let mut pause = IDLE;
                loop {
                    // Returns when it is woken or after the pause.
                    let _ = timeout(context.jitter(pause), wake.notified()).await;
                    let Some(next) = keeper.check_once().await else { return };
                    pause = next;
                    sleep(SPACING).await;
                }
            });
        }
    }

    /// No command can be sent, or gets a reply.
    pub(super) fn unavailable(&self, why: &str) {
        // Another node may have its slots by now, even if no command asks for them.
        self.context.node_unavailable.notify_one();
        if self.breaker.open() {
            self.opened(why);
        } else {
            why.clone_into(&mut self.why.lock());
        }
    }

    /// The breaker was opened.
    pub(super) fn opened(&self, why: &str) {
        why.clone_into(&mut self.why.lock());
        self.context.counts.breaker_opened.one();
        self.wake.notify_one();
        self.log(|report, now| report.change(true, now));
    }

    fn works(&self) {
        if self.breaker.close() | self.permission.unbar() {
            self.log(|report, now| report.change(false, now));
        }
    }

    /// The user may use no key. Every command is still sent, because another key may be allowed.
    fn barred(&self, why: &str) {
        why.clone_into(&mut self.why.lock());
        let was_open = self.breaker.close();
        if self.permission.bar() || was_open {
            self.log(|report, now| report.change(true, now));
        }
        // A command may have been applied since.
        if !self.permission.has_rejections() {
            self.unbarred();
        }
    }

    /// A command was applied, so that the user may use some key.
    pub(super) fn unbarred(&self) {
        if self.permission.unbar() && !self.breaker.is_open() {
            self.log(|report, now| report.change(false, now));
        }
    }

    /// The server gets no more commands, because others hold its slots.
    pub(super) fn retire(&self) {
        if self.breaker.is_open() {
            tracing::info!(node = %self.endpoint, "the node has left the cluster");
        }
    }

    fn log(
        &self,
        line: impl FnOnce(&mut super::report::OutageLog, Timestamp) -> Option<OutageLine>,
    ) {
        let Some(report) = &self.report else { return };
        let line = line(&mut report.lock(), self.context.now());
        let Some(line) = line else { return };
        self.context.log_outage(&self.endpoint, line, &self.why.lock());
    }
}

/// Supervises one connection.
struct Keeper {
    node: Weak<NodeConnection>,
    /// When the primary was searched last, because the server accepts no writes.
    resolved_at: Option<Timestamp>,
}

impl Keeper {
    /// Checks once. Returns the pause until the next check; `None` if the connection is not used any more.
    async fn check_once(&mut self) -> Option<Duration> {
        let node = self.node.upgrade()?;
        let is_open = node.breaker.is_open();
        let is_suspect = node.is_suspect.swap(false, Ordering::Relaxed);
        let has_answered = node.has_answered.swap(false, Ordering::Relaxed);
        if is_open || is_suspect || !has_answered || node.permission.is_barred() {
            let probe = node.probe().await;
            self.follow(&node, is_open, is_suspect, probe).await;
        }
        node.log(|report, now| report.due(now));
        let is_down = node.breaker.is_open() || node.permission.is_barred();
        Some(if is_down { PROBE_EVERY - SPACING } else { IDLE })
    }

    async fn follow(
        &mut self,
        node: &Arc<NodeConnection>,
        is_open: bool,
        is_suspect: bool,
        probe: ProbeResult,
    ) {
        match probe {
            // The user may not use the key of the probe either, which has the same prefix.
            ProbeResult::Forbidden(why) if node.permission.is_in_doubt() => node.barred(&why),
            ProbeResult::Forbidden(_) if is_suspect => {
                node.works();
                self.find_primary(node).await;
            }
            // The user may be allowed the other commands.
            ProbeResult::MayNot(why) if node.permission.is_in_doubt() => node.unavailable(&why),
            ProbeResult::Works | ProbeResult::Forbidden(_) | ProbeResult::MayNot(_) => {
                self.resolved_at = None;
                node.decided();
                node.works();
            }
            // Late commands are counted already.
            ProbeResult::Slow(_) if !is_open => {}
            ProbeResult::Slow(span) => {
                let millis = span.as_millis();
                node.unavailable(&format!("{}: answers after {millis} ms", node.endpoint));
            }
            ProbeResult::RejectsWrites(why) => {
                node.unavailable(&why);
                self.find_primary(node).await;
            }
            ProbeResult::Fails(why) => node.unavailable(&why),
        }
    }

    /// Searches for the primary, at most every [`RESOLVE_EVERY`] or [`REPLACE_EVERY`].
    async fn find_primary(&mut self, node: &Arc<NodeConnection>) {
        let now = node.context.now();
        let is_due = match (&node.endpoint, self.resolved_at) {
            (Endpoint::Primary { .. }, None) => true,
            (Endpoint::Primary { .. }, Some(at)) => now >= at + node.context.jitter(RESOLVE_EVERY),
            // It may be promoted again in a moment.
            (Endpoint::At(_), None) => false,
            (Endpoint::At(_), Some(at)) => now >= at + node.context.jitter(REPLACE_EVERY),
        };
        if !is_due {
            self.resolved_at.get_or_insert(now);
            return;
        }
        self.resolved_at = Some(now);
        if let Endpoint::Primary { sentinels, name } = &node.endpoint {
            let found = timeout(PROBE_TIMEOUT, node.context.primary(sentinels, name)).await;
            let Ok(Ok(address)) = found else { return };
            if node.address().is_some_and(|known| *known == address) {
                return;
            }
        }
        node.replace().await;
    }
}

impl NodeConnection {
    /// Checks whether the server accepts writes.
    async fn probe(self: &Arc<Self>) -> ProbeResult {
        let deadline = Deadline::after(PROBE_TIMEOUT);
        let OpenConnection { mut connection, number, flow, .. } =
            match self.connection(deadline).await {
                Ok(up) => up,
                Err(StoreError::Unavailable(why)) => return ProbeResult::Fails(why),
                Err(error) => return ProbeResult::Fails(error.to_string()),
            };
        let begin = self.context.now();
        let sent = flow.send(1, begin);
        match deadline.within(self.try_write(&mut connection)).await {
            Ok(Ok(reply)) => {
                let now = self.context.now();
                flow.answered(sent, now);
                let span = now.since(begin);
                let why = |error: &redis::ServerError| {
                    let (code, details) = (error.code(), error.details().unwrap_or_default());
                    format!("{}: {code} {details}", self.endpoint)
                };
                match (&reply, MissingPermission::of(&reply)) {
                    (Value::ServerError(error), Some(MissingPermission::Command)) => {
                        ProbeResult::MayNot(why(error))
                    }
                    (Value::ServerError(error), Some(MissingPermission::Key)) => {
                        let key = String::from_utf8_lossy(&self.probe_key()).into_owned();
                        ProbeResult::Forbidden(format!("{} (such as `{key}`)", why(error)))
                    }
                    // Its commands are redirected.
                    (Value::ServerError(error), _) if self.is_in_cluster() && is_demoted(error) => {
                        ProbeResult::Works
                    }
                    (Value::ServerError(error), _) if rejects_writes(&reply) => {
                        ProbeResult::RejectsWrites(why(error))
                    }
                    _ if span > self.context.options.deadline => ProbeResult::Slow(span),
                    _ => ProbeResult::Works,
                }
            }
            // The connection may never return replies again, even if the server recovers.
            _ => {
                let why = format!("{} does not answer", self.endpoint);
                self.lost(Some(number), &why);
                ProbeResult::Fails(why)
            }
        }
    }
}

impl NodeConnection {
    /// Runs the script of the probe, or a command of the module if the user may run no scripts.
    async fn try_write(&self, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
        let key = self.probe_key();
        // A node of a cluster would redirect a script with a key of another node.
        let keys = u8::from(!self.is_in_cluster());
        let call = |whole| -> Cmd {
            let mut call = begin(Script::probe(), whole);
            call.arg(keys).arg(&key);
            call
        };
        let is_unknown = |reply: &Value| matches!(reply, Value::ServerError(error) if error.code() == "NOSCRIPT");
        let mut reply = connection.send_packed_command(&call(false)).await?;
        if is_unknown(&reply) {
            reply = connection.send_packed_command(&call(true)).await?;
        }
        if MissingPermission::of(&reply) == Some(MissingPermission::Command) {
            let mut take = redis::cmd("SG.TAKE");
            take.arg(&key).arg("gcra:1/1s").arg("COST").arg(0);
            let by_module = connection.send_packed_command(&take).await?;
            let is_none = matches!(&by_module, Value::ServerError(error) if error.code() == "ERR");
            if !is_none && MissingPermission::of(&by_module) != Some(MissingPermission::Command) {
                reply = by_module;
            }
        }
        Ok(reply)
    }

    fn probe_key(&self) -> Vec<u8> {
        [&self.context.options.prefix[..], TEST_PREFIX, b"probe"].concat()
    }

    fn is_in_cluster(&self) -> bool {
        self.context.url.kind == Kind::Cluster
    }
}
