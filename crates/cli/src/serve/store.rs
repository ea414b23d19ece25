//! A store elsewhere: where it is, and how it is asked.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use sluicegate_redis::{OnError, Share};
use sluicegate_server::{FallbackDenial, StoreConfig};

#[derive(Args, Debug)]
pub(crate) struct Store {
    /// Keep the state in Redis or Valkey, together with other servers: redis://HOST, rediss://HOST,
    /// redis+cluster://HOST,HOST or redis+sentinel://HOST,HOST/NAME
    #[arg(long, env = "SLUICEGATE_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
    /// What every key begins with in the store
    #[arg(long, env = "SLUICEGATE_STORE_PREFIX", value_name = "TEXT", requires = "store")]
    store_prefix: Option<String>,
    /// How long the store may take to decide, in milliseconds; 15 if not given
    #[arg(
        long,
        env = "SLUICEGATE_STORE_DEADLINE",
        value_name = "MS",
        requires = "store",
        value_parser = clap::value_parser!(u64).range(1..=60_000)
    )]
    store_deadline: Option<u64>,
    /// The longest that a denial is repeated without asking the store, in milliseconds; 0: never;
    /// 1000 if not given
    #[arg(
        long,
        env = "SLUICEGATE_STORE_DENIAL_CACHE",
        value_name = "MS",
        requires = "store",
        value_parser = clap::value_parser!(u64).range(0..=3_600_000)
    )]
    store_denial_cache: Option<u64>,
    /// The authority that the store's certificate is from (PEM); the system's if not given
    #[arg(long, env = "SLUICEGATE_STORE_CA", value_name = "PATH", requires = "store")]
    store_ca: Option<PathBuf>,
    /// The certificate to show to the store (PEM)
    #[arg(long, env = "SLUICEGATE_STORE_CERT", value_name = "PATH", requires_all = ["store", "store_key"])]
    store_cert: Option<PathBuf>,
    /// The private key of that certificate (PEM)
    #[arg(long, env = "SLUICEGATE_STORE_KEY", value_name = "PATH", requires = "store_cert")]
    store_key: Option<PathBuf>,
    /// What to answer while the store is away: `deny`, `allow`, `local` (decide here) or `local=1/N`
    /// (under that share of the policy); `deny` if not given
    #[arg(
        long,
        env = "SLUICEGATE_ON_ERROR",
        value_name = "deny|allow|local[=1/N]",
        requires = "store",
        value_parser = on_error
    )]
    on_error: Option<OnError>,
    /// The status that HTTP answers when a request is denied because the store is unavailable; 429 also
    /// makes it OVER_LIMIT for Envoy, and not UNAVAILABLE
    #[arg(
        long,
        env = "SLUICEGATE_FALLBACK_DENIAL_STATUS",
        value_name = "503|429",
        requires = "store",
        value_parser = fallback_denial
    )]
    fallback_denial_status: Option<FallbackDenial>,
}

impl Store {
    /// What was said of a store, if there is to be one.
    pub(super) fn config(self) -> Option<(StoreConfig, FallbackDenial)> {
        let mut config = StoreConfig::at(self.store?);
        let options = &mut config.options;
        options.prefix = self.store_prefix.unwrap_or_default().into_bytes();
        options.deadline = self.store_deadline.map_or(options.deadline, Duration::from_millis);
        options.max_denial_cache =
            self.store_denial_cache.map_or(options.max_denial_cache, Duration::from_millis);
        options.tls.ca = self.store_ca;
        options.tls.client = self.store_cert.zip(self.store_key);
        config.on_error = self.on_error.unwrap_or_default();
        Some((config, self.fallback_denial_status.unwrap_or_default()))
    }
}

fn on_error(text: &str) -> Result<OnError, String> {
    let share = |text: &str| {
        let (part, whole) = text.split_once('/')?;
        Share::of(part.parse().ok()?, whole.parse().ok()?).ok()
    };
    let local = text.strip_prefix("local").map(|rest| match rest.strip_prefix('=') {
        None => rest.is_empty().then_some(Share::ALL),
        Some(text) => share(text),
    });
    match (text, local) {
        ("deny", _) => Ok(OnError::Deny),
        ("allow", _) => Ok(OnError::Allow),
        (_, Some(Some(share))) => Ok(OnError::Local(share)),
        _ => Err("`deny`, `allow`, `local` or `local=1/4` would do".to_owned()),
    }
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
    fn what_is_answered_without_a_store() {
        for (text, expected) in [
            ("deny", Some(OnError::Deny)),
            ("allow", Some(OnError::Allow)),
            ("local", Some(OnError::Local(Share::ALL))),
            ("local=1/4", Share::of(1, 4).ok().map(OnError::Local)),
            ("local=4/1", None),
            ("local=", None),
            ("local1/4", None),
            ("Deny", None),
            ("", None),
        ] {
            assert_eq!(on_error(text).ok(), expected, "{text}");
        }
    }
}
