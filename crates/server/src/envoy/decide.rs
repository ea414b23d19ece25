//! From descriptors to verdicts: what is to be asked of the store, and what its answers mean.

use sluicegate_core::{Align, Decision, FixedWindow, Limit, Operation, Policy, Retry, Window};
use sluicegate_proto::{
    descriptor::{RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride},
    rls::{
        RateLimitRequest,
        rate_limit_response::{RateLimit, rate_limit::Unit},
    },
};
use tonic::Status;

use super::{
    answer::{Limited, Mode, Verdict},
    unit,
};
use crate::shared::Shared;

/// Descriptors of a request, and entries of a descriptor, at the most.
const MOST: usize = 256;

/// Decides on every descriptor of `request`, each for itself.
pub(super) async fn decide(
    shared: &Shared,
    worker: usize,
    request: &RateLimitRequest,
) -> Result<Vec<Verdict>, Status> {
    check(request)?;
    let now = shared.now();
    let mut verdicts = Vec::with_capacity(request.descriptors.len());
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        let wrong = |text| Status::invalid_argument(format!("descriptor {index}: {text}"));
        let operation = operation(request, descriptor).map_err(wrong)?;
        let Some(limit) = &descriptor.limit else {
            verdicts.push(Verdict::Free);
            continue;
        };
        let limit = brought(limit).map_err(wrong)?;
        let key = key(&request.domain, descriptor);
        let policy =
            Policy::try_from(vec![limit.clone()]).map_err(|error| wrong(error.to_string()))?;
        let decision = shared
            .store
            .apply(&key, &policy, now, operation)
            .map_err(|error| wrong(error.to_string()))?;
        shared.workers[worker].decided(&decision);
        verdicts.push(limited(decision, &limit, "", Mode::Enforced));
    }
    Ok(verdicts)
}

/// A limit that a request brings.
fn brought(limit: &RateLimitOverride) -> Result<Limit, String> {
    let unit = Unit::try_from(limit.unit).unwrap_or_default();
    let Some(period) = unit::period(unit) else {
        return Err(format!("unit {} of its limit is outside 1..=7", limit.unit));
    };
    let window = Window::Span { period, align: Align::Clock };
    let limit = FixedWindow::new(limit.requests_per_unit, &window, true);
    Ok(Limit::FixedWindow(limit.map_err(|error| error.to_string())?))
}

/// What a decision means for Envoy.
fn limited(decision: Decision, limit: &Limit, name: &str, mode: Mode) -> Verdict {
    let (requests_per_unit, unit) = unit::per_unit(limit);
    let reset = match decision.retry() {
        Some(Retry::After(wait)) => wait,
        Some(Retry::Never) | None => decision.reset_after,
    };
    Verdict::Limited(Limited {
        allowed: decision.allowed(),
        mode,
        limit: RateLimit { requests_per_unit, unit: unit.into(), name: name.to_owned() },
        remaining: decision.remaining,
        reset,
    })
}

/// The key of a descriptor that brings its limit: no two descriptors have the same.
fn key(domain: &str, descriptor: &RateLimitDescriptor) -> Vec<u8> {
    let mut key = b"envoy".to_vec();
    let entries = descriptor.entries.iter().flat_map(|it| [&it.key, &it.value]);
    for part in std::iter::once(domain).chain(entries.map(String::as_str)) {
        key.extend_from_slice(format!(":{}:", part.len()).as_bytes());
        key.extend_from_slice(part.as_bytes());
    }
    key
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

/// What is asked about a descriptor. One that costs nothing only asks whether a request of cost 1
/// would pass.
fn operation(
    request: &RateLimitRequest,
    descriptor: &RateLimitDescriptor,
) -> Result<Operation, String> {
    let cost = match descriptor.hits_addend {
        None => request.hits_addend.max(1),
        Some(addend) => u32::try_from(addend)
            .map_err(|_| format!("hits_addend {addend} is outside 0..={}", u32::MAX))?,
    };
    Ok(match cost {
        cost if descriptor.is_negative_hits => Operation::Refund(cost),
        0 => Operation::Peek(1),
        cost => Operation::Take(cost),
    })
}
