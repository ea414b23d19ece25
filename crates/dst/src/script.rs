//! Plans as text: one line for each setting, key and step.
//!
//! ```text
//! seed 7
//! processes 2
//! denial-cache 1000
//! key gcra:10/1s:burst=5 16 local=1/2 gcra:20/1s 0 deny
//! 120 0 request 0 take 2
//! 130 1 request 0 take 1 0 peek 1
//! 400 1 use-policy 0 1
//! 500 0 fault restart-server 40 1000
//! ```
//!
//! With `table 2097152 deny` in place of `processes`, the steps are those of a table in memory of 2097152 bytes.
//!
//! With `server 300 stop` besides, the processes are clients of a server of Sluicegate that may leave 300 bytes of replies unread; it
//! stops after the last step, or with `drain` once it is idle. `bounds 3 600` lets it have 3 clients at a time and buffer 600 bytes for
//! them, which all speak RESP. `http 1 3` after it names the clients that speak HTTP, and `named 0 2` the
//! keys whose policies have names in the rules: `use-policy` reloads these. `rule 0 2 shadow
//! gcra:1/1s` adds a rule that counts descriptors of Envoy by their entry 0, at a cost of 2; `describe 3 1 - 0 2` asks for 3 hits of two
//! descriptors, one with the entry 0 only. `wait-all 300 0 1 2 1` waits up to 300 ms for a unit of the keys 0 and 2.
//!
//! With `cluster 3 2 all`, the processes share a cluster of 3 shards. The names of keys have 2 hash tags in turn. While a shard has
//! no primary, no key is served, or with `some` only its keys are not.
//!
//! With `serving 0 resp 2 http`, the processes 0 and 2 are servers of Sluicegate on the shared store, whose clients speak RESP and HTTP.
//!
//! A key has one or more policies, each with the units of its leases and its fallback. A step has a time in milliseconds
//! and a process, and then operations on keys by their numbers, or a fault with its span and amount; `node-fault` has the number of
//! a node before them.

use std::{fmt, str::FromStr};

use anyhow::{Context as _, Result, bail, ensure};
use sluicegate_core::OnError;
use sluicegate_memory::WhenFull;

use crate::plan::{
    Action, ClusterPlan, FaultKind, KeyPlan, PermitEnd, PermitPlan, Plan, PolicyPlan,
    ReloadedRules, Request, Step, TablePlan,
};
use crate::{
    server::ServerPlan,
    words::{Words, parse},
};

/// More processes than this make no sense.
const MAX_PROCESSES: usize = 16;
/// Nor more shards.
const MAX_SHARDS: usize = 8;

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
            Self::Settle(id, Some(used)) => write!(formatter, "settle-used {id} {used}"),
            Self::Renew(id, ttl) => write!(formatter, "renew {id} {ttl}"),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|it| it.0 == *self).map_or("", |it| it.1);
        formatter.write_str(name)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} ", self.at, self.process)?;
        match &self.action {
            Action::Request(requests) => {
                write!(formatter, "request")?;
                requests.iter().try_for_each(|(key, request)| write!(formatter, " {key} {request}"))
            }
            Action::All { requests, timeout } => {
                match (timeout, requests.first().map(|it| it.1)) {
                    (0, Some(Request::Hold(id, _, ttl))) => {
                        write!(formatter, "hold-all {id} {ttl}")?;
                    }
                    (0, Some(Request::Peek(_))) => write!(formatter, "peek-all")?,
                    (0, _) => write!(formatter, "take-all")?,
                    (_, Some(Request::Hold(id, _, ttl))) => {
                        write!(formatter, "wait-hold-all {timeout} {id} {ttl}")?;
                    }
                    _ => write!(formatter, "wait-all {timeout}")?,
                }
                let mut requests = requests.iter();
                requests.try_for_each(|(key, it)| write!(formatter, " {key} {}", it.cost()))
            }
            Action::Wait { key, request, timeout } => match request {
                Request::Hold(id, cost, ttl) => {
                    write!(formatter, "wait-hold {key} {cost} {timeout} {id} {ttl}")
                }
                _ => write!(formatter, "wait {key} {} {timeout}", request.cost()),
            },
            Action::Permit(permit) => write!(formatter, "{permit}"),
            Action::Push { key, count } => write!(formatter, "push {key} {count}"),
            Action::Pipeline { key, cost, count } => {
                write!(formatter, "pipeline {key} {cost} {count}")
            }
            Action::UsePolicy { key, policy } => write!(formatter, "use-policy {key} {policy}"),
            Action::Reload(ReloadedRules::Same) => write!(formatter, "reload same"),
            Action::Reload(ReloadedRules::Invalid) => write!(formatter, "reload invalid"),
            Action::Flood { key, count } => write!(formatter, "flood {key} {count}"),
            Action::Revisit { flood, first, count } => {
                write!(formatter, "revisit {flood} {first} {count}")
            }
            Action::Fault { kind, span, amount } => {
                write!(formatter, "fault {kind} {span} {amount}")
            }
            Action::NodeFault { node, kind, span, amount } => {
                write!(formatter, "node-fault {node} {kind} {span} {amount}")
            }
        }
    }
}

impl fmt::Display for PermitPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, cost, ttl, timeout, kept, end, is_kept_alive } = self;
        let word = if *is_kept_alive { "permit-kept-alive" } else { "permit" };
        write!(formatter, "{word} {key} {cost} {ttl} {timeout} {kept} ")?;
        match end {
            PermitEnd::Settled(used) => write!(formatter, "settle {used}"),
            PermitEnd::Dropped => write!(formatter, "drop"),
            PermitEnd::Cancelled(after) => write!(formatter, "cancel {after}"),
        }
    }
}

impl fmt::Display for PolicyPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, lease, on_error } = self;
        write!(formatter, "{policy} {lease} {}", on_error.as_str())?;
        match on_error {
            OnError::Local(share) => write!(formatter, "={share}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "seed {}", self.seed)?;
        match &self.table {
            Some(TablePlan { max_bytes, when_full }) => {
                let denies = *when_full == WhenFull::Deny;
                writeln!(formatter, "table {max_bytes} {}", if denies { "deny" } else { "allow" })?;
            }
            None => {
                writeln!(formatter, "processes {}", self.processes)?;
                writeln!(formatter, "denial-cache {}", self.denial_cache)?;
            }
        }
        self.server.iter().try_for_each(|server| write!(formatter, "{server}"))?;
        if let Some(ClusterPlan { shards, tags, needs_all }) = self.cluster {
            writeln!(
                formatter,
                "cluster {shards} {tags} {}",
                if needs_all { "all" } else { "some" }
            )?;
        }
        for KeyPlan(policies) in &self.keys {
            write!(formatter, "key")?;
            policies.iter().try_for_each(|policy| write!(formatter, " {policy}"))?;
            writeln!(formatter)?;
        }
        self.steps.iter().try_for_each(|step| writeln!(formatter, "{step}"))
    }
}

impl Words<'_> {
    fn request(&mut self) -> Result<Request> {
        Ok(match self.word()? {
            "take" => Request::Take(self.number()?),
            "peek" => Request::Peek(self.number()?),
            "charge" => Request::Charge(self.number()?),
            "refund" => Request::Refund(self.number()?),
            "reserve" => Request::Reserve(self.number()?, self.number()?),
            "reset" => Request::Reset,
            "hold" => Request::Hold(self.number()?, self.number()?, self.number()?),
            "settle" => Request::Settle(self.number()?, None),
            "settle-used" => Request::Settle(self.number()?, Some(self.number()?)),
            "renew" => Request::Renew(self.number()?, self.number()?),
            other => bail!("invalid operation `{other}`"),
        })
    }

    fn action(&mut self) -> Result<Action> {
        Ok(match self.word()? {
            "request" => {
                let mut requests = Vec::new();
                while let Some(key) = self.next() {
                    requests.push((parse(key)?, self.request()?));
                }
                Action::Request(requests)
            }
            word @ ("take-all" | "peek-all" | "hold-all" | "wait-all" | "wait-hold-all") => {
                let waits = word.starts_with("wait");
                let timeout = if waits { self.number()? } else { 0 };
                ensure!(!waits || timeout > 0, "invalid timeout 0: expected milliseconds");
                let request = match word {
                    "take-all" | "wait-all" => Request::Take(0),
                    "peek-all" => Request::Peek(0),
                    _ => Request::Hold(self.number()?, 0, self.number()?),
                };
                Action::All { requests: self.requests_like(request)?, timeout }
            }
            word @ ("wait" | "wait-hold") => {
                let (key, cost, timeout) = (self.number()?, self.number()?, self.number()?);
                let request = match word {
                    "wait" => Request::Take(cost),
                    _ => Request::Hold(self.number()?, cost, self.number()?),
                };
                Action::Wait { key, request, timeout }
            }
            word @ ("permit" | "permit-kept-alive") => {
                Action::Permit(self.permit(word == "permit-kept-alive")?)
            }
            "push" => Action::Push { key: self.number()?, count: self.number()? },
            "pipeline" => Action::Pipeline {
                key: self.number()?,
                cost: self.number()?,
                count: self.number()?,
            },
            "use-policy" => Action::UsePolicy { key: self.number()?, policy: self.number()? },
            "reload" => Action::Reload(match self.word()? {
                "same" => ReloadedRules::Same,
                "invalid" => ReloadedRules::Invalid,
                other => bail!("invalid `{other}`: expected `same` or `invalid`"),
            }),
            "flood" => Action::Flood { key: self.number()?, count: self.number()? },
            "revisit" => Action::Revisit {
                flood: self.number()?,
                first: self.number()?,
                count: self.number()?,
            },
            "fault" => {
                let kind = self.fault()?;
                Action::Fault { kind, span: self.number()?, amount: self.number()? }
            }
            "node-fault" => {
                let (node, kind) = (self.number()?, self.fault()?);
                Action::NodeFault { node, kind, span: self.number()?, amount: self.number()? }
            }
            other => bail!("invalid step `{other}`"),
        })
    }

    fn fault(&mut self) -> Result<FaultKind> {
        let word = self.word()?;
        let kind = FaultKind::ALL.iter().find(|it| it.1 == word);
        let (kind, _) = *kind.with_context(|| format!("invalid fault `{word}`"))?;
        Ok(kind)
    }

    fn permit(&mut self, is_kept_alive: bool) -> Result<PermitPlan> {
        Ok(PermitPlan {
            key: self.number()?,
            cost: self.number()?,
            ttl: self.number()?,
            timeout: self.number()?,
            kept: self.number()?,
            end: match self.word()? {
                "settle" => PermitEnd::Settled(self.number()?),
                "drop" => PermitEnd::Dropped,
                "cancel" => PermitEnd::Cancelled(self.number()?),
                other => bail!("invalid end of a permit `{other}`"),
            },
            is_kept_alive,
        })
    }

    /// Keys with costs, up to the end of the line, each of which gets the request.
    fn requests_like(&mut self, request: Request) -> Result<Vec<(usize, Request)>> {
        let mut requests = Vec::new();
        while let Some(key) = self.next() {
            requests.push((parse(key)?, request.with_cost(self.number()?)));
        }
        Ok(requests)
    }

    fn policies(&mut self) -> Result<KeyPlan> {
        let mut policies = Vec::new();
        while let Some(policy) = self.next() {
            let (policy, lease) = (policy.to_owned(), self.number()?);
            let on_error = self.word()?.parse::<OnError>()?;
            policies.push(PolicyPlan { policy, lease, on_error });
        }
        ensure!(!policies.is_empty(), "a key needs a policy");
        Ok(KeyPlan(policies))
    }
}

impl FromStr for Plan {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut plan = Self {
            seed: 0,
            processes: 1,
            denial_cache: 1000,
            cluster: None,
            table: None,
            server: None,
            keys: Vec::new(),
            steps: Vec::new(),
        };
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = Words::of(line);
            plan.read(&mut words).with_context(|| format!("invalid line `{line}`"))?;
        }
        let expected = 1..=MAX_PROCESSES;
        ensure!(
            expected.contains(&plan.processes),
            "invalid processes `{}`: expected 1 to {MAX_PROCESSES}",
            plan.processes
        );
        for step in &plan.steps {
            plan.check(step).with_context(|| format!("invalid line `{step}`"))?;
        }
        Ok(plan)
    }
}

impl Plan {
    fn read(&mut self, words: &mut Words<'_>) -> Result<()> {
        match words.word()? {
            "seed" => self.seed = words.number()?,
            "processes" => self.processes = words.number()?,
            "table" => {
                let max_bytes = words.number()?;
                let when_full = match words.word()? {
                    "deny" => WhenFull::Deny,
                    "allow" => WhenFull::Allow,
                    other => bail!("invalid `{other}`: expected `deny` or `allow`"),
                };
                self.table = Some(TablePlan { max_bytes, when_full });
            }
            "server" => self.server = Some(ServerPlan::read(words)?),
            "bounds" => {
                self.server.as_mut().context("bounds need a server")?.read_bounds(words)?;
            }
            "named" => self.server.as_mut().context("names need a server")?.read_named(words)?,
            "cluster" => {
                let (shards, tags) = (words.number()?, words.number()?);
                ensure!(
                    (1..=MAX_SHARDS).contains(&shards),
                    "a cluster has 1 to {MAX_SHARDS} shards"
                );
                let needs_all = match words.word()? {
                    "all" => true,
                    "some" => false,
                    other => bail!("invalid `{other}`: expected `all` or `some`"),
                };
                self.cluster = Some(ClusterPlan { shards, tags, needs_all });
            }
            "denial-cache" => self.denial_cache = words.number()?,
            "key" => self.keys.push(words.policies()?),
            at => {
                let (at, process) = (parse(at)?, words.number()?);
                self.steps.push(Step { at, process, action: words.action()? });
            }
        }
        ensure!(words.next().is_none(), "the line is too long");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_of_a_seed_survives_as_text() {
        for seed in 0..200 {
            let plan = Plan::from_seed(seed);
            assert_eq!(plan.to_string().parse::<Plan>().unwrap(), plan, "seed {seed}");
        }
    }

    #[test]
    fn script_with_an_error_names_the_line() {
        let head = "key gcra:1/1s 0 deny\n";
        for (line, expected) in [
            ("10 0 request 1 take 1", "unknown key"),
            ("10 3 request 0 take 1", "unknown process `3`"),
            ("10 0 request 0 steal 1", "invalid operation `steal`"),
            ("10 0 fault flood 1 1", "invalid fault `flood`"),
            ("10 0 use-policy 0 1", "unknown key or policy"),
            ("10 0 node-fault 0 fail-over 1 1", "unknown node `0`"),
            ("x 0 request 0 take 1", "invalid number `x`"),
        ] {
            let error = format!("{head}{line}").parse::<Plan>().unwrap_err();
            let text = format!("{error:#}");
            assert!(text.contains(line) && text.contains(expected), "{text}");
        }
    }
}
