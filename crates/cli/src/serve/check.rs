//! Settings that need each other, or exclude each other.

use anyhow::bail;
use clap::{ArgMatches, parser::ValueSource};

use crate::usage::Origins;

/// A setting, and the one that it requires.
const NEEDS: [(&str, &str); 19] = [
    ("tls-cert", "tls-key"),
    ("tls-key", "tls-cert"),
    ("tls-client-ca", "tls-cert"),
    ("http-tls-cert", "http-tls-key"),
    ("http-tls-key", "http-tls-cert"),
    ("http-tls-client-ca", "http-tls-cert"),
    ("grpc-tls-cert", "grpc-tls-key"),
    ("grpc-tls-key", "grpc-tls-cert"),
    ("grpc-tls-client-ca", "grpc-tls-cert"),
    ("store-prefix", "store"),
    ("store-deadline", "store"),
    ("store-denial-cache", "store"),
    ("store-ca", "store"),
    ("store-cert", "store-key"),
    ("store-key", "store-cert"),
    ("store-cert", "store"),
    ("on-error", "store"),
    ("fallback-denial-status", "store"),
    ("otlp-sample", "otlp"),
];

/// Two settings that exclude each other, and why.
const EXCLUDES: [(&str, &str, &str); 5] = [
    ("state-file", "store", "the store keeps the state"),
    ("max-memory", "store", "the state is in the store"),
    ("when-full", "store", "the state is in the store"),
    ("state-file", "test-clock", "the state of a test clock is not kept"),
    ("store-prefix", "test-clock", "keys of a test clock have the prefix `sg:test:`"),
];

/// Why a setting has no effect, given which settings have a value.
pub(super) fn unused(name: &str, given: impl Fn(&str) -> bool) -> Option<String> {
    let needed = NEEDS.iter().find(|(it, needed)| *it == name && !given(needed));
    if let Some((_, needed)) = needed {
        return Some(format!("{needed} is not set"));
    }
    let other = EXCLUDES.iter().find(|(it, other, _)| *it == name && given(other));
    other.map(|(_, other, _)| format!("{other} is set"))
}

pub(super) fn check(serve: &ArgMatches, origins: &Origins<'_>) -> anyhow::Result<()> {
    let given = |name: &str| is_given(serve, name);
    for (name, needed) in NEEDS {
        if given(name) && !given(needed) {
            let (before, called) = origins.call(name);
            bail!("{before}missing --{needed}: {called} needs it");
        }
    }
    for (name, other, reason) in EXCLUDES {
        if given(name) && given(other) {
            let ((before, called), (_, other)) = (origins.call(name), origins.call(other));
            bail!("{before}invalid {called} together with {other}: {reason}; remove one of them");
        }
    }
    Ok(())
}

/// Whether a setting has a value of its own. A flag that is off has none.
pub(super) fn is_given(serve: &ArgMatches, name: &str) -> bool {
    let source = serve.value_source(&name.replace('-', "_"));
    matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
        && (name != "test-clock" || serve.get_flag("test_clock"))
}
