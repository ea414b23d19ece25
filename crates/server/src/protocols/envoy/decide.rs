//! From descriptors to verdicts: what the rules say of each, and what becomes of it.

use std::sync::Arc;

use futures_util::future::try_join_all;
use sluicegate_core::{
    Align, Decision, FixedWindow, Limit, Operation, Outcome, Policy, Retry, Source,
    Timestamp, Window,
};
use sluicegate_proto::{
    descriptor::RateLimitDescriptor,
    rls::{
        RateLimitRequest,
        rate_limit_response::{RateLimit, rate_limit::Unit},
    },
};
use sluicegate_rules::{Descriptor, Match, Treatment};
use smallvec::SmallVec;
use tonic::Status;

use super::{
    answer::{Limited, Mode, Verdict, with_answer},
    context::EnvoyContext,
    unit,
};
use crate::{
    FallbackDenial,
    decide::judge::{self, Ask, Told},
    policies::ruleset::Version,
    stats::{Cause, Stats},
    store::home::Trouble,
};

/// Descriptors of a request, and entries of a descriptor, at the most.
const MOST: usize = 256;
/// Bytes of a key, at the most.
const MAX_KEY: usize = 65_536;

/// The entries of a descriptor.
type Entries<'a> = SmallVec<[(&'a str, &'a str); 3]>;

/// Decides on every descriptor of `request`, each for itself.
pub(super) async fn decide(
    context: &EnvoyContext,
    stats: &Stats,
    request: &RateLimitRequest,
    now: Timestamp,
) -> Result<Vec<Verdict>, Status> {
    let asked = read(request)?;
    // Filled in place: what is collected is copied once more.
    let mut entries: SmallVec<[Entries<'_>; 2]> = SmallVec::new();
    for descriptor in &request.descriptors {
        entries.push(Entries::new());
        let Some(last) = entries.last_mut() else { continue };
        last.extend(descriptor.entries.iter().map(|it| (&*it.key, &*it.value)));
    }
    let mut descriptors: SmallVec<[_; 2]> = SmallVec::new();
    for (entries, asked) in entries.iter().zip(&asked) {
        descriptors.push(Descriptor { entries, limit: asked.named() });
    }

    let version = Arc::clone(&context.decider.rules.now());
    let rules = version.rules();
    let matches = rules.descriptors_as_found(&request.domain, &descriptors, |found| {
        let charges = found.iter().flat_map(|it| &it.charges);
        charges.for_each(|it| context.decider.store.touch(&it.key));
    });
    let benches =
        asked.iter().zip(&descriptors).zip(&matches).map(|((asked, descriptor), found)| {
            // A limit that a descriptor brings goes before the rules.
            let brings = asked.limit.is_some();
            let count = if brings {
                found.iter().take_while(|it| it.wire.is_some()).count()
            } else {
                found.len()
            };
            let bench = Bench { context, stats, version: &version, asked: *asked, now };
            (bench, descriptor, &found[..count])
        });
    if context.decider.store.memory().is_none() {
        // A store elsewhere is asked about all of them at once.
        let judged = benches
            .map(|(bench, descriptor, found)| bench.judge(&request.domain, descriptor, found));
        return Box::pin(try_join_all(judged)).await;
    }
    let mut verdicts = Vec::with_capacity(asked.len());
    for (bench, descriptor, found) in benches {
        let verdict = match bench.judge_now(found) {
            Some(verdict) => verdict?,
            // Boxed, so that what most have no need of is not moved about.
            None => Box::pin(bench.judge(&request.domain, descriptor, found)).await?,
        };
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

/// What is asked about a descriptor.
#[derive(Clone, Copy, Debug)]
struct Asked {
    ask: Ask,
    /// The limit that it brings.
    limit: Option<(u32, Unit)>,
}

impl Asked {
    fn named(&self) -> Option<(u32, sluicegate_rules::Unit)> {
        let (requests, unit) = self.limit?;
        Some((requests, unit::to_rules(unit)?))
    }
}

/// What is asked about each descriptor, if it is a request at all.
fn read(request: &RateLimitRequest) -> Result<SmallVec<[Asked; 2]>, Status> {
    let told = |text: &str| Err(Status::invalid_argument(text));
    if request.domain.is_empty() {
        return told("missing domain: expected the name of a domain in the rules");
    }
    if request.descriptors.is_empty() {
        return told("missing descriptors: expected 1 to 256");
    }
    if request.descriptors.len() > MOST {
        return told("too many descriptors: expected 1 to 256");
    }
    let descriptors = request.descriptors.iter().enumerate();
    let asked = descriptors.map(|(index, descriptor)| {
        let wrong = |text| Status::invalid_argument(format!("invalid descriptor {index}: {text}"));
        read_one(request, descriptor).map_err(wrong)
    });
    asked.collect()
}

fn read_one(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Result<Asked, String> {
    if descriptor.entries.is_empty() {
        return Err("expected 1 to 256 entries, not 0".to_owned());
    }
    if descriptor.entries.len() > MOST {
        return Err("expected 1 to 256 entries".to_owned());
    }
    let hits = match descriptor.hits_addend {
        None => request.hits_addend.max(1),
        Some(addend) => u32::try_from(addend)
            .map_err(|_| format!("expected a hits_addend from 0 to {}, not {addend}", u32::MAX))?,
    };
    let ask = match hits {
        _ if descriptor.is_negative_hits => Ask::Refund(hits),
        // What costs nothing only asks whether one more would pass.
        0 => Ask::Peek(1),
        hits => Ask::Take(hits),
    };
    let limit = descriptor.limit.as_ref().map(|limit| {
        let unit = Unit::try_from(limit.unit).unwrap_or_default();
        let known = unit::period(unit).map(|_| (limit.requests_per_unit, unit));
        known.ok_or_else(|| format!("expected a unit from 1 to 7, not {}", limit.unit))
    });
    Ok(Asked { ask, limit: limit.transpose()? })
}

/// What one descriptor is decided with.
struct Bench<'a> {
    context: &'a EnvoyContext,
    stats: &'a Stats,
    version: &'a Version,
    asked: Asked,
    now: Timestamp,
}

impl Bench<'_> {
    /// What [`judge`](Self::judge) says, where nobody has to be waited for.
    fn judge_now(&self, matches: &[Match<'_>]) -> Option<Result<Verdict, Status>> {
        let [found] = matches else { return None };
        let told = judge::decide_now(
            &self.context.decider,
            self.version,
            matches,
            self.asked.ask,
            self.now,
        )?;
        Some(match told {
            Ok(told) => self.verdict(found, &told),
            Err(trouble) => Err(troubled(&trouble)),
        })
    }

    async fn judge(
        self,
        domain: &str,
        descriptor: &Descriptor<'_>,
        matches: &[Match<'_>],
    ) -> Result<Verdict, Status> {
        if let (Some((requests, unit)), []) = (self.asked.limit, matches) {
            return self.brought(domain, descriptor, requests, unit).await;
        }
        if matches.is_empty() {
            return Ok(Verdict::Free);
        }
        let (context, ask) = (self.context, self.asked.ask);
        let judged = judge::decide(&context.decider, self.version, matches, ask, self.now).await;
        let judged = judged.map_err(|trouble| troubled(&trouble))?;
        let mut verdict = Verdict::Free;
        for (found, told) in matches.iter().zip(&judged.told) {
            verdict = verdict.or(self.verdict(found, told)?);
        }
        Ok(verdict)
    }

    /// What one match says.
    fn verdict(&self, found: &Match<'_>, told: &Told) -> Result<Verdict, Status> {
        let mode = if found.shadow {
            Mode::Shadow
        } else if found.rule.envoy().is_some_and(|it| it.quota_mode) {
            Mode::Quota
        } else {
            Mode::Enforced
        };
        let name = match found.wire {
            Some(wire) => wire.name.unwrap_or_default(),
            None => found.rule.name(),
        };
        let rate = |(requests_per_unit, unit): (u32, Unit)| RateLimit {
            requests_per_unit,
            unit: unit.into(),
            name: name.to_owned(),
        };
        let wired = found
            .wire
            .and_then(|wire| wire.rate)
            .map(|(requests, unit)| rate((requests, unit::from_rules(unit))));
        match (found.treatment, told.decision) {
            (Treatment::Unlimited, _) => Ok(Verdict::Unlimited),
            (Treatment::Block, _) => {
                let limit = wired.unwrap_or_else(|| rate((0, Unit::Second)));
                Ok(Verdict::Limited(Limited::blocked(mode, limit)))
            }
            // Another rule has denied before this one was asked.
            (Treatment::Limit, None) => Ok(Verdict::Free),
            (Treatment::Limit, Some(decision)) => {
                let denies = !told.allowed && mode != Mode::Shadow;
                if told.source == Source::Fallback && denies && self.fails_on_fallback_denial() {
                    return Err(refused(&"the store is unavailable"));
                }
                let charge = found.charges.get(told.charge);
                if mode != Mode::Shadow {
                    self.stats.decided(told.source, &decision);
                    let rule = Some(found.rule.name());
                    charge.iter().for_each(|it| {
                        let cause = Cause { rule, policy: &it.policy };
                        self.stats.sampler.note(&it.key, &decision, cause);
                    });
                }
                let policy = charge.map(|it| it.policy.limits());
                let binding = policy.and_then(|limits| limits.get(decision.binding));
                let limit = wired.or_else(|| binding.map(|it| rate(unit::per_unit(it))));
                let mut limited = limited(&decision, mode, limit.unwrap_or_default());
                if self.context.config.metadata {
                    let said = found.rule.envoy().and_then(|it| it.metadata.as_ref());
                    limited.metadata = said.and_then(with_answer);
                }
                Ok(Verdict::Limited(limited))
            }
        }
    }

    /// Whether a fallback denial fails the call with `UNAVAILABLE`. Envoy then applies its own `failure_mode_deny`.
    fn fails_on_fallback_denial(&self) -> bool {
        self.context.fallback_denial == FallbackDenial::Unavailable
    }

    /// A limit that the descriptor brings, to a domain that has no rules of its own.
    async fn brought(
        &self,
        domain: &str,
        descriptor: &Descriptor<'_>,
        requests: u32,
        unit: Unit,
    ) -> Result<Verdict, Status> {
        let rate =
            RateLimit { requests_per_unit: requests, unit: unit.into(), name: String::new() };
        let Some(policy) = window(requests, unit) else {
            return Ok(Verdict::Limited(Limited::blocked(Mode::Enforced, rate)));
        };
        let key = key(domain, descriptor);
        if key.len() > MAX_KEY {
            let text = format!(
                "invalid descriptor: its key has {} bytes, expected up to {MAX_KEY}",
                key.len()
            );
            return Err(Status::invalid_argument(text));
        }
        let operation = match self.asked.ask {
            Ask::Take(hits) => Operation::Take(hits),
            Ask::Peek(hits) => Operation::Peek(hits),
            Ask::Refund(hits) => Operation::Refund(hits),
        };
        let rule = self.context.decider.prepare(&policy, self.now);
        let answer = self.context.decider.decide(&key, &rule, operation, self.now).await;
        let answer = answer.map_err(|trouble| troubled(&trouble))?;
        let denies = !answer.decision.allowed();
        if answer.source == Source::Fallback && denies && self.fails_on_fallback_denial() {
            return Err(refused(&"the store is unavailable"));
        }
        self.stats.decided(answer.source, &answer.decision);
        self.stats.sampler.note(&key, &answer.decision, Cause::policy(&policy));
        Ok(Verdict::Limited(limited(&answer.decision, Mode::Enforced, rate)))
    }
}

/// What a decision means for Envoy.
fn limited(decision: &Decision, mode: Mode, limit: RateLimit) -> Limited {
    let reset = match decision.outcome {
        Outcome::Deny { retry: Retry::After(wait) } => wait,
        Outcome::Deny { retry: Retry::Never } | Outcome::Allow { .. } => decision.reset_after,
    };
    let (allowed, remaining) = (decision.allowed(), decision.remaining);
    Limited { allowed, mode, limit, remaining, reset, metadata: None }
}

/// As [`refused`], unless it is the request that is at fault.
fn troubled(trouble: &Trouble) -> Status {
    match trouble {
        Trouble::State(text) if text.starts_with("ERR ") => Status::invalid_argument(&text[4..]),
        trouble => refused(trouble),
    }
}

/// The call fails, so that Envoy does as it was told to for such a case.
fn refused(why: &dyn std::fmt::Display) -> Status {
    Status::unavailable(format!("nothing was decided: {why}"))
}

/// Windows on the clock, in which denied requests count as well. `None` for no requests at all.
fn window(requests: u32, unit: Unit) -> Option<Policy> {
    let window = Window::Span { period: unit::period(unit)?, align: Align::Clock };
    let limit = FixedWindow::new(requests, &window, true).ok()?;
    Policy::try_from(vec![Limit::FixedWindow(limit)]).ok()
}

/// The key of a descriptor that brings its limit: no two descriptors have the same.
fn key(domain: &str, descriptor: &Descriptor<'_>) -> Vec<u8> {
    let mut key = b"limit".to_vec();
    let entries = descriptor.entries.iter().flat_map(|(key, value)| [*key, *value]);
    for part in std::iter::once(domain).chain(entries) {
        key.extend_from_slice(format!(":{}:", part.len()).as_bytes());
        key.extend_from_slice(part.as_bytes());
    }
    key
}
