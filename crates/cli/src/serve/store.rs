//! State in Redis or Valkey.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use sluicegate_core::OnError;
use sluicegate_redis::Options;
use sluicegate_server::{Config, FallbackDenial, StoreConfig};

use crate::values::{self, Choices};

#[derive(Args, Debug)]
pub(super) struct Store {
    /// Keep the state in Redis or Valkey, shared by all servers: redis://HOST, rediss://HOST,
    /// redis+cluster://HOST,HOST or redis+sentinel://HOST,HOST/NAME
    #[arg(long, value_name = "URL", value_parser = url)]
    store: Option<String>,
    /// Prefix of every key in the store
    #[arg(long, value_name = "PREFIX")]
    store_prefix: Option<String>,
    /// Time limit of a decision by the store
    #[arg(
        long,
        value_name = "DURATION",
        default_value = values::span_text(Options::default().deadline),
        value_parser = values::store_deadline
    )]
    store_deadline: Duration,
    /// Repeat a denial for up to this long without a request to the store; 0 disables it
    #[arg(long, value_name = "DURATION", default_value = values::span_text(Options::default().max_denial_cache), value_parser = values::denial_cache)]
    store_denial_cache: Duration,
    /// Authority of the store's certificate (PEM); otherwise those that the system trusts
    #[arg(long, value_name = "PATH")]
    store_ca: Option<PathBuf>,
    /// Client certificate for the store (PEM)
    #[arg(long, value_name = "PATH")]
    store_cert: Option<PathBuf>,
    /// Private key of --store-cert (PEM)
    #[arg(long, value_name = "PATH")]
    store_key: Option<PathBuf>,
    /// Decision while the store is unavailable: `deny`, `allow`, `local` (decide in this server) or
    /// `local=1/N` (the same under that share of the policy)
    #[arg(
        long,
        env = "SLUICEGATE_ON_ERROR",
        value_name = "deny|allow|local[=1/N]",
        default_value = values::word(PLAIN, &OnError::default()),
        value_parser = on_error
    )]
    on_error: OnError,
    /// Take up to this many units at once for a hot key, and decide its requests from them without a request to the store,
    /// under policies that can have leases; a rules file sets its own with `lease`
    #[arg(long, value_name = "UNITS", default_value = "0", value_parser = values::lease_or_none)]
    lease: u32,
    /// HTTP status of a denial that is due to an unavailable store; with 429, Envoy gets OVER_LIMIT
    /// instead of UNAVAILABLE
    #[arg(long, value_name = "503|429", default_value = FallbackDenial::default().status().to_string(), value_parser = fallback_denial)]
    fallback_denial_status: FallbackDenial,
}

/// Decisions that are one word.
const PLAIN: Choices<OnError> = &[("deny", "", OnError::Deny), ("allow", "", OnError::Allow)];

impl Store {
    pub(super) fn apply(self, config: &mut Config) {
        let Some(url) = self.store else { return };
        let mut store = StoreConfig::new(url);
        let options = &mut store.redis;
        options.prefix = self.store_prefix.unwrap_or_default().into_bytes();
        options.deadline = self.store_deadline;
        options.max_denial_cache = self.store_denial_cache;
        options.tls.ca = self.store_ca;
        options.tls.client = self.store_cert.zip(self.store_key);
        (store.on_error, store.lease) = (self.on_error, self.lease);
        (config.store, config.fallback_denial) = (Some(store), self.fallback_denial_status);
    }
}

/// A URL. The store reports all other errors, but cannot name the option, the variable or the line.
fn url(text: &str) -> Result<String, String> {
    match text.contains("://") {
        true => Ok(text.to_owned()),
        false => {
            Err("missing `://`: expected redis://HOST, rediss://HOST, redis+cluster://HOST,HOST \
                      or redis+sentinel://HOST,HOST/NAME"
                .to_owned())
        }
    }
}

fn on_error(text: &str) -> Result<OnError, &'static str> {
    let answers = |it: &OnError| *it != OnError::Fail;
    let expected = "expected deny, allow, local or a share such as `local=1/4`";
    text.parse().ok().filter(answers).ok_or(expected)
}

fn fallback_denial(status: &str) -> Result<FallbackDenial, String> {
    match status {
        "503" => Ok(FallbackDenial::Unavailable),
        "429" => Ok(FallbackDenial::TooManyRequests),
        _ => Err("expected 503 or 429".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_error_must_answer() {
        assert_eq!(on_error("local=1/4").ok(), "local=1/4".parse().ok());
        for text in ["fail", "local=4/1"] {
            assert!(on_error(text).is_err(), "{text}");
        }
    }
}
