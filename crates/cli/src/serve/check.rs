//! Settings that have no effect without, or beside, others.
//!
//! clap's `requires` and `conflicts_with` cannot say this: an error of the former does not name the option that needs
//! another, the latter counts a flag that the environment switches off, and neither depends on values or sources.

use anyhow::bail;
use clap::{ArgMatches, parser::ValueSource};

use crate::usage::{Origin, Origins};

/// When a setting has an effect.
#[derive(Debug)]
enum Need {
    /// If this one is set.
    With(&'static str),
    /// If this one is not set, and why.
    Without(&'static str, &'static str),
    /// Unless all of these have this value, and why.
    Unless(&'static [&'static str], &'static str, &'static str),
}

/// Settings, and what they need.
const NEEDS: [(&[&str], Need); 21] = [
    (&["tls-cert"], Need::With("tls-key")),
    (&["tls-key", "tls-client-ca"], Need::With("tls-cert")),
    (&["http-tls-cert"], Need::With("http-tls-key")),
    (&["http-tls-key", "http-tls-client-ca"], Need::With("http-tls-cert")),
    (&["grpc-tls-cert"], Need::With("grpc-tls-key")),
    (&["grpc-tls-key", "grpc-tls-client-ca"], Need::With("grpc-tls-cert")),
    (&["store-cert"], Need::With("store-key")),
    (&["store-key"], Need::With("store-cert")),
    (&["store-prefix", "store-deadline", "store-denial-cache", "store-ca"], Need::With("store")),
    (&["store-cert", "on-error", "fallback-denial-status"], Need::With("store")),
    (&["otlp-sample"], Need::With("otlp")),
    (&["snapshot-every"], Need::With("state-file")),
    (&["unix-permissions"], Need::With("unix")),
    (&["state-file"], Need::Without("store", "the store keeps the state")),
    (&["max-memory", "when-full"], Need::Without("store", "the state is in the store")),
    (&["state-file"], Need::Without("test-clock", "the state of a test clock is not kept")),
    (
        &["store-prefix"],
        Need::Without("test-clock", "keys of a test clock have the prefix `sg:test:`"),
    ),
    (
        &[
            "http-tls-cert",
            "http-token",
            "http-allowed-hosts",
            "http-headers",
            "http-trusted-hops",
            "gate-uri-header",
            "gate-method-header",
            "gate-address-header",
            "dashboard",
        ],
        Need::Unless(&["http"], OFF, "it is a setting of HTTP"),
    ),
    (
        &[
            "grpc-tls-cert",
            "envoy-headers",
            "envoy-metadata",
            "grpc-max-age",
            "quota-max-streams",
            "quota-max-buckets",
        ],
        Need::Unless(&["grpc"], OFF, "it is a setting of gRPC"),
    ),
    (
        &["fallback-denial-status"],
        Need::Unless(&["http", "grpc"], OFF, "it is a setting of HTTP and gRPC"),
    ),
    (
        &["gate-address-header"],
        Need::Unless(&["http-trusted-hops"], "0", "addresses of clients are not read then"),
    ),
];
const OFF: &str = "off";

impl Need {
    fn is_met(&self, serve: &ArgMatches) -> bool {
        match self {
            Self::With(other) => is_given(serve, other),
            Self::Without(other, _) => !is_given(serve, other),
            Self::Unless(others, value, _) => others.iter().any(|other| {
                !values(serve, other).all(|actual| actual.eq_ignore_ascii_case(value))
            }),
        }
    }
}

/// Why a setting has no effect.
pub(super) fn unused(name: &str, serve: &ArgMatches) -> Option<String> {
    let (_, need) =
        NEEDS.iter().find(|(names, need)| names.contains(&name) && !need.is_met(serve))?;
    Some(match need {
        Need::With(other) => format!("{other} is not set"),
        Need::Without(other, _) => format!("{other} is set"),
        Need::Unless([other], value, _) => format!("{other} is {value}"),
        Need::Unless(others, value, _) => format!("{} are {value}", others.join(" and ")),
    })
}

/// Rejects settings that are given and have no effect.
pub(super) fn check(serve: &ArgMatches, origins: &Origins<'_>) -> anyhow::Result<()> {
    for (names, need) in NEEDS.iter().filter(|(_, need)| !need.is_met(serve)) {
        // The environment and a file may be those of many servers, some of which have the listener.
        let only_flags = matches!(need, Need::Unless(_, OFF, _));
        let counts = |name: &str| !only_flags || origins.origin(name) == Some(Origin::Flag);
        let Some(name) = names.iter().find(|name| is_given(serve, name) && counts(name)) else {
            continue;
        };
        let (before, called) = origins.call(name);
        let (others, reason) = match need {
            Need::With(other) => bail!("{before}missing --{other}: {called} needs it"),
            Need::Without(other, reason) => (origins.call(other).1, reason),
            Need::Unless(others, value, reason) => {
                let others = others.iter().map(|it| format!("{} `{value}`", origins.call(it).1));
                (others.collect::<Vec<_>>().join(" and "), reason)
            }
        };
        bail!("{before}invalid {called} together with {others}: {reason}; remove one of them");
    }
    Ok(())
}

/// Whether a setting has a value of its own. One that is switched off has none.
fn is_given(serve: &ArgMatches, name: &str) -> bool {
    let id = name.replace('-', "_");
    // The environment can switch a flag off.
    let flag = serve.try_get_one::<bool>(&id).ok().flatten();
    let source = serve.value_source(&id);
    matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
        && flag != Some(&false)
        && !values(serve, name).any(|value| value == OFF || value == "none")
}

/// The values of a setting as they are written.
fn values<'m>(serve: &'m ArgMatches, name: &str) -> impl Iterator<Item = &'m std::ffi::OsStr> {
    serve.get_raw(&name.replace('-', "_")).into_iter().flatten()
}
