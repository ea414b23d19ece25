//! Settings that need each other, or exclude each other.

use anyhow::bail;
use clap::{ArgMatches, parser::ValueSource};

use crate::{
    usage::{Origin, Origins},
    values::OptionalListener,
};

/// A setting, and the one that it requires.
const NEEDS: [(&str, &str); 21] = [
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
    ("snapshot-every", "state-file"),
    ("unix-permissions", "unix"),
];

/// Two settings that exclude each other, and why.
const EXCLUDES: [(&str, &str, &str); 5] = [
    ("state-file", "store", "the store keeps the state"),
    ("max-memory", "store", "the state is in the store"),
    ("when-full", "store", "the state is in the store"),
    ("state-file", "test-clock", "the state of a test clock is not kept"),
    ("store-prefix", "test-clock", "keys of a test clock have the prefix `sg:test:`"),
];

/// A listener, its protocol, and the settings that have no effect while it is off.
const LISTENERS: [(&str, &str, &[&str]); 2] = [
    (
        "http",
        "HTTP",
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
    ),
    ("grpc", "gRPC", &["grpc-tls-cert", "envoy-headers", "envoy-metadata", "grpc-max-age"]),
];

/// Why a setting has no effect.
pub(super) fn unused(name: &str, serve: &ArgMatches) -> Option<String> {
    let given = |name: &str| is_given(serve, name);
    let needed = NEEDS.iter().find(|(it, needed)| *it == name && !given(needed));
    if let Some((_, needed)) = needed {
        return Some(format!("{needed} is not set"));
    }
    let other = EXCLUDES.iter().find(|(it, other, _)| *it == name && given(other));
    if let Some((_, other, _)) = other {
        return Some(format!("{other} is set"));
    }
    let mut off = LISTENERS.iter().filter(|(listener, ..)| is_off(serve, listener));
    let (listener, ..) = off.find(|(.., names)| names.contains(&name))?;
    Some(format!("{listener} is off"))
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
    // The environment and a file may be those of many servers, some of which have the listener.
    let is_option = |name: &str| given(name) && origins.origin(name) == Some(Origin::Flag);
    for (listener, protocol, names) in LISTENERS {
        if let Some(name) = names.iter().find(|name| is_off(serve, listener) && is_option(name)) {
            let ((before, called), (_, listener)) = (origins.call(name), origins.call(listener));
            let reason = format!("it is a setting of {protocol}; remove one of them");
            bail!("{before}invalid {called} together with {listener} `off`: {reason}");
        }
    }
    let status = "fallback-denial-status";
    if is_option(status) && LISTENERS.iter().all(|(listener, ..)| is_off(serve, listener)) {
        let [(before, called), (_, http), (_, grpc)] =
            [status, "http", "grpc"].map(|name| origins.call(name));
        bail!(
            "{before}invalid {called} together with {http} `off` and {grpc} `off`: it is a setting of HTTP and \
             gRPC; remove it, or switch one of them on"
        );
    }
    let hops = "http-trusted-hops";
    if given("gate-address-header") && serve.get_one::<usize>("http_trusted_hops") == Some(&0) {
        let ((before, called), (_, hops)) =
            (origins.call("gate-address-header"), origins.call(hops));
        let reason = "addresses of clients are not read then; remove one of them";
        bail!("{before}invalid {called} together with {hops} `0`: {reason}");
    }
    Ok(())
}

/// Whether a listener is off.
fn is_off(serve: &ArgMatches, listener: &str) -> bool {
    serve.get_one::<OptionalListener>(listener).is_some_and(|listener| listener.0.is_none())
}

/// Whether a setting has a value of its own. One that is switched off has none.
fn is_given(serve: &ArgMatches, name: &str) -> bool {
    let id = name.replace('-', "_");
    // The environment can switch a flag off.
    let flag = serve.try_get_one::<bool>(&id).ok().flatten();
    let source = serve.value_source(&id);
    let mut values = serve.get_raw(&id).into_iter().flatten();
    matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
        && flag != Some(&false)
        && !values.any(|value| value == "off" || value == "none")
}
