//! Rules in a file: which request is limited by which policy, and under which key.
//!
//! Text goes in, a [`RuleSet`] comes out; a [`Request`] goes in, the rules that apply to it come out,
//! each with its keys and policies. Nothing here decides, does I/O or can tell the time.
//!
//! The text is in our own form (`policies`, `rules`), or in that of envoyproxy/ratelimit (`domain`,
//! `descriptors`), in YAML or TOML. See `docs/rules.md`.

mod attribute;
mod card;
mod condition;
mod config_map;
mod describe;
mod draft;
mod envoy;
mod error;
mod example;
pub mod fuzz;
mod glob;
mod index;
mod key;
mod long_values;
mod native;
mod nested;
mod network;
mod path;
mod query;
mod request;
mod rule;
mod set;
mod texts;
mod toml_text;
mod tree;
mod trial;
mod yaml;

pub use attribute::Attribute;
pub use describe::Described;
pub use envoy::{Descriptor, EnvoyLimit, Metadata, Unit, Wire};
pub use error::{Place, RulesError};
pub use example::Example;
pub use key::Part;
pub use request::{Headers, Request};
pub use rule::{Charge, Charges, Cost, Level, Match, OnError, Rule, Treatment};
pub use set::{Format, Matches, RuleSet, Source};
pub use sluicegate_headers::PathOptions;

/// The longest name in metrics, in bytes: what is beyond is cut off.
pub const MAX_METRIC_NAME: usize = 128;
