//! The plan of a run: a world, keys with policies, and the actions at set times. A plan is made from a seed, or read from
//! a script, which is a plan as text: a line for the seed, the world, each key and each step.
//!
//! ```text
//! seed 7
//! shared processes 2 denial_cache 1000 cluster -
//! key gcra:10/1s:burst=5 16 local=1/2 gcra:20/1s 0 deny
//! 120 0 request 0 take 2
//! 130 1 request 0 take 1 0 peek 1
//! 400 1 use-policy 0 1
//! 500 0 fault - restart-server 40 1000
//! ```
//!
//! A key has one or more policies, each with the units of its leases and its fallback. A step has a time in milliseconds, a
//! process, and an action with its fields in the order of the type.

use std::{
    fmt::{self, Debug, Display},
    str::FromStr,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use sluicegate_core::{OnError, Operation, PreparedPolicy};

use crate::{
    event_log::{Output, RunOutcome},
    random::Random,
    text::{Text, Words, number, push, text},
};

/// What a plan runs in: production code with its surroundings.
pub(crate) trait World: Text + Clone + Debug + PartialEq + 'static {
    type Action: Action;
    /// The word with which its line in a script begins.
    const NAME: &str;

    /// The plan of a seed.
    fn generate(seed: u64, random: &Random) -> Plan<Self>;

    /// The kind of plans, a name.
    fn kind(&self) -> &'static str {
        Self::NAME
    }

    /// The number of processes or clients that steps name.
    fn processes(&self) -> usize {
        1
    }

    /// Whether it can run an action, beyond the names of keys and policies.
    fn check(&self, _action: &Self::Action) -> Result<()> {
        Ok(())
    }

    fn run(plan: &Plan<Self>, output: Output) -> Result<RunOutcome>;

    /// Simpler worlds, for shrinking.
    fn simpler(&self, _keys: &[KeyPlan]) -> Vec<Self> {
        Vec::new()
    }

    /// A key that no step names is left out.
    fn leave_out_key(&mut self, _key: usize) {}
}

/// The action of a step.
pub(crate) trait Action: Text + Clone + Debug + PartialEq {
    /// The keys that it names, and the policy of the last one.
    fn names(&mut self) -> (Vec<&mut usize>, Option<usize>);

    /// The requests that it sends at once, of which some can be left out.
    fn requests(&mut self) -> Option<&mut Requests> {
        None
    }

    /// One action in place of two that send no requests.
    fn merged(&self, _other: &Self) -> Option<Self> {
        None
    }
}

/// Operations on keys.
pub(crate) type Requests = Vec<(usize, Request)>;

/// A run, except for the choices that its seed makes while it runs: delays of the network, clocks and jitter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan<W: World> {
    pub(crate) seed: u64,
    pub(crate) world: W,
    pub(crate) keys: Vec<KeyPlan>,
    /// In the order of their times.
    pub(crate) steps: Vec<Step<W::Action>>,
}

/// An action at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step<A> {
    /// In milliseconds since the start.
    pub(crate) at: u64,
    /// The process that it concerns; any, for a fault of the server.
    pub(crate) process: usize,
    pub(crate) action: A,
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

impl Text for PolicyPlan {
    fn write(&self, out: &mut String) {
        push(out, &self.policy);
        self.lease.write(out);
        push(out, self.on_error.as_str());
        if let OnError::Local(share) = self.on_error {
            out.push_str(&format!("={share}"));
        }
    }

    fn read(words: &mut Words<'_>) -> Result<Self> {
        let (policy, lease) = (words.word()?.to_owned(), u32::read(words)?);
        Ok(Self { policy, lease, on_error: words.word()?.parse()? })
    }
}

text! {
    /// An operation of a client.
    #[derive(Copy)]
    pub(crate) enum Request {
        Take(cost: u32),
        Peek(cost: u32),
        Charge(cost: u32),
        Refund(cost: u32),
        /// With the longest wait in milliseconds.
        Reserve(cost: u32, wait: u64),
        Reset,
        /// The number of the hold, its units, its lifetime in milliseconds.
        Hold(id: u64, cost: u32, ttl: u64),
        /// The number of the hold, and the units used.
        Settle(id: u64, used: Option<u32>),
        /// The number of the hold, its lifetime in milliseconds.
        Renew(id: u64, ttl: u64),
    }
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

impl Display for Request {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text);
        formatter.write_str(text.trim_start())
    }
}

/// One action in place of two.
pub(crate) fn merged<A: Action>(one: &A, two: &A) -> Option<A> {
    let (mut first, mut second) = (one.clone(), two.clone());
    match (first.requests(), second.requests()) {
        (Some(requests), Some(others)) => {
            *requests = merged_takes(requests, others)?;
            Some(first)
        }
        _ => one.merged(two),
    }
}

/// The request that follows the first one as its own, if both are takes of one key: of all units.
fn merged_takes(first: &Requests, second: &Requests) -> Option<Requests> {
    match (&first[..], &second[..]) {
        (&[(key, Request::Take(one))], &[(other, Request::Take(two))]) if key == other => {
            Some(vec![(key, Request::Take(one.saturating_add(two)))])
        }
        _ => None,
    }
}

impl<A: Action> Display for Step<A> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.action.write(&mut text);
        write!(formatter, "{} {}{text}", self.at, self.process)
    }
}

impl<W: World> Display for Plan<W> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut world, mut keys) = (String::new(), String::new());
        self.world.write(&mut world);
        for key in &self.keys {
            keys.push_str("key");
            key.0.write(&mut keys);
            keys.push('\n');
        }
        write!(formatter, "seed {}\n{}{world}\n{keys}", self.seed, W::NAME)?;
        self.steps.iter().try_for_each(|step| writeln!(formatter, "{step}"))
    }
}

impl<W: World> FromStr for Plan<W> {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (mut seed, mut world, mut keys, mut steps) = (0, None, Vec::new(), Vec::new());
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = Words::of(line);
            let mut read = || -> Result<()> {
                match words.word()? {
                    "seed" => seed = u64::read(&mut words)?,
                    "key" => keys.push(KeyPlan(Text::read(&mut words)?)),
                    name if name == W::NAME => world = Some(W::read(&mut words)?),
                    at => {
                        let (at, process) = (number(at)?, usize::read(&mut words)?);
                        steps.push(Step { at, process, action: Text::read(&mut words)? });
                    }
                }
                ensure!(words.peek().is_none(), "the line is too long");
                Ok(())
            };
            read().with_context(|| format!("invalid line `{line}`"))?;
        }
        let plan = Self { seed, world: world.context("a script names a world")?, keys, steps };
        ensure!(plan.keys.iter().all(|key| !key.0.is_empty()), "a key needs a policy");
        for step in &plan.steps {
            plan.check_names(step.clone()).with_context(|| format!("invalid line `{step}`"))?;
        }
        Ok(plan)
    }
}

impl<W: World> Plan<W> {
    /// Whether it can be run.
    pub(crate) fn is_valid(&self) -> bool {
        self.steps.iter().all(|step| self.check_names(step.clone()).is_ok())
    }

    /// Whether all names of a step exist.
    fn check_names(&self, mut step: Step<W::Action>) -> Result<()> {
        ensure!(step.process < self.world.processes(), "unknown process `{}`", step.process);
        ensure!(step.action.requests().is_none_or(|it| !it.is_empty()), "no requests");
        let (keys, policy) = step.action.names();
        for key in keys {
            let policies = self.keys.get(*key).map_or(0, |it| it.0.len());
            ensure!(policy.unwrap_or_default() < policies, "unknown key or policy");
        }
        self.world.check(&step.action)
    }
}
