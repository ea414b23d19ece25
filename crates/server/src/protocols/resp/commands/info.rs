//! `INFO [section ...]`: statistics and status, in lines of `name:value`.

use std::fmt::Write as _;

use sluicegate_commands::Argument;
use sluicegate_core::{NodeHealth, StoreStatus, TableUsage, Timestamp};
use sluicegate_memory::WhenFull;

use super::spec::optional;
use crate::{
    protocols::resp::{
        call::{CallResult, CommandCall, Next, ServerCommand, command},
        session::WORK,
    },
    stats::{Counter, Stats},
};

/// Name of the server.
pub(super) const NAME: &str = "sluicegate";
/// The version of Redis whose clients find here everything that they need. Some clients decide by this number
/// what they may send.
pub(super) const COMPATIBLE: &str = "7.4.0";

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A section: its title, and the function that writes its lines.
type Section = (&'static str, fn(&CommandCall<'_, '_, '_>, &mut String));

const SECTIONS: [Section; 12] = [
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Store", store),
    ("Rules", rules),
    ("Stats", stats),
    ("Workers", workers),
    ("Replication", replication),
    ("Commandstats", command_stats),
    ("Cluster", cluster),
    ("Keyspace", keyspace),
];

pub(super) const INFO: ServerCommand = command(
    "INFO",
    -1,
    &["loading", "stale"],
    &[Argument { multiple: true, ..optional("section") }],
    "Returns statistics and status.",
    run,
)
.of_server()
.with_work(WORK);

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let text = sections(call, call.arguments_after_name());
    call.writer().verbatim(b"txt", text);
    Ok(Next::Go)
}

/// The sections that are `wanted`; all if none is named.
fn sections(call: &CommandCall<'_, '_, '_>, wanted: &[&[u8]]) -> String {
    let all = |word: &&[u8]| {
        ["all", "default", "everything"]
            .iter()
            .any(|name| word.eq_ignore_ascii_case(name.as_bytes()))
    };
    let everything = wanted.is_empty() || wanted.iter().any(all);
    let mut text = String::new();
    for (title, lines) in SECTIONS {
        if everything || wanted.iter().any(|word| word.eq_ignore_ascii_case(title.as_bytes())) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            let _ = write!(text, "# {title}\r\n");
            lines(call, &mut text);
        }
    }
    text
}

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = write!(text, "{name}:{value}\r\n");
}

fn server(call: &CommandCall<'_, '_, '_>, text: &mut String) {
    let shared = call.session.shared;
    line(text, "server_name", NAME);
    line(text, "sluicegate_version", VERSION);
    line(text, "redis_version", COMPATIBLE);
    line(text, "redis_mode", "standalone");
    line(text, "os", std::env::consts::OS);
    line(text, "arch_bits", usize::BITS);
    line(text, "process_id", std::process::id());
    line(text, "tcp_port", shared.address.port());
    line(text, "uptime_in_seconds", shared.decider.clock.uptime().as_secs());
    line(text, "uptime_in_days", shared.decider.clock.uptime().as_secs() / 86_400);
    line(text, "test_clock", if shared.test_clock { "yes" } else { "no" });
}

fn clients(call: &CommandCall<'_, '_, '_>, text: &mut String) {
    let shared = call.session.shared;
    line(text, "connected_clients", shared.clients.len());
    line(text, "maxclients", shared.clients.max);
    line(text, "blocked_clients", shared.decider.queues.waiting());
    line(text, "buffer_bytes", shared.buffers.used());
    line(text, "buffer_max_bytes", shared.buffers.max);
    line(text, "buffer_rejections", shared.buffers.rejected());
}

fn memory(call: &CommandCall<'_, '_, '_>, text: &mut String) {
    let shared = call.session.shared;
    let StoreStatus::Local(usage) = shared.decider.store_status() else {
        return line(text, "bytes", 0);
    };
    line(text, "bytes", usage.bytes);
    line(text, "max_bytes", usage.max_bytes);
    line(text, "table_full", usage.table_full);
    line(
        text,
        "when_full",
        match shared.when_full {
            WhenFull::Deny => "deny",
            WhenFull::Allow => "allow",
        },
    );
}

/// The state is read before clients are accepted, which wait for `loading:0`.
fn persistence(call: &CommandCall<'_, '_, '_>, text: &mut String) {
    let shared = call.session.shared;
    line(text, "loading", 0);
    line(text, "async_loading", 0);
    let status = *shared.snapshots.lock();
    let seconds = |at: Timestamp| at.as_micros() / 1_000_000;
    line(text, "state_file", if shared.has_state_file { "yes" } else { "no" });
    line(text, "snapshots", status.written);
    line(text, "snapshots_failed", status.failed);
    line(text, "last_snapshot_time", status.at.map_or(0, seconds));
    line(text, "last_snapshot_keys", status.keys);
    line(text, "last_snapshot_status", if status.failing { "failed" } else { "ok" });
}

/// The store, and its health.
fn store(call: &CommandCall<'_, '_, '_>, text: &mut String) {
    let shared = call.session.shared;
    let StoreStatus::Remote(status) = shared.decider.store_status() else {
        return line(text, "store", "memory");
    };
    line(text, "store", "redis");
    line(text, "store_on_error", shared.decider.defaults.on_error.as_str());
    let nodes = &status.nodes;
    line(text, "store_servers", nodes.len());
    line(text, "store_connected", nodes.iter().filter(|it| it.connected).count());
    line(text, "store_breaker_open", nodes.iter().filter(|it| it.breaker_open).count());
    for (index, NodeHealth { endpoint, connected, breaker_open }) in nodes.iter().enumerate() {
        let (connected, breaker_open) = (u8::from(*connected), u8::from(*breaker_open));
        let _ = write!(
            text,
            "store_server_{index}:address={endpoint},connected={connected},breaker_open={breaker_open}\r\n"
        );
    }
    for (name, count) in status.counters.iter() {
        line(text, &format!("store_count_{name}"), count);
    }
}

/// The table of a store in this process; empty for a remote store.
fn local(call: &CommandCall<'_, '_, '_>) -> TableUsage {
    match call.session.shared.decider.store_status() {
        StoreStatus::Local(usage) => usage,
        StoreStatus::Remote(_) => TableUsage::default(),
    }
}

/// The active rules, and the last reload of their files.
fn rules(call: &CommandCall<'_, '_, '_>, text: &mut String) {
    let shared = call.session.shared;
    let (version, status) = (shared.decider.rules.current(), shared.decider.rules.status());
    line(text, "rules_version", version.number);
    line(text, "rules", version.rules.rules().len());
    line(text, "rules_reloads", status.reloads);
    line(text, "rules_failed", status.failed);
    line(text, "rules_last_status", if status.problem.is_some() { "failed" } else { "ok" });
}

fn stats(call: &CommandCall<'_, '_, '_>, text: &mut String) {
    let shared = call.session.shared;
    let sum = |count: fn(&Stats) -> &Counter| shared.stats.sum(|stats| count(stats).count());
    let (allowed, denied) = (shared.stats.sum(Stats::allowed), shared.stats.sum(Stats::denied));
    line(text, "total_connections_received", sum(|stats| &stats.connections));
    line(text, "rejected_connections", shared.stats.accepting.rejected.count());
    line(text, "login_failures", sum(|stats| &stats.login_failures));
    line(text, "accept_errors", shared.stats.accepting.errors.count());
    line(text, "tls_failures", sum(|stats| &stats.tls_failures));
    line(text, "closed_idle", sum(|stats| &stats.idle));
    line(text, "closed_slow", sum(|stats| &stats.slow));
    let commands = shared.stats.sum_of_protocol("resp", |stats| stats.requests.count());
    line(text, "total_commands_processed", commands);
    line(text, "total_error_replies", sum(|stats| &stats.errors));
    line(text, "decisions", allowed.saturating_add(denied));
    line(text, "allowed", allowed);
    line(text, "denied", denied);
    if let StoreStatus::Local(usage) = shared.decider.store_status() {
        line(text, "keys", usage.keys);
    }
}

fn workers(call: &CommandCall<'_, '_, '_>, text: &mut String) {
    let shared = call.session.shared;
    line(text, "workers", shared.stats.workers());
    for index in 0..shared.stats.workers() {
        let clients = shared.clients.of_worker(index);
        let commands = shared.stats.find("resp", index).map_or(0, |it| it.requests.count());
        let decisions = shared.stats.sum_of_worker(index, Stats::decisions);
        let _ = write!(
            text,
            "worker_{index}:clients={clients},commands={commands},decisions={decisions}\r\n"
        );
    }
}

fn replication(_: &CommandCall<'_, '_, '_>, text: &mut String) {
    line(text, "role", "master");
    line(text, "connected_slaves", 0);
}

fn command_stats(call: &CommandCall<'_, '_, '_>, text: &mut String) {
    let shared = call.session.shared;
    for (index, spec) in call.table.specs().enumerate() {
        let calls = shared.stats.sum(|stats| stats.calls(index));
        if calls > 0 {
            let name = spec.name.to_ascii_lowercase();
            let _ = write!(text, "cmdstat_{name}:calls={calls}\r\n");
        }
    }
}

fn cluster(_: &CommandCall<'_, '_, '_>, text: &mut String) {
    line(text, "cluster_enabled", 0);
}

fn keyspace(call: &CommandCall<'_, '_, '_>, text: &mut String) {
    let keys = local(call).keys;
    if keys > 0 {
        let _ = write!(text, "db0:keys={keys},expires={keys},avg_ttl=0\r\n");
    }
}
