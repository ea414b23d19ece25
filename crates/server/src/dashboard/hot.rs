//! The keys with most requests, and those with most denials.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use sluicegate_core::Timestamp;

use super::sources::Sources;
use crate::{
    DashboardMode,
    stats::{
        Busiest, DeniedBy, Denier, FadedTime, HeavyHitter, HeavyHitters, KeyFilter, KeySamples,
        MAX_SAMPLED_KEY, Scale, UNIT,
    },
};

/// Maximum number of keys of each kind in a frame.
const MAX_HOT_KEYS: usize = 10;
/// Maximum number of keys in one list.
const MAX_LISTED_KEYS: usize = 200;

/// The hot keys of a frame.
#[derive(Debug, Serialize)]
pub(super) struct Hot {
    /// Whether keys are `shown`, `masked`, or `off`.
    keys: &'static str,
    /// Decisions per sample, on the worker with the fewest samples.
    every: u64,
    /// When sampling started: keys of earlier requests are unknown.
    since_us: u64,
    requested: Vec<HotKey>,
    denied: Vec<HotKey>,
}

/// A key and its recent rate.
#[derive(Debug, Serialize)]
struct HotKey {
    /// The key as printable text.
    key: String,
    /// Its bytes, if the text does not contain them.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    /// Whether the text is a prefix or a mask, so that the key cannot be looked up.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partly: bool,
    /// Upper bound on its requests per second.
    rate: f64,
    /// Subtracted from `rate`, it gives the lower bound.
    over: f64,
    /// Twice the standard deviation of sampling.
    noise: f64,
    /// The limit that denied it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_by: Option<DeniedBy>,
    /// Whether an operator blocks it now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    blocked: bool,
}

/// The hot keys by the `samples` of all workers, taken since `start`.
pub(super) fn hot(sources: &Sources, start: Timestamp, samples: Vec<KeySamples>) -> Hot {
    let keys = match sources.display.mode {
        DashboardMode::On => "shown",
        DashboardMode::Masked => "masked",
        DashboardMode::NoKeys | DashboardMode::Off => "off",
    };
    let every = sources.stats.all().map(|stats| stats.sampler.sample_rate()).max().unwrap_or(1);
    let span = samples.first().map(|it| it.span).unwrap_or_default();
    let (all_keys, denied): (Vec<_>, Vec<_>) =
        samples.into_iter().map(|it| (it.all, it.denied)).unzip();
    let (all, denied) =
        (HeavyHitters::top(&all_keys, usize::MAX), HeavyHitters::top(&denied, usize::MAX));
    let first = |counts: &[HeavyHitter]| {
        counts.iter().take(MAX_HOT_KEYS).map(|count| hot_key(sources, count, span, every)).collect()
    };
    let since_us = start.as_micros();
    let hot = Hot { keys, every, since_us, requested: first(&all), denied: first(&denied) };
    sources.sampled.replace(all, denied, Scale { span, every });
    hot
}

/// Which of the sampled keys to list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListRequest {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    denied: bool,
}

/// Sampled keys, those with most denials first.
#[derive(Debug, Serialize)]
pub(super) struct KeyList {
    /// The number of all matching keys.
    count: usize,
    keys: Vec<ListedKey>,
}

#[derive(Debug, Serialize)]
struct ListedKey {
    #[serde(flatten)]
    key: HotKey,
    /// Denials per second.
    denied: f64,
}

/// Lists the requested sampled keys.
pub(super) fn listed(sources: &Sources, request: &ListRequest) -> KeyList {
    // A filter by prefix would reveal masked keys.
    let masked = sources.display.mode == DashboardMode::Masked;
    let prefix = if masked { "" } else { &*request.prefix };
    let filter = KeyFilter { prefix: prefix.as_bytes(), denied: request.denied };
    let Busiest { count, keys, scale: Scale { span, every } } =
        sources.sampled.busiest(MAX_LISTED_KEYS, filter);
    let keys = keys.into_iter().map(|mut it| {
        it.count.denier = it.denied.as_mut().and_then(|denied| denied.denier.take());
        let denied = it.denied.map_or(0.0, |it| round(span.rate(it.count)));
        ListedKey { key: hot_key(sources, &it.count, span, every), denied }
    });
    KeyList { count, keys: keys.collect() }
}

fn round(rate: f64) -> f64 {
    (rate * 1000.0).round() / 1000.0
}

fn hot_key(sources: &Sources, count: &HeavyHitter, span: FadedTime, every: u64) -> HotKey {
    let display = &sources.display;
    let HeavyHitter { key, count, error, denier } = count;
    let noise = if every == 1 { 0 } else { 2 * (count * every).isqrt() * UNIT.isqrt() };
    let masked = display.mode == DashboardMode::Masked;
    let text = std::str::from_utf8(key).ok().filter(|text| !text.contains(char::is_control));
    HotKey {
        key: match text {
            _ if masked => display.mask(key),
            Some(text) => text.to_owned(),
            None => key.escape_ascii().to_string(),
        },
        key_base64: (!masked && text.is_none()).then(|| STANDARD.encode(key)),
        partly: masked || key.len() == MAX_SAMPLED_KEY,
        rate: round(span.rate(*count)),
        over: round(span.rate(*error)),
        noise: round(span.rate(noise)),
        blocked: sources.decider.blocks.remaining(key, sources.decider.now()).is_some(),
        denied_by: denier.as_ref().map(Denier::to_denied_by),
    }
}
