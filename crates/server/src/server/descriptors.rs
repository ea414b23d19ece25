//! File descriptors: as many as clients may need, and some that clients never get.
//!
//! A client is a descriptor. Were there too few, idle clients could keep out snapshots, changed rules and
//! health checks: so the limit of the process is raised where the system allows it, and otherwise fewer
//! clients are served at a time.

use crate::{Config, net::clients::RESERVED_CLIENTS};

/// What is kept for files, the store and what the workers need to start.
const RESERVED: u64 = 24;
/// What each worker needs to wait for events.
const PER_WORKER: u64 = 4;
/// What is kept for connections to a store elsewhere.
const STORE: u64 = 16;

/// Sees to it that there are descriptors for the clients that `config` allows, as far as the system lets
/// us, and for all else. How many clients may be served at a time.
#[cfg(unix)]
pub(crate) fn prepare(config: &Config, workers: usize) -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let kept = kept(config, workers, open_now());
    let limit = getrlimit(Resource::Nofile);
    let wanted = kept.saturating_add(u64::try_from(config.max_clients).unwrap_or(u64::MAX));
    let mut may_open = limit.current.unwrap_or(u64::MAX);
    if may_open < wanted {
        let mut raised = limit;
        raised.current = Some(wanted.min(limit.maximum.unwrap_or(u64::MAX)));
        if setrlimit(Resource::Nofile, raised).is_ok() {
            may_open = raised.current.unwrap_or(may_open);
        }
    }
    let clients = usize::try_from(may_open.saturating_sub(kept)).unwrap_or(usize::MAX).max(1);
    if clients < config.max_clients {
        let wanted_clients = config.max_clients;
        tracing::warn!(
            "lowered --max-clients from {wanted_clients} to {clients}: the process may open {may_open} files and \
             reserves {kept} of them; raise the limit to {wanted} (`ulimit -n`, LimitNOFILE)"
        );
    }
    clients.min(config.max_clients)
}

/// Elsewhere the system has no such limit.
#[cfg(not(unix))]
pub(crate) fn prepare(config: &Config, _workers: usize) -> usize {
    config.max_clients
}

/// Descriptors that are not for clients, where so many are open already.
fn kept(config: &Config, workers: usize, open: u64) -> u64 {
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let store = if config.store.is_some() { STORE } else { 0 };
    let workers = count(workers).saturating_mul(PER_WORKER);
    (open + RESERVED + store).saturating_add(count(RESERVED_CLIENTS)).saturating_add(workers)
}

/// How many descriptors the process has open, as far as the system tells.
fn open_now() -> u64 {
    let open = std::fs::read_dir("/proc/self/fd").map_or(16, Iterator::count);
    u64::try_from(open).unwrap_or(u64::MAX)
}
