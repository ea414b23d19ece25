//! Rules in a file: which request is limited by which policy, and under which key.
//!
//! A [`RuleSet`] is parsed from text; for a [`Request`], it returns the rules that apply, each with its keys
//! and policies. Nothing here decides, does I/O or reads a clock.
//!
//! The text is in the form of Sluicegate (`policies`, `rules`), or in that of envoyproxy/ratelimit (`domain`,
//! `descriptors`), in YAML or TOML. See `docs/rules.md`.

mod attribute;
mod builder;
mod cidr_block;
mod compiled_rule;
mod condition;
mod describe;
mod envoy;
mod error;
mod escape;
mod evaluation;
mod example;
mod example_runner;
mod glob;
mod index;
mod key;
mod long_values;
mod native;
mod parse;
mod path;
mod prefix_index;
mod query;
mod quota;
mod request;
mod rule;
mod set;
mod source;
mod toml_text;
mod tree;
mod yaml;

pub use attribute::Attribute;
pub use describe::RuleDescription;
pub use envoy::{Descriptor, EnvoyLimit, Metadata, Unit, Wire};
pub use error::{Position, RulesError};
pub use evaluation::{
    ChargeRequest, ChargeSet, DescriptorLimit, EnvoyMode, Evaluation, HoldDenial, MatchOutcome,
    RuleEvent, RuleOperation, RuleOutcome, check_keys, hold_answer, is_over_limit,
};
pub use example::Example;
pub use quota::QuotaTerms;
pub use request::{Headers, Request};
pub use rule::{Charge, Charges, Match, Rule, Treatment};
pub use set::{Matches, RuleSet};
pub use sluicegate_headers::PathOptions;
pub use source::{Format, RulesSource};

/// Maximum length of a name in metrics, in bytes; longer names are truncated.
pub const MAX_METRIC_NAME: usize = 128;
