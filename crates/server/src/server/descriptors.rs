//! The limit on file descriptors: enough for all clients, and a reserve for everything else.
//!
//! A client is a descriptor. Without a reserve, idle clients could prevent snapshots, reloads of rules and
//! health checks. The limit of the process is therefore raised if the system allows it; otherwise fewer
//! clients are served at a time.

use crate::{Config, net::clients::RESERVED_CLIENTS};

/// Descriptors for files, and for the start of workers.
const RESERVED: u64 = 24;
/// Descriptors of each worker, to wait for events.
const PER_WORKER: u64 = 4;
/// Descriptors for connections to a store.
const STORE: u64 = 16;

/// Raises the limit on descriptors for the clients that `config` allows and for the reserve, as far as the system
/// lets us. Returns how many clients may be served at a time.
#[cfg(unix)]
pub(crate) fn prepare(config: &Config, workers: usize) -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let reserved = reserved(config, workers, open_now());
    let limit = getrlimit(Resource::Nofile);
    let wanted = reserved.saturating_add(u64::try_from(config.max_clients).unwrap_or(u64::MAX));
    let mut may_open = limit.current.unwrap_or(u64::MAX);
    if may_open < wanted {
        let mut raised = limit;
        raised.current = Some(wanted.min(limit.maximum.unwrap_or(u64::MAX)));
        if setrlimit(Resource::Nofile, raised).is_ok() {
            may_open = raised.current.unwrap_or(may_open);
        }
    }
    let clients = usize::try_from(may_open.saturating_sub(reserved)).unwrap_or(usize::MAX).max(1);
    if clients < config.max_clients {
        let wanted_clients = config.max_clients;
        tracing::warn!(
            "lowered --max-clients from {wanted_clients} to {clients}: the process may open {may_open} files and \
             reserves {reserved} of them; raise the limit to {wanted} (`ulimit -n`, LimitNOFILE)"
        );
    }
    clients.min(config.max_clients)
}

/// Other systems have no such limit.
#[cfg(not(unix))]
pub(crate) fn prepare(config: &Config, _workers: usize) -> usize {
    config.max_clients
}

/// Descriptors that are not for clients, given the ones that are already open.
fn reserved(config: &Config, workers: usize, open: u64) -> u64 {
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let store = if config.store.is_some() { STORE } else { 0 };
    let workers = count(workers).saturating_mul(PER_WORKER);
    (open + RESERVED + store).saturating_add(count(RESERVED_CLIENTS)).saturating_add(workers)
}

/// The number of open descriptors, or an estimate if the system does not provide it.
fn open_now() -> u64 {
    let open = std::fs::read_dir("/proc/self/fd").map_or(16, Iterator::count);
    u64::try_from(open).unwrap_or(u64::MAX)
}
