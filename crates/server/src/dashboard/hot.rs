//! The keys that are asked about most, and those that are denied most, as a frame tells them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

use super::sources::Sources;
use crate::{
    DashboardMode,
    stats::{
        Busiest, Count, DeniedBy, Denier, KeyFilter, MAX_SAMPLED_KEY, Scale, Sketch, Sketches,
        Span, UNIT,
    },
};

/// So many keys are told of each kind.
const TOLD: usize = 10;
/// Keys that one list shows.
const LISTED: usize = 200;

/// Keys by how often they are asked about.
#[derive(Debug, Serialize)]
pub(super) struct Hot {
    /// Whether keys are `shown`, `masked`, or `off`.
    keys: &'static str,
    /// One decision in so many was looked at, on the worker where it was fewest.
    every: u64,
    requested: Vec<HotKey>,
    denied: Vec<HotKey>,
}

/// A key, and how often a second it is asked about, lately.
#[derive(Debug, Serialize)]
struct HotKey {
    /// As text that can be shown.
    key: String,
    /// Its bytes, where the text does not say them.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    /// Whether it is only the front of the key, or a mask: it cannot be looked up.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partly: bool,
    /// At most so many a second,
    rate: f64,
    /// and at least so many less, by the sketch;
    over: f64,
    /// and so many more or less, by the samples: twice their standard deviation.
    noise: f64,
    /// The limit that denied it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_by: Option<DeniedBy>,
    /// Whether an operator blocks it now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    blocked: bool,
}

/// What `sketches` of all workers together tell.
pub(super) fn hot(sources: &Sources, sketches: Vec<Sketches>) -> Hot {
    let keys = match sources.display.mode {
        DashboardMode::On => "shown",
        DashboardMode::Masked => "masked",
        DashboardMode::NoKeys | DashboardMode::Off => "off",
    };
    let every = sources.stats.all().map(|stats| stats.sampler.sample_rate()).max().unwrap_or(1);
    let span = sketches.first().map(|it| it.span).unwrap_or_default();
    let (asked, denied): (Vec<_>, Vec<_>) =
        sketches.into_iter().map(|it| (it.all, it.denied)).unzip();
    let (all, denied) = (Sketch::top(&asked, usize::MAX), Sketch::top(&denied, usize::MAX));
    let first = |counts: &[Count]| {
        counts.iter().take(TOLD).map(|count| told(sources, count, span, every)).collect()
    };
    let hot = Hot { keys, every, requested: first(&all), denied: first(&denied) };
    sources.known.replace(all, denied, Scale { span, every });
    hot
}

/// Which of the sampled keys to list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    denied: bool,
}

/// Sampled keys, the ones that are denied most first.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    /// All that match.
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

/// Lists the sampled keys that are wanted.
pub(super) fn listed(sources: &Sources, wanted: &Wanted) -> Listed {
    // A prefix would say what a tag stands for.
    let masked = sources.display.mode == DashboardMode::Masked;
    let prefix = if masked { "" } else { &*wanted.prefix };
    let filter = KeyFilter { prefix: prefix.as_bytes(), denied: wanted.denied };
    let Busiest { count, keys, scale: Scale { span, every } } =
        sources.known.busiest(LISTED, filter);
    let keys = keys.into_iter().map(|mut it| {
        it.count.denier = it.denied.as_mut().and_then(|denied| denied.denier.take());
        let denied = it.denied.map_or(0.0, |it| round(span.rate(it.count)));
        ListedKey { key: told(sources, &it.count, span, every), denied }
    });
    Listed { count, keys: keys.collect() }
}

fn round(rate: f64) -> f64 {
    (rate * 1000.0).round() / 1000.0
}

fn told(sources: &Sources, count: &Count, span: Span, every: u64) -> HotKey {
    let display = &sources.display;
    let Count { key, count, error, denier } = count;
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
        denied_by: denier.as_ref().map(Denier::shown),
    }
}
