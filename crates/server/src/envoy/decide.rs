//! From descriptors to verdicts: what is to be asked of the store, and what its answers mean.

use sluicegate_core::{Align, FixedWindow, Limit, Operation, Outcome, Policy, Retry, Window};
use sluicegate_proto::{
    descriptor::{RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride},
    rls::{
        RateLimitRequest,
        rate_limit_response::{RateLimit, rate_limit::Unit},
    },
};
use sluicegate_redis::{Answer, Source};
use sluicegate_rules::{Descriptor, Match, OnError, Treatment};
use tonic::Status;

use super::{
    answer::{Limited, Mode, Verdict},
    rules::{Rules, prepare},
    unit,
};
use crate::{
    home::{HomeRule, Question, Trouble},
    shared::Shared,
};

/// Descriptors of a request, and entries of a descriptor, at the most.
const MOST: usize = 256;
/// Bytes of a key, at the most.
const MAX_KEY: usize = 65_536;

/// Decides on every descriptor of `request`, each for itself.
pub(super) async fn decide(
    shared: &Shared,
    worker: usize,
    rules: &Rules,
    request: &RateLimitRequest,
) -> Result<Vec<Verdict>, Status> {
    check(request)?;
    let plan = Plan::new(shared, rules, request)?;
    let questions: Vec<_> = plan.asks.iter().map(Ask::question).collect();
    let answers = shared.home.ask_many(&questions, shared.now()).await;
    let mut verdicts = plan.verdicts;
    for (ask, answer) in plan.asks.iter().zip(answers) {
        let answer = ask.accept(answer)?;
        shared.workers[worker].decided(&answer.decision);
        let limited = ask.limited(&answer);
        let verdict = &mut verdicts[ask.descriptor];
        *verdict = match std::mem::replace(verdict, Verdict::Free) {
            Verdict::Limited(other) => Verdict::Limited(other.or(limited)),
            Verdict::Free | Verdict::Unlimited => Verdict::Limited(limited),
        };
    }
    Ok(verdicts)
}

/// What is known without the store, and what it is asked.
struct Plan<'a> {
    verdicts: Vec<Verdict>,
    asks: Vec<Ask<'a>>,
}

/// A question about a descriptor.
struct Ask<'a> {
    descriptor: usize,
    key: Vec<u8>,
    rule: HomeRule,
    operation: Operation,
    mode: Mode,
    on_error: Option<OnError>,
    shown: Shown<'a>,
}

/// What Envoy is told of a limit.
enum Shown<'a> {
    /// The limit that binds, under this name.
    Binding(&'a str),
    /// Just this.
    Rate(RateLimit),
}

impl<'a> Plan<'a> {
    fn new(shared: &Shared, rules: &'a Rules, request: &RateLimitRequest) -> Result<Self, Status> {
        let entries: Vec<Vec<(&str, &str)>> = request
            .descriptors
            .iter()
            .map(|it| it.entries.iter().map(|it| (&*it.key, &*it.value)).collect())
            .collect();
        // One that brings its limit is of no concern to the rules.
        let asked = request.descriptors.iter().zip(&entries).map(|(descriptor, entries)| {
            let entries = if descriptor.limit.is_some() { &[] } else { &**entries };
            Descriptor { entries, limit: None }
        });
        let matches = rules.set.descriptors(&request.domain, &asked.collect::<Vec<_>>());
        let mut plan = Self { verdicts: Vec::new(), asks: Vec::new() };
        for (index, (descriptor, matches)) in request.descriptors.iter().zip(matches).enumerate() {
            plan.verdicts.push(Verdict::Free);
            let wrong = |text| Status::invalid_argument(format!("descriptor {index}: {text}"));
            let cost = Cost::new(request, descriptor).map_err(wrong)?;
            match &descriptor.limit {
                Some(limit) => plan.bring(shared, &request.domain, descriptor, limit, cost),
                None => matches.iter().try_for_each(|found| plan.add(shared, rules, found, cost)),
            }
            .map_err(wrong)?;
        }
        Ok(plan)
    }

    /// A limit that the last descriptor brings.
    fn bring(
        &mut self,
        shared: &Shared,
        domain: &str,
        descriptor: &RateLimitDescriptor,
        limit: &RateLimitOverride,
        cost: Cost,
    ) -> Result<(), String> {
        let unit = Unit::try_from(limit.unit).unwrap_or_default();
        let Some(period) = unit::period(unit) else {
            return Err(format!("unit {} of its limit is outside 1..=7", limit.unit));
        };
        let rate = RateLimit {
            requests_per_unit: limit.requests_per_unit,
            unit: unit.into(),
            name: String::new(),
        };
        if limit.requests_per_unit == 0 {
            self.verdict(Verdict::Limited(Limited::blocked(Mode::Enforced, rate)));
            return Ok(());
        }
        let window = Window::Span { period, align: Align::Clock };
        let limit = FixedWindow::new(limit.requests_per_unit, &window, true);
        let limit = Limit::FixedWindow(limit.map_err(|error| error.to_string())?);
        let policy = Policy::try_from(vec![limit]).map_err(|error| error.to_string())?;
        let rule = prepare(&policy, &shared.home, shared.now());
        let (key, shown) = (key(domain, descriptor), Shown::Rate(rate));
        self.ask(key, rule, cost.operation(1), Mode::Enforced, None, shown)
    }

    /// A rule that applies to the last descriptor.
    fn add(
        &mut self,
        shared: &Shared,
        rules: &'a Rules,
        found: &Match<'a>,
        cost: Cost,
    ) -> Result<(), String> {
        let name = match found.wire {
            Some(wire) => wire.name.unwrap_or_default(),
            None => found.rule.name(),
        };
        let rate = found.wire.and_then(|wire| wire.rate).map(|(requests_per_unit, unit)| {
            let unit = unit::named(unit).into();
            RateLimit { requests_per_unit, unit, name: name.to_owned() }
        });
        let mode = if found.shadow {
            Mode::Shadow
        } else if found.rule.envoy().is_some_and(|it| it.quota_mode) {
            Mode::Quota
        } else {
            Mode::Enforced
        };
        match found.treatment {
            Treatment::Unlimited => self.verdict(Verdict::Unlimited),
            Treatment::Block => {
                let rate = rate
                    .unwrap_or_else(|| RateLimit { name: name.to_owned(), ..RateLimit::default() });
                self.verdict(Verdict::Limited(Limited::blocked(mode, rate)));
            }
            Treatment::Limit => {
                for charge in &found.charges {
                    let rule = rules.prepared(charge, &shared.home, shared.now());
                    let shown = rate.clone().map_or(Shown::Binding(name), Shown::Rate);
                    let operation = cost.operation(found.cost);
                    self.ask(charge.key.clone(), rule, operation, mode, found.on_error, shown)?;
                }
            }
        }
        Ok(())
    }

    fn verdict(&mut self, verdict: Verdict) {
        if let Some(last) = self.verdicts.last_mut() {
            *last = match (std::mem::replace(last, Verdict::Free), verdict) {
                (Verdict::Limited(one), Verdict::Limited(other)) => Verdict::Limited(one.or(other)),
                (limited @ Verdict::Limited(_), _) => limited,
                (_, verdict) => verdict,
            };
        }
    }

    fn ask(
        &mut self,
        key: Vec<u8>,
        rule: HomeRule,
        operation: Operation,
        mode: Mode,
        on_error: Option<OnError>,
        shown: Shown<'a>,
    ) -> Result<(), String> {
        if key.len() > MAX_KEY {
            return Err(format!("its key has more than {MAX_KEY} bytes"));
        }
        let descriptor = self.verdicts.len() - 1;
        self.asks.push(Ask { descriptor, key, rule, operation, mode, on_error, shown });
        Ok(())
    }
}

impl Ask<'_> {
    fn question(&self) -> Question<'_> {
        Question { key: &self.key, rule: &self.rule, operation: self.operation }
    }

    /// The answer, where there is one: where the store is away, and no rule says what to answer
    /// then, Envoy does as it was told to for such a case.
    fn accept(&self, answer: Result<Answer, Trouble>) -> Result<Answer, Status> {
        let away = |error: &dyn std::fmt::Display| {
            tracing::debug!(%error, "the store was not asked");
            Status::unavailable("the store is away")
        };
        match answer {
            Ok(answer) => {
                let denied = answer.source == Source::Fallback && !answer.decision.allowed();
                if denied && self.on_error.is_none() {
                    return Err(away(&"it does not answer"));
                }
                Ok(answer)
            }
            Err(error) => Err(away(&error)),
        }
    }

    fn limited(&self, answer: &Answer) -> Limited {
        let decision = answer.decision;
        let limit = match &self.shown {
            Shown::Rate(rate) => rate.clone(),
            Shown::Binding(name) => {
                let limits = self.rule.policy().limits();
                let limit = limits.get(decision.binding).unwrap_or(&limits[0]);
                let (requests_per_unit, unit) = unit::per_unit(limit);
                RateLimit { requests_per_unit, unit: unit.into(), name: (*name).to_owned() }
            }
        };
        let reset = match decision.outcome {
            Outcome::Deny { retry: Retry::After(wait) } => wait,
            Outcome::Deny { retry: Retry::Never } | Outcome::Allow { .. } => decision.reset_after,
        };
        let (allowed, remaining) = (decision.allowed(), decision.remaining);
        Limited { allowed, mode: self.mode, limit, remaining, reset }
    }
}

/// Whether it is a request at all.
fn check(request: &RateLimitRequest) -> Result<(), Status> {
    let told = |text: &str| Err(Status::invalid_argument(text));
    if request.domain.is_empty() {
        return told("domain is empty; the name of a domain of the rules would do");
    }
    if request.descriptors.is_empty() {
        return told("there are no descriptors; 1 to 256 would do");
    }
    if request.descriptors.len() > MOST {
        return told("there are more than 256 descriptors");
    }
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        if descriptor.entries.is_empty() {
            return told(&format!("descriptor {index} has no entries; 1 to 256 would do"));
        }
        if descriptor.entries.len() > MOST {
            return told(&format!("descriptor {index} has more than 256 entries"));
        }
    }
    Ok(())
}

/// What is asked about a descriptor.
#[derive(Clone, Copy)]
struct Cost {
    units: u32,
    back: bool,
}

impl Cost {
    fn new(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Result<Self, String> {
        let units = match descriptor.hits_addend {
            None => request.hits_addend.max(1),
            Some(addend) => u32::try_from(addend)
                .map_err(|_| format!("hits_addend {addend} is outside 0..={}", u32::MAX))?,
        };
        Ok(Self { units, back: descriptor.is_negative_hits })
    }

    /// Under a rule by which each hit costs so much. What costs nothing only asks whether one more
    /// would pass.
    const fn operation(self, each: u32) -> Operation {
        let units = self.units.saturating_mul(each);
        match units {
            _ if self.back => Operation::Refund(units),
            0 => Operation::Peek(1),
            units => Operation::Take(units),
        }
    }
}

/// The key of a descriptor that brings its limit: no two descriptors have the same, and no rule has.
fn key(domain: &str, descriptor: &RateLimitDescriptor) -> Vec<u8> {
    let mut key = b"limit".to_vec();
    let entries = descriptor.entries.iter().flat_map(|it| [&*it.key, &*it.value]);
    for part in std::iter::once(domain).chain(entries) {
        key.extend_from_slice(format!(":{}:", part.len()).as_bytes());
        key.extend_from_slice(part.as_bytes());
    }
    key
}
