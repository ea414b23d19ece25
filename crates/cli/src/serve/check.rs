//! Settings that need each other, or exclude each other.

use anyhow::bail;
use clap::{ArgMatches, parser::ValueSource};

use crate::usage::Origins;

/// A setting, and the one that it means nothing without.
const NEEDS: [(&str, &str); 18] = [
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
];

/// Two settings of which one must go, and why.
const EXCLUDES: [(&str, &str, &str); 5] = [
    ("state-file", "store", "the store keeps the state"),
    ("max-memory", "store", "the state is in the store"),
    ("when-full", "store", "the state is in the store"),
    ("state-file", "test-clock", "the state of a test clock is not kept"),
    ("store-prefix", "test-clock", "keys of a test clock have the prefix `sg:test:`"),
];

pub(super) fn check(serve: &ArgMatches, origins: &Origins<'_>) -> anyhow::Result<()> {
    let given = |name: &str| {
        let source = serve.value_source(&name.replace('-', "_"));
        matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
            && (name != "test-clock" || serve.get_flag("test_clock"))
    };
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
