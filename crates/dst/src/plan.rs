//! The plan of a run: the processes, policies and keys, and the steps at set times. A plan is made from a seed
//! (`generate`), or read from a script (`script`).

use std::time::Duration;

use anyhow::{Context as _, Result};
use sluicegate_core::{OnError, Operation, PreparedPolicy};
use sluicegate_memory::WhenFull;

use crate::server::ServerPlan;

/// A run, except for the choices that its seed makes while it runs: delays of the network, clocks and jitter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// Processes that share the server.
    pub(crate) processes: usize,
    /// How long a process repeats a denial from its cache, in milliseconds.
    pub(crate) denial_cache: u64,
    /// A cluster instead of the server that the processes share.
    pub(crate) cluster: Option<ClusterPlan>,
    /// A table in memory instead of the processes and their server.
    pub(crate) table: Option<TablePlan>,
    /// A server of Sluicegate instead of the processes, which are then its clients.
    pub(crate) server: Option<ServerPlan>,
    pub(crate) keys: Vec<KeyPlan>,
    /// In the order of their times.
    pub(crate) steps: Vec<Step>,
}

impl Plan {
    /// Whether processes share a server of Redis.
    pub(crate) const fn has_processes(&self) -> bool {
        self.table.is_none() && self.server.is_none()
    }
}

/// A cluster, with a replica for each shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClusterPlan {
    pub(crate) shards: usize,
    /// The hash tags that the names of keys have in turn; 0: none.
    pub(crate) tags: usize,
    /// Whether no key is served while a shard has no primary.
    pub(crate) needs_all: bool,
}

impl ClusterPlan {
    /// Primaries and replicas.
    pub(crate) const fn nodes(&self) -> usize {
        2 * self.shards
    }
}

/// A table in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TablePlan {
    pub(crate) max_bytes: usize,
    pub(crate) when_full: WhenFull,
}

/// The policies of a key, of which the first is used at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyPlan(pub(crate) Vec<PolicyPlan>);

/// A policy with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyPlan {
    pub(crate) policy: String,
    /// Units of a lease; 0 and 1 mean no lease.
    pub(crate) lease: u32,
    pub(crate) on_error: OnError,
}

impl PolicyPlan {
    /// The policy with its settings.
    pub(crate) fn prepare(&self) -> Result<PreparedPolicy> {
        let policy: PreparedPolicy =
            self.policy.parse().with_context(|| format!("invalid policy `{}`", self.policy))?;
        Ok(policy.lease(self.lease)?.on_error(self.on_error))
    }
}

/// An action at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// In milliseconds since the start.
    pub(crate) at: u64,
    /// The process that it concerns; any, for a fault of the server.
    pub(crate) process: usize,
    pub(crate) action: Action,
}

/// The action of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Operations on keys, in one call if there are several.
    Request(Vec<(usize, Request)>),
    /// Takes, peeks or holds of several keys, all or none, which differ only in their cost. If `timeout` is more than 0, they
    /// may wait for that many milliseconds at the server.
    All { requests: Vec<(usize, Request)>, timeout: u64 },
    /// A take or a hold that may wait for up to `timeout` milliseconds: at the server, or in the library of its process.
    Wait { key: usize, request: Request, timeout: u64 },
    /// A permit of the library.
    Permit(PermitPlan),
    /// Adds `count` items to the shaper that the process has for a key.
    Push { key: usize, count: usize },
    /// Takes `cost` units from `key` by `count` commands, which a client of a server sends at once.
    Pipeline { key: usize, cost: u32, count: usize },
    /// The process uses another policy for a key from now on. A server of Sluicegate reloads its rules.
    UsePolicy { key: usize, policy: usize },
    /// The server of Sluicegate reloads rules that change nothing.
    Reload(ReloadedRules),
    /// Takes from `count` keys that no step has named, under the policy of `key`.
    Flood { key: usize, count: usize },
    /// Takes from `count` keys of a flood, from the one with the number `first` on.
    Revisit { flood: usize, first: usize, count: usize },
    /// Something goes wrong, for `span` milliseconds.
    Fault { kind: FaultKind, span: u64, amount: i64 },
    /// The same to one node of a cluster, or between it and a process.
    NodeFault { node: usize, kind: FaultKind, span: u64, amount: i64 },
}

/// Rules that change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadedRules {
    /// Those in force.
    Same,
    /// The first error is found late, after policies that have changed.
    Invalid,
}

/// A permit of the library: its units and its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitPlan {
    pub(crate) key: usize,
    pub(crate) cost: u32,
    /// Its lifetime, how long its client waits for it, and how long the client keeps it, in milliseconds.
    pub(crate) ttl: u64,
    pub(crate) timeout: u64,
    pub(crate) kept: u64,
    pub(crate) end: PermitEnd,
    /// Whether it is renewed while it is kept.
    pub(crate) is_kept_alive: bool,
}

/// How a permit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitEnd {
    /// It is settled for this many units.
    Settled(u32),
    Dropped,
    /// The request for it is dropped after this many milliseconds, if it has no answer by then.
    Cancelled(u64),
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Requests of a process are held back.
    CutRequests,
    /// Replies to a process are held back.
    CutReplies,
    /// Both.
    Cut,
    /// The connections of a process end.
    ResetLink,
    /// The connections of a process vanish, and neither end notices it.
    LoseLink,
    /// Everything between a process and the server takes `amount` milliseconds longer.
    SlowLink,
    /// The server does not run.
    PauseServer,
    /// The server ends, and starts again without the writes of the last `amount` milliseconds.
    RestartServer,
    /// A replica takes over, without the writes of the last `amount` milliseconds.
    FailOver,
    /// The primary of a shard ends for `span`. After half of it, at most half a second, its replica takes over, without the writes of the
    /// last `amount` milliseconds.
    LosePrimary,
    /// The slot of the key `amount` moves to the shard of a node, key by key.
    MigrateSlot,
    /// A node of a cluster gets no change of the slots.
    StaleMap,
    /// The next script runs for `span` milliseconds. After `amount`, if it is not zero, the server replies that it is busy.
    SlowScript,
    /// The server drops its scripts.
    FlushScripts,
    /// The server accepts no writes.
    ReadOnly,
    /// The server has no memory for writes.
    OutOfMemory,
    /// The clock of the server is set forward by `amount` milliseconds, or back.
    StepClock,
    /// The clock of a server stands still, and goes on from there.
    StopClock,
    /// A process does not run.
    PauseProcess,
    /// A process ends, and another one replaces it.
    RestartProcess,
    /// The same, but it returns its leases first.
    CloseProcess,
    /// The table is saved to its file, while the next `amount` steps are taken.
    Save,
    /// The disk is full after `amount` KiB of the next file.
    FillDisk,
    /// The operation of the disk after `amount` others fails.
    FailDisk,
    /// The power fails instead of the operation of the disk after `amount` others; 0: now. Bytes that were not synced
    /// are lost in part.
    FailPower,
    /// The process ends, and starts again from the last file. The bound of its table is now `amount` KiB; 0: as before.
    Crash,
    /// The same, but it saves its table first.
    Stop,
    /// The same as a crash, but the file is cut by `amount` bytes, or one of its bits has changed if that is 0.
    Damage,
}

impl FaultKind {
    /// All of them, with their names in scripts.
    pub(crate) const ALL: [(Self, &str); 28] = [
        (Self::CutRequests, "cut-requests"),
        (Self::CutReplies, "cut-replies"),
        (Self::Cut, "cut"),
        (Self::ResetLink, "reset-link"),
        (Self::LoseLink, "lose-link"),
        (Self::SlowLink, "slow-link"),
        (Self::PauseServer, "pause-server"),
        (Self::RestartServer, "restart-server"),
        (Self::FailOver, "fail-over"),
        (Self::LosePrimary, "lose-primary"),
        (Self::MigrateSlot, "migrate-slot"),
        (Self::StaleMap, "stale-map"),
        (Self::SlowScript, "slow-script"),
        (Self::FlushScripts, "flush-scripts"),
        (Self::ReadOnly, "read-only"),
        (Self::OutOfMemory, "out-of-memory"),
        (Self::StepClock, "step-clock"),
        (Self::StopClock, "stop-clock"),
        (Self::PauseProcess, "pause-process"),
        (Self::RestartProcess, "restart-process"),
        (Self::CloseProcess, "close-process"),
        (Self::Save, "save"),
        (Self::FillDisk, "fill-disk"),
        (Self::FailDisk, "fail-disk"),
        (Self::FailPower, "fail-power"),
        (Self::Crash, "crash"),
        (Self::Stop, "stop"),
        (Self::Damage, "damage"),
    ];

    /// Whether it happens to a table in memory.
    pub(crate) const fn is_of_table(self) -> bool {
        matches!(
            self,
            Self::StepClock
                | Self::Save
                | Self::FillDisk
                | Self::FailDisk
                | Self::FailPower
                | Self::Crash
                | Self::Stop
                | Self::Damage
        )
    }

    /// Whether it happens to processes and their server.
    pub(crate) const fn is_of_processes(self) -> bool {
        matches!(self, Self::StepClock) || !self.is_of_table() && !self.is_of_cluster()
    }

    /// Whether it happens only to nodes of clusters.
    pub(crate) const fn is_of_cluster(self) -> bool {
        matches!(self, Self::LosePrimary | Self::MigrateSlot | Self::StaleMap)
    }

    /// Whether it happens to one node of a cluster, or between a process and it.
    pub(crate) const fn is_of_node(self) -> bool {
        let is_of_process =
            matches!(self, Self::PauseProcess | Self::RestartProcess | Self::CloseProcess);
        self.is_of_cluster() || self.is_of_processes() && !is_of_process
    }

    /// Whether it happens to a client of a server of Sluicegate: a client that is paused does not read, one that closes connects
    /// again for its next request.
    pub(crate) const fn is_of_client(self) -> bool {
        matches!(
            self,
            Self::CutRequests
                | Self::CutReplies
                | Self::Cut
                | Self::ResetLink
                | Self::LoseLink
                | Self::SlowLink
                | Self::PauseProcess
                | Self::CloseProcess
        )
    }

    /// Whether answers may be fallbacks while it lasts, and a while after it.
    pub(crate) const fn disturbs(self) -> bool {
        // A slow script begins later, and a primary is replaced before it is back.
        !matches!(
            self,
            Self::FlushScripts
                | Self::StepClock
                | Self::StopClock
                | Self::MigrateSlot
                | Self::StaleMap
                | Self::LosePrimary
                | Self::SlowScript
        )
    }
}

/// An operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Take(u32),
    Peek(u32),
    Charge(u32),
    Refund(u32),
    /// With the longest wait in milliseconds.
    Reserve(u32, u64),
    Reset,
    /// The number of the hold, its units, its lifetime in milliseconds.
    Hold(u64, u32, u64),
    /// The number of the hold, and the units used.
    Settle(u64, Option<u32>),
    /// The number of the hold, its lifetime in milliseconds.
    Renew(u64, u64),
}

impl Request {
    /// Whether it is an operation on a hold.
    pub(crate) const fn is_on_hold(self) -> bool {
        matches!(self, Self::Hold(..) | Self::Settle(..) | Self::Renew(..))
    }

    /// Its units; 0 if it names none.
    pub(crate) fn cost(self) -> u32 {
        self.operation(&[]).cost()
    }

    /// The same take, peek or hold of this many units.
    pub(crate) fn with_cost(self, cost: u32) -> Self {
        match self {
            Self::Take(_) => Self::Take(cost),
            Self::Peek(_) => Self::Peek(cost),
            Self::Hold(id, _, ttl) => Self::Hold(id, cost, ttl),
            other => other,
        }
    }

    /// The id of its hold; empty for other operations.
    pub(crate) fn hold_id(self) -> Vec<u8> {
        match self {
            Self::Hold(id, ..) | Self::Settle(id, _) | Self::Renew(id, _) => {
                format!("hold{id}").into_bytes()
            }
            _ => Vec::new(),
        }
    }

    /// The operation, with that id.
    pub(crate) const fn operation(self, id: &[u8]) -> Operation<'_> {
        match self {
            Self::Take(cost) => Operation::Take(cost),
            Self::Peek(cost) => Operation::Peek(cost),
            Self::Charge(cost) => Operation::Charge(cost),
            Self::Refund(cost) => Operation::Refund(cost),
            Self::Reserve(cost, wait) => {
                Operation::Reserve { cost, max_wait: Duration::from_millis(wait) }
            }
            Self::Reset => Operation::Reset,
            Self::Hold(_, cost, ttl) => {
                Operation::Hold { id, cost, ttl: Some(Duration::from_millis(ttl)) }
            }
            Self::Settle(_, used) => Operation::Settle { id, used },
            Self::Renew(_, ttl) => Operation::Renew { id, ttl: Some(Duration::from_millis(ttl)) },
        }
    }
}
