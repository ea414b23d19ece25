//! What happens in a run: the processes, policies and keys, and the steps that are taken at set times. A plan is made from
//! a seed, or read from a script.

use std::{fmt, str::FromStr};

use anyhow::{Context, Result, bail, ensure};
use sluicegate_core::{OnError, PreparedPolicy};

/// A run, except for what its seed decides while it runs: delays of the network, clocks and jitter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// Processes that share the server.
    pub(crate) processes: usize,
    /// How long a process repeats a denial from its cache, in milliseconds.
    pub(crate) denial_cache: u64,
    pub(crate) keys: Vec<KeyPlan>,
    /// In the order of their times.
    pub(crate) steps: Vec<Step>,
}

/// A key and its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyPlan {
    pub(crate) policy: String,
    /// Units of a lease; 0 and 1 are none.
    pub(crate) lease: u32,
    pub(crate) on_error: OnError,
}

impl KeyPlan {
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
    pub(crate) action: Action,
}

/// What is done at a step. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A process applies an operation to a key.
    Request {
        process: usize,
        key: usize,
        request: Request,
    },
    /// Requests of a process are held back; replies; both.
    CutRequests {
        process: usize,
        span: u64,
    },
    CutReplies {
        process: usize,
        span: u64,
    },
    Cut {
        process: usize,
        span: u64,
    },
    /// The connections of a process end; or vanish, and nobody learns of it.
    ResetLink {
        process: usize,
    },
    LoseLink {
        process: usize,
    },
    /// Everything between a process and the server takes longer.
    Slow {
        process: usize,
        delay: u64,
        span: u64,
    },
    /// The server does not run for a while.
    PauseServer {
        span: u64,
    },
    /// The server ends and starts again, without what it wrote in the last `lost` milliseconds.
    RestartServer {
        span: u64,
        lost: u64,
    },
    /// A replica takes over, without what was written in the last `lost` milliseconds.
    Failover {
        lost: u64,
    },
    /// The server forgets its scripts.
    FlushScripts,
    /// The server accepts no writes.
    ReadOnly {
        span: u64,
    },
    /// The server has no memory for writes.
    OutOfMemory {
        span: u64,
    },
    /// The clock of the server is set.
    StepClock {
        by: i64,
    },
    /// A process does not run for a while.
    PauseProcess {
        process: usize,
        span: u64,
    },
    /// A process ends, and another one starts in its place.
    RestartProcess {
        process: usize,
    },
}

impl Action {
    /// Until when it disturbs the service, counted from its step; `None` if it does not.
    pub(crate) fn disturbs_for(&self) -> Option<u64> {
        match *self {
            Self::Request { .. } | Self::FlushScripts | Self::StepClock { .. } => None,
            Self::CutRequests { span, .. }
            | Self::CutReplies { span, .. }
            | Self::Cut { span, .. }
            | Self::Slow { span, .. }
            | Self::PauseServer { span }
            | Self::RestartServer { span, .. }
            | Self::ReadOnly { span }
            | Self::OutOfMemory { span }
            | Self::PauseProcess { span, .. } => Some(span),
            Self::ResetLink { .. }
            | Self::LoseLink { .. }
            | Self::Failover { .. }
            | Self::RestartProcess { .. } => Some(0),
        }
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
    /// The number of the hold, and what was used.
    Settle(u64, Option<u32>),
    /// The number of the hold, its lifetime in milliseconds.
    Renew(u64, u64),
}

impl fmt::Display for Request {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Take(cost) => write!(formatter, "take {cost}"),
            Self::Peek(cost) => write!(formatter, "peek {cost}"),
            Self::Charge(cost) => write!(formatter, "charge {cost}"),
            Self::Refund(cost) => write!(formatter, "refund {cost}"),
            Self::Reserve(cost, wait) => write!(formatter, "reserve {cost} {wait}"),
            Self::Reset => write!(formatter, "reset"),
            Self::Hold(id, cost, ttl) => write!(formatter, "hold {id} {cost} {ttl}"),
            Self::Settle(id, None) => write!(formatter, "settle {id}"),
            Self::Settle(id, Some(used)) => write!(formatter, "settle {id} {used}"),
            Self::Renew(id, ttl) => write!(formatter, "renew {id} {ttl}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ", self.at)?;
        match &self.action {
            Action::Request { process, key, request } => {
                write!(formatter, "request {process} {key} {request}")
            }
            Action::CutRequests { process, span } => {
                write!(formatter, "cut-requests {process} {span}")
            }
            Action::CutReplies { process, span } => {
                write!(formatter, "cut-replies {process} {span}")
            }
            Action::Cut { process, span } => write!(formatter, "cut {process} {span}"),
            Action::ResetLink { process } => write!(formatter, "reset-link {process}"),
            Action::LoseLink { process } => write!(formatter, "lose-link {process}"),
            Action::Slow { process, delay, span } => {
                write!(formatter, "slow {process} {delay} {span}")
            }
            Action::PauseServer { span } => write!(formatter, "pause-server {span}"),
            Action::RestartServer { span, lost } => {
                write!(formatter, "restart-server {span} {lost}")
            }
            Action::Failover { lost } => write!(formatter, "failover {lost}"),
            Action::FlushScripts => write!(formatter, "flush-scripts"),
            Action::ReadOnly { span } => write!(formatter, "read-only {span}"),
            Action::OutOfMemory { span } => write!(formatter, "out-of-memory {span}"),
            Action::StepClock { by } => write!(formatter, "step-clock {by}"),
            Action::PauseProcess { process, span } => {
                write!(formatter, "pause-process {process} {span}")
            }
            Action::RestartProcess { process } => write!(formatter, "restart-process {process}"),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "seed {}", self.seed)?;
        writeln!(formatter, "processes {}", self.processes)?;
        writeln!(formatter, "denial-cache {}", self.denial_cache)?;
        for KeyPlan { policy, lease, on_error } in &self.keys {
            let share = match on_error {
                OnError::Local(share) => format!("={share}"),
                _ => String::new(),
            };
            writeln!(formatter, "key {policy} {lease} {}{share}", on_error.word())?;
        }
        self.steps.iter().try_for_each(|step| writeln!(formatter, "{step}"))
    }
}

/// The words of a line.
struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Result<&'a str> {
        self.0.next().context("the line ends too early")
    }

    fn number<T: FromStr>(&mut self) -> Result<T> {
        let word = self.word()?;
        word.parse().ok().with_context(|| format!("invalid number `{word}`"))
    }

    fn request(&mut self) -> Result<Request> {
        Ok(match self.word()? {
            "take" => Request::Take(self.number()?),
            "peek" => Request::Peek(self.number()?),
            "charge" => Request::Charge(self.number()?),
            "refund" => Request::Refund(self.number()?),
            "reserve" => Request::Reserve(self.number()?, self.number()?),
            "reset" => Request::Reset,
            "hold" => Request::Hold(self.number()?, self.number()?, self.number()?),
            "settle" => Request::Settle(self.number()?, self.number().ok()),
            "renew" => Request::Renew(self.number()?, self.number()?),
            other => bail!("invalid operation `{other}`"),
        })
    }

    fn action(&mut self) -> Result<Action> {
        Ok(match self.word()? {
            "request" => Action::Request {
                process: self.number()?,
                key: self.number()?,
                request: self.request()?,
            },
            "cut-requests" => Action::CutRequests { process: self.number()?, span: self.number()? },
            "cut-replies" => Action::CutReplies { process: self.number()?, span: self.number()? },
            "cut" => Action::Cut { process: self.number()?, span: self.number()? },
            "reset-link" => Action::ResetLink { process: self.number()? },
            "lose-link" => Action::LoseLink { process: self.number()? },
            "slow" => Action::Slow {
                process: self.number()?,
                delay: self.number()?,
                span: self.number()?,
            },
            "pause-server" => Action::PauseServer { span: self.number()? },
            "restart-server" => {
                Action::RestartServer { span: self.number()?, lost: self.number()? }
            }
            "failover" => Action::Failover { lost: self.number()? },
            "flush-scripts" => Action::FlushScripts,
            "read-only" => Action::ReadOnly { span: self.number()? },
            "out-of-memory" => Action::OutOfMemory { span: self.number()? },
            "step-clock" => Action::StepClock { by: self.number()? },
            "pause-process" => {
                Action::PauseProcess { process: self.number()?, span: self.number()? }
            }
            "restart-process" => Action::RestartProcess { process: self.number()? },
            other => bail!("invalid step `{other}`"),
        })
    }
}

impl FromStr for Plan {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut plan =
            Self { seed: 0, processes: 1, denial_cache: 1000, keys: Vec::new(), steps: Vec::new() };
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = Words(line.split_whitespace());
            plan.read(&mut words).with_context(|| format!("invalid line `{line}`"))?;
        }
        ensure!((1..=16).contains(&plan.processes), "invalid number of processes");
        ensure!(!plan.keys.is_empty(), "a script needs a key");
        for step in &plan.steps {
            if let Action::Request { process, key, .. } = step.action {
                let is_known = process < plan.processes && key < plan.keys.len();
                ensure!(is_known, "unknown process or key in `{step}`");
            }
        }
        Ok(plan)
    }
}

impl Plan {
    fn read(&mut self, words: &mut Words<'_>) -> Result<()> {
        match words.word()? {
            "seed" => self.seed = words.number()?,
            "processes" => self.processes = words.number()?,
            "denial-cache" => self.denial_cache = words.number()?,
            "key" => {
                let (policy, lease) = (words.word()?.to_owned(), words.number()?);
                let on_error = words.word()?.parse().map_err(anyhow::Error::msg)?;
                self.keys.push(KeyPlan { policy, lease, on_error });
            }
            at => {
                let at = at.parse().ok().with_context(|| format!("invalid time `{at}`"))?;
                self.steps.push(Step { at, action: words.action()? });
            }
        }
        Ok(())
    }
}
