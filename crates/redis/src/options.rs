//! How a store is to be asked.

use std::{path::PathBuf, time::Duration};

use tokio::runtime::Handle;

use crate::OnError;

/// How a store is to be asked. Start from the default and change what differs.
///
/// ```
/// use std::time::Duration;
/// use sluicegate_redis::Options;
///
/// let mut options = Options::default();
/// assert_eq!(options.deadline, Duration::from_millis(15));
/// options.prefix = b"limits:".to_vec();
/// options.max_denial_cache = Duration::from_millis(200);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// What every key begins with in the store. Default: nothing, the key is the user's bytes.
    pub prefix: Vec<u8>,
    /// How long one decision may take, connecting included; then the rule says what is answered.
    /// Default: 15 ms.
    pub deadline: Duration,
    /// How long the first connection may take to be made, and any later one behind the scenes.
    /// Default: 500 ms.
    pub connect_timeout: Duration,
    /// The longest that a denial is repeated here without asking: what a refund, a reset or a change by
    /// others may be noticed late by. Zero: never. Default: 1 s.
    pub max_denial_cache: Duration,
    /// Most keys of which the last answers are known here. Default: 65 536.
    pub max_known_keys: usize,
    /// Failures in a row after which the circuit breaker of a node opens: the node is not asked until it
    /// answers a probe, every [`PROBE_EVERY`](crate::PROBE_EVERY). It opens at once when no connection can
    /// be made, when the node takes no writes, and when it leaves a probe without an answer. Default: 10.
    pub breaker_failures: u32,
    /// Questions that may be under way to a server at a time; those beyond wait, within their deadline,
    /// and are never sent if it passes. Default: 1024.
    pub max_in_flight: usize,
    /// How long a lease lasts: what is not used of it by then goes back. Default: 1 s.
    pub lease_lifetime: Duration,
    /// Most keys that are leased at a time; those beyond are asked for one by one. Default: 4096.
    pub max_leases: usize,
    /// Bytes that the states of `on_error = local` may take up here. Default: 64 MiB.
    pub max_local_memory: usize,
    /// What TLS needs besides the authorities that the system trusts.
    pub tls: TlsOptions,
    /// How often a server without the module (`docs/module.md`) is asked whether it has it by now,
    /// while questions come; each new connection asks too. `None`: scripts only, module or not. Default:
    /// 10 s.
    pub look_for_module: Option<Duration>,
    /// What most rules answer while the store is unavailable. The log says so when that begins; each
    /// [`Rule`](crate::Rule) has its own. Default: deny.
    pub on_error: OnError,
    /// Where connections live. They end with their runtime, so who asks from several names the one that
    /// lasts. Default: the runtime of whoever asks first.
    pub runtime: Option<Handle>,
}

/// What TLS needs besides the authorities that the system trusts. All files hold PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsOptions {
    /// The authority to trust, and no other. Default: those that the system trusts.
    pub ca: Option<PathBuf>,
    /// The certificate to show to the server, and its private key. Default: none.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: Vec::new(),
            deadline: Duration::from_millis(15),
            connect_timeout: Duration::from_millis(500),
            max_denial_cache: Duration::from_secs(1),
            max_known_keys: 1 << 16,
            breaker_failures: 10,
            max_in_flight: 1024,
            lease_lifetime: Duration::from_secs(1),
            max_leases: 4096,
            max_local_memory: 64 << 20,
            tls: TlsOptions::default(),
            look_for_module: Some(Duration::from_secs(10)),
            on_error: OnError::Deny,
            runtime: None,
        }
    }
}
