//! Evaluates the descriptors of a request. Their limits are per second, minute, hour, day, week, month or year.

use std::{sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use sluicegate_core::{
    CalendarUnit, Decision, KeyLengthError, KeyedOperation, Limit, Operation, Outcome, Policy,
    PreparedPolicy, Retry, Source, StoreError, Timestamp,
};
use sluicegate_headers::reset_after;
use sluicegate_proto::{
    descriptor::RateLimitDescriptor,
    rls::{
        RateLimitRequest,
        rate_limit_response::{RateLimit, rate_limit::Unit},
    },
};
use sluicegate_rules::{
    Descriptor, EnvoyMode, Match, MatchOutcome, RuleOperation, Treatment, Unit as RuleUnit,
    check_keys,
};
use smallvec::SmallVec;
use tokio::{sync::Semaphore, task::yield_now};
use tonic::Status;

use super::{
    context::EnvoyContext,
    response::{DescriptorOutcome, LimitStatus, response_metadata},
};
use crate::{
    FallbackDenial,
    policies::rule_store::RuleSnapshot,
    stats::{Cause, Stats},
    store::error_reply,
    telemetry::SpanDecision,
};

/// Maximum number of descriptors of a request, and of entries of a descriptor.
const MAX_ENTRIES: usize = 256;

/// The entries of a descriptor.
type Entries<'a> = SmallVec<[(&'a str, &'a str); 3]>;

/// Evaluates each descriptor of `request`, independently. A call that takes longer than a turn continues in the `lane`.
pub(super) async fn decide(
    context: &EnvoyContext,
    stats: &Stats,
    lane: &Semaphore,
    request: &RateLimitRequest,
    now: Timestamp,
) -> Result<Vec<DescriptorOutcome>, Status> {
    let calls = read(request)?;
    // Filled in place, to avoid a copy.
    let mut entries: SmallVec<[Entries<'_>; 2]> = SmallVec::new();
    for descriptor in &request.descriptors {
        entries.push(Entries::new());
        let Some(last) = entries.last_mut() else { continue };
        last.extend(descriptor.entries.iter().map(|it| (&*it.key, &*it.value)));
    }
    let mut descriptors: SmallVec<[_; 2]> = SmallVec::new();
    for (entries, call) in entries.iter().zip(&calls) {
        descriptors.push(Descriptor { entries, limit: call.limit });
    }

    let rules = Arc::clone(&context.decider.rules.current());
    let matches = rules.rules.descriptors_as_found(&request.domain, &descriptors, |found| {
        let charges = found.iter().flat_map(|it| &it.charges);
        charges.for_each(|it| context.decider.prefetch(&it.key));
    });
    // The span of the call has one decision.
    let traced = context.telemetry.as_ref().map(|_| SpanDecision::default());
    let evaluations = calls.iter().zip(&descriptors).zip(&matches);
    let evaluations = evaluations.map(|((call, descriptor), found)| {
        // A limit of the request replaces the rules in Sluicegate's own format.
        let count = match call.limit {
            Some(_) => found.iter().take_while(|it| it.wire.is_some()).count(),
            None => found.len(),
        };
        DescriptorEvaluation {
            context,
            stats,
            rules: &rules,
            domain: &request.domain,
            descriptor,
            matches: &found[..count],
            call: *call,
            now,
            traced: traced.as_ref(),
        }
    });
    // All of them first, so that a call that is invalid charges nothing.
    for (index, evaluation) in evaluations.clone().enumerate() {
        let invalid =
            |error| Status::invalid_argument(format!("invalid descriptor {index}: {error}"));
        evaluation.check_keys().map_err(invalid)?;
    }
    let mut outcomes = Vec::with_capacity(calls.len());
    if context.decider.is_local() {
        let (mut turn, mut permit) = (now, None);
        for evaluation in evaluations {
            if !outcomes.is_empty() && context.decider.is_late(turn) {
                if permit.is_none() {
                    permit = lane.acquire().await.ok();
                }
                yield_now().await;
                turn = context.decider.now();
            }
            outcomes.push(evaluation.outcome().await?);
        }
    } else {
        // A remote store is called for all descriptors at once.
        outcomes = Box::pin(try_join_all(evaluations.map(DescriptorEvaluation::outcome))).await?;
    }
    if let Some(traced) = traced {
        traced.record();
    }
    Ok(outcomes)
}

/// The call for one descriptor.
#[derive(Clone, Copy, Debug)]
struct DescriptorCall {
    operation: RuleOperation,
    /// The limit that comes with the descriptor.
    limit: Option<(u32, RuleUnit)>,
}

/// Checks a request.
fn read(request: &RateLimitRequest) -> Result<SmallVec<[DescriptorCall; 2]>, Status> {
    let invalid = |text: &str| Err(Status::invalid_argument(text));
    if request.domain.is_empty() {
        return invalid("missing domain: expected the name of a domain in the rules");
    }
    if request.descriptors.is_empty() {
        return invalid("missing descriptors: expected 1 to 256");
    }
    if request.descriptors.len() > MAX_ENTRIES {
        return invalid("too many descriptors: expected 1 to 256");
    }
    let descriptors = request.descriptors.iter().enumerate();
    let calls = descriptors.map(|(index, descriptor)| {
        let wrong = |text| Status::invalid_argument(format!("invalid descriptor {index}: {text}"));
        read_one(request, descriptor).map_err(wrong)
    });
    calls.collect()
}

fn read_one(
    request: &RateLimitRequest,
    descriptor: &RateLimitDescriptor,
) -> Result<DescriptorCall, String> {
    if descriptor.entries.is_empty() {
        return Err("expected 1 to 256 entries, not 0".to_owned());
    }
    if descriptor.entries.len() > MAX_ENTRIES {
        return Err("expected 1 to 256 entries".to_owned());
    }
    let hits = match descriptor.hits_addend {
        None => request.hits_addend.max(1),
        Some(addend) => u32::try_from(addend)
            .map_err(|_| format!("expected a hits_addend from 0 to {}, not {addend}", u32::MAX))?,
    };
    let operation = match hits {
        _ if descriptor.is_negative_hits => RuleOperation::Refund(hits),
        // Zero hits is a query for one more.
        0 => RuleOperation::Peek(1),
        hits => RuleOperation::Take(hits),
    };
    let limit = descriptor.limit.as_ref().map(|limit| {
        let unit = Unit::try_from(limit.unit).ok().and_then(to_rules);
        let unit =
            unit.ok_or_else(|| format!("expected a unit from 1 to 7, not {}", limit.unit))?;
        Ok::<_, String>((limit.requests_per_unit, unit))
    });
    Ok(DescriptorCall { operation, limit: limit.transpose()? })
}

/// The evaluation of one descriptor.
struct DescriptorEvaluation<'a, 's> {
    context: &'a EnvoyContext,
    stats: &'a Stats,
    rules: &'a RuleSnapshot,
    domain: &'a str,
    descriptor: &'a Descriptor<'a>,
    /// The rules that match the descriptor.
    matches: &'a [Match<'s>],
    call: DescriptorCall,
    now: Timestamp,
    /// The decision for the span of the call, if spans are recorded.
    traced: Option<&'a SpanDecision>,
}

impl DescriptorEvaluation<'_, '_> {
    /// Checks the lengths of all keys that may be charged.
    fn check_keys(&self) -> Result<(), String> {
        let decider = &self.context.decider;
        let (lengths, store) = match self.call.limit {
            Some(limit) if self.matches.is_empty() => {
                let key = key(self.domain, self.descriptor, limit);
                (KeyLengthError::check(key.len()), decider.check_key(&key))
            }
            _ => (check_keys(self.matches), decider.check_keys(self.matches)),
        };
        lengths.map_err(|error| error.to_string())?;
        store.map_err(|error| error.to_string())
    }

    async fn outcome(self) -> Result<DescriptorOutcome, Status> {
        let matches = self.matches;
        if matches.is_empty() {
            return match self.call.limit {
                // Boxed, because few requests have limits, and all futures would have its size.
                Some((requests, unit)) => Box::pin(self.request_limit(requests, unit)).await,
                None => Ok(DescriptorOutcome::NoRule),
            };
        }
        let decider = &self.context.decider;
        let outcome = decider.evaluate(self.rules, matches, self.call.operation, self.now).await;
        let outcome = outcome.map_err(|error| status_of(&error))?;
        for (found, it) in matches.iter().zip(&outcome.matches) {
            self.count(found, it)?;
        }
        let Some(limit) = outcome.descriptor_limit(matches) else {
            let unlimited = matches.iter().any(|it| it.treatment == Treatment::Unlimited);
            return Ok(if unlimited {
                DescriptorOutcome::Unlimited
            } else {
                DescriptorOutcome::NoRule
            });
        };
        let (found, it) = (&matches[limit.found], &outcome.matches[limit.found]);
        Ok(DescriptorOutcome::Limited(self.limited(found, it, limit.mode)))
    }

    /// Counts the decision of an enforced match.
    fn count(&self, found: &Match<'_>, outcome: &MatchOutcome) -> Result<(), Status> {
        let (Some(decision), false) = (&outcome.decision, found.shadow) else { return Ok(()) };
        self.check_fallback(outcome.source, outcome.allowed)?;
        match found.charges.get(outcome.charge) {
            Some(charge) => {
                let cause = Cause { rule: Some(found.rule.name()), policy: &charge.policy };
                self.record(&charge.key, outcome.source, decision, cause);
            }
            None => self.stats.decided(outcome.source, decision),
        }
        Ok(())
    }

    /// Counts a decision, and notes it for the span of the call.
    fn record(&self, key: &[u8], source: Source, decision: &Decision, cause: Cause<'_>) {
        self.stats.record(key, source, decision, cause);
        if let Some(traced) = self.traced {
            traced.note(source, decision, cause);
        }
    }

    /// The limit or block of a match, for the response.
    fn limited(&self, found: &Match<'_>, outcome: &MatchOutcome, mode: EnvoyMode) -> LimitStatus {
        let name = match found.wire {
            Some(wire) => wire.name.unwrap_or_default(),
            None => found.rule.name(),
        };
        let rate = |(requests_per_unit, unit): (u32, Unit)| RateLimit {
            requests_per_unit,
            unit: unit.into(),
            name: name.to_owned(),
        };
        let of_rule = found
            .wire
            .and_then(|wire| wire.rate)
            .map(|(requests, unit)| rate((requests, from_rules(unit))));
        let Some(decision) = outcome.decision else {
            let limit = of_rule.unwrap_or_else(|| rate((0, Unit::Second)));
            return LimitStatus::blocked(mode, limit);
        };
        let policy = found.charges.get(outcome.charge).map(|it| &*it.policy);
        let binding = policy.and_then(|it| it.limits().get(decision.binding));
        let of_policy = || Some(rate(per_unit(binding?)));
        let limit = of_rule.or_else(of_policy).unwrap_or_default();
        let mut limited = limited(&decision, policy, mode, limit);
        if self.context.config.metadata {
            let metadata = found.rule.envoy().and_then(|it| it.metadata.as_ref());
            limited.metadata = metadata.and_then(response_metadata);
        }
        limited
    }

    /// Fails the call for a fallback denial, unless the settings say otherwise.
    fn check_fallback(&self, source: Source, allowed: bool) -> Result<(), Status> {
        let fails = self.context.fallback_denial == FallbackDenial::Unavailable;
        if source == Source::Fallback && !allowed && fails {
            return Err(unavailable(&"the store is unavailable"));
        }
        Ok(())
    }

    /// Applies a limit that comes with the descriptor, in a domain without rules.
    async fn request_limit(
        &self,
        requests: u32,
        unit: RuleUnit,
    ) -> Result<DescriptorOutcome, Status> {
        let wire_unit = from_rules(unit).into();
        let rate = RateLimit { requests_per_unit: requests, unit: wire_unit, name: String::new() };
        let Some(policy) = unit.policy(requests) else {
            return Ok(DescriptorOutcome::Limited(LimitStatus::blocked(EnvoyMode::Enforced, rate)));
        };
        let key = key(self.domain, self.descriptor, (requests, unit));
        let operation = match self.call.operation {
            RuleOperation::Take(hits) => Operation::Take(hits),
            RuleOperation::Peek(hits) => Operation::Peek(hits),
            RuleOperation::Refund(hits) => Operation::Refund(hits),
        };
        let prepared =
            PreparedPolicy::new(&policy).on_error(self.context.decider.defaults.on_error);
        let (decider, keyed) =
            (&self.context.decider, KeyedOperation { key: &key, policy: &prepared, operation });
        let answer = decider.decide(keyed.into(), self.now).await;
        let answer = answer.map_err(|error| status_of(&error))?;
        decider.note(&keyed, answer.source, &answer.decision, self.now, None);
        self.check_fallback(answer.source, answer.decision.allowed())?;
        self.record(&key, answer.source, &answer.decision, Cause::policy(&policy));
        Ok(DescriptorOutcome::Limited(limited(
            &answer.decision,
            Some(&policy),
            EnvoyMode::Enforced,
            rate,
        )))
    }
}

/// A decision of a policy, for the response.
fn limited(
    decision: &Decision,
    policy: Option<&Policy>,
    mode: EnvoyMode,
    limit: RateLimit,
) -> LimitStatus {
    let reset = match decision.outcome {
        Outcome::Deny { retry: Retry::After(wait) } => wait,
        Outcome::Deny { retry: Retry::Never } | Outcome::Allow { .. } => {
            policy.map_or(decision.reset_after, |policy| reset_after(policy, decision))
        }
    };
    let (allowed, remaining) = (decision.allowed(), decision.remaining);
    LimitStatus { allowed, mode, limit, remaining, reset, metadata: None }
}

/// `INVALID_ARGUMENT` if the request is at fault, else [`unavailable`].
fn status_of(error: &StoreError) -> Status {
    match error {
        StoreError::Key(text) | StoreError::Arguments(text) => Status::invalid_argument(text),
        error => unavailable(&error_reply(error)),
    }
}

/// `UNAVAILABLE`: Envoy applies its own `failure_mode_deny`.
fn unavailable(why: &dyn std::fmt::Display) -> Status {
    Status::unavailable(format!("nothing was decided: {why}"))
}

/// The key of a descriptor with its own limit, different for each descriptor and limit.
fn key(domain: &str, descriptor: &Descriptor<'_>, (requests, unit): (u32, RuleUnit)) -> Vec<u8> {
    let mut key = b"limit".to_vec();
    let limit = format!("{requests}/{}", unit.name());
    let entries = descriptor.entries.iter().flat_map(|(key, value)| [*key, *value]);
    for part in [&*limit, domain].into_iter().chain(entries) {
        key.extend_from_slice(format!(":{}:", part.len()).as_bytes());
        key.extend_from_slice(part.as_bytes());
    }
    key
}

/// Units of Envoy, and the same units of rules, the shortest first.
const UNITS: [(Unit, RuleUnit); 7] = [
    (Unit::Second, RuleUnit::Second),
    (Unit::Minute, RuleUnit::Minute),
    (Unit::Hour, RuleUnit::Hour),
    (Unit::Day, RuleUnit::Day),
    (Unit::Week, RuleUnit::Week),
    (Unit::Month, RuleUnit::Month),
    (Unit::Year, RuleUnit::Year),
];

/// The unit of Envoy for one of rules.
pub(super) fn from_rules(unit: RuleUnit) -> Unit {
    UNITS.iter().find(|(_, it)| *it == unit).map_or(Unit::Unknown, |(unit, _)| *unit)
}

/// The unit of rules for one of Envoy; `None` for an unknown one.
pub(super) fn to_rules(unit: Unit) -> Option<RuleUnit> {
    UNITS.iter().find(|(it, _)| *it == unit).map(|(_, unit)| *unit)
}

/// The length of a unit. A month is 30 days and a year 365.
fn period(unit: RuleUnit) -> Duration {
    Duration::from_secs(unit.seconds().into())
}

/// A limit in Envoy's units: exact if its period is one of them, otherwise the same rate per
/// the shortest longer unit, rounded down, but at least 1.
pub(super) fn per_unit(limit: &Limit) -> (u32, Unit) {
    let (units, period) = limit.rate();
    if let Some((unit, _)) = limit.calendar() {
        let unit = match unit {
            CalendarUnit::Day => Unit::Day,
            CalendarUnit::Week => Unit::Week,
            CalendarUnit::Month => Unit::Month,
            CalendarUnit::Year => Unit::Year,
        };
        return (units, unit);
    }
    let longer = UNITS.into_iter().find(|(_, unit)| self::period(*unit) >= period);
    let (unit, rule_unit) = longer.unwrap_or((Unit::Year, RuleUnit::Year));
    let scaled = u128::from(units) * self::period(rule_unit).as_micros() / period.as_micros();
    (u32::try_from(scaled).unwrap_or(u32::MAX).max(1), unit)
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future as _,
        pin::pin,
        task::{Context, Poll, Waker},
        time::Duration,
    };

    use sluicegate_core::{PolicySettings, apply};
    use sluicegate_memory::MemoryStore;
    use sluicegate_proto::descriptor::rate_limit_descriptor::{Entry, RateLimitOverride};
    use sluicegate_rules::RuleSet;

    use super::*;
    use crate::{
        EnvoyConfig, budgets::buffers::BufferBudget, clock::ServerClock, decide::Decider,
        policies::rule_store::RuleStore, store::open::OpenStore,
    };

    fn context() -> EnvoyContext {
        let store = OpenStore::from(MemoryStore::new());
        let rules = Arc::new(RuleStore::of(RuleSet::default()));
        let clock = ServerClock::system();
        EnvoyContext {
            decider: Arc::new(Decider::new(store, rules, clock, PolicySettings::default())),
            config: EnvoyConfig::default(),
            fallback_denial: FallbackDenial::default(),
            input_timeout: Duration::ZERO,
            buffers: Arc::new(BufferBudget::new(1 << 20)),
            quotas: Arc::default(),
            quota_turns: Semaphore::new(1),
            started: Timestamp::EPOCH,
            telemetry: None,
        }
    }

    /// Each descriptor has the limit, the count and the reset of its own unit.
    #[test]
    fn decide_the_same_entries_with_other_limits_are_two_counts() {
        // 00:30 on a day in UTC.
        let now = Timestamp::saturating_from_micros((1_700_006_400 + 1_800) * 1_000_000);
        let descriptor = |requests_per_unit, unit: Unit| RateLimitDescriptor {
            entries: vec![Entry { key: "user".to_owned(), value: "ann".to_owned() }],
            limit: Some(RateLimitOverride { requests_per_unit, unit: unit.into() }),
            ..RateLimitDescriptor::default()
        };
        let request = RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![descriptor(2, Unit::Hour), descriptor(9, Unit::Day)],
            hits_addend: 1,
        };
        let (context, stats, lane) = (context(), Stats::default(), Semaphore::new(1));
        let decided = || {
            let mut deciding = pin!(decide(&context, &stats, &lane, &request, now));
            let mut waker = Context::from_waker(Waker::noop());
            let outcomes = loop {
                if let Poll::Ready(outcomes) = deciding.as_mut().poll(&mut waker) {
                    break outcomes;
                }
            };
            let status = |it| match it {
                DescriptorOutcome::Limited(it) => (it.allowed, it.remaining, it.reset.as_secs()),
                _ => panic!("no limit"),
            };
            outcomes.unwrap().into_iter().map(status).collect::<Vec<_>>()
        };
        let (hour, day) = (1_800, 23 * 3_600 + 1_800);
        assert_eq!(decided(), [(true, 1, hour), (true, 8, day)]);
        assert_eq!(decided(), [(true, 0, hour), (true, 7, day)]);
        assert_eq!(decided(), [(false, 0, hour), (true, 6, day)]);
    }

    /// Limit, remaining units and reset are of one limit, the binding one.
    #[test]
    fn status_of_several_limits_describes_the_binding_one() {
        let policy: Policy = "fixed-window:2/1m,fixed-window:100000/365d".parse().unwrap();
        let mut entry = None;
        for expected in [(true, 1, 60), (true, 0, 60), (false, 0, 60)] {
            let take = Operation::Take(1);
            let decision = apply(&policy, &mut entry, Timestamp::EPOCH, take).unwrap();
            let limit = RateLimit::default();
            let status = limited(&decision, Some(&policy), EnvoyMode::Enforced, limit);
            let found = (status.allowed, status.remaining, status.reset.as_secs());
            assert_eq!(found, expected);
        }
    }

    /// A call that has taken a turn already yields before its next descriptor, and decides all of them.
    #[test]
    fn decide_late_call_yields_between_its_descriptors() {
        let (context, stats) = (context(), Stats::default());
        let limit = RateLimitOverride { requests_per_unit: 2, unit: Unit::Year.into() };
        let descriptor = RateLimitDescriptor {
            entries: vec![Entry { key: "k".to_owned(), value: "v".to_owned() }],
            limit: Some(limit),
            ..RateLimitDescriptor::default()
        };
        let request = RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![descriptor; 3],
            hits_addend: 1,
        };
        let begun = context.decider.now().as_micros() - 1_000;
        let begun = Timestamp::saturating_from_micros(begun);
        let lane = Semaphore::new(0);
        let mut deciding = pin!(decide(&context, &stats, &lane, &request, begun));
        let mut waker = Context::from_waker(Waker::noop());
        assert!(deciding.as_mut().poll(&mut waker).is_pending(), "it does not yield");
        assert!(deciding.as_mut().poll(&mut waker).is_pending(), "it is not in the lane");
        lane.add_permits(1);
        let outcomes = loop {
            if let Poll::Ready(outcomes) = deciding.as_mut().poll(&mut waker) {
                break outcomes.unwrap();
            }
        };
        let passed = outcomes.iter().map(|it| match it {
            DescriptorOutcome::Limited(status) => status.allowed,
            _ => panic!("no limit"),
        });
        assert_eq!(passed.collect::<Vec<_>>(), [true, true, false]);
    }
}

#[cfg(test)]
mod unit_tests;
