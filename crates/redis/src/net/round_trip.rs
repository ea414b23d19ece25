//! The `tracing` span of a round trip to a server, within the span of the request that needs it.
//!
//! Its attributes are those of OpenTelemetry's semantic conventions for databases. It has no arguments of commands:
//! these are keys.

use redis::{Arg, Cmd};
use sluicegate_core::StoreError;
use tracing::{Instrument as _, Level, Span, field::Empty};

use super::context::Endpoint;

/// The span of a round trip of `commands`; none outside of a span.
#[inline]
pub(super) fn span<'a>(endpoint: &Endpoint, commands: impl Iterator<Item = &'a Cmd>) -> Span {
    if !tracing::span_enabled!(Level::TRACE) || Span::current().is_none() {
        return Span::none();
    }
    new(endpoint, commands)
}

#[cold]
fn new<'a>(endpoint: &Endpoint, commands: impl Iterator<Item = &'a Cmd>) -> Span {
    let names: Vec<_> = commands.map(name).collect();
    let name = match &*names {
        [name] => (*name).to_owned(),
        [first, rest @ ..] if rest.iter().all(|it| it == first) => format!("PIPELINE {first}"),
        _ => "PIPELINE".to_owned(),
    };
    let span = tracing::trace_span!(
        "round trip",
        otel.name = &*name,
        otel.kind = "client",
        otel.status_code = Empty,
        error.type = Empty,
        db.system.name = "redis",
        db.operation.name = &*name,
        db.operation.batch.size = Empty,
        server.address = Empty,
        server.port = Empty,
    );
    if names.len() > 1 {
        span.record("db.operation.batch.size", i64::try_from(names.len()).unwrap_or(i64::MAX));
    }
    if let Endpoint::At(address) = endpoint {
        span.record("server.address", &*address.host);
        span.record("server.port", i64::from(address.port));
    }
    span
}

/// The name of a command. It is not an argument of a client.
fn name(command: &Cmd) -> &str {
    match command.args_iter().next() {
        Some(Arg::Simple(name)) => str::from_utf8(name).unwrap_or_default(),
        _ => "",
    }
}

/// The result of `exchange`, within its span.
pub(super) async fn record<T>(
    span: Span,
    exchange: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let result = exchange.instrument(span.clone()).await;
    if let Err(error) = &result {
        span.record("otel.status_code", "error");
        // Not its text, which may have what the server replied.
        let kind = if matches!(error, StoreError::Timeout(_)) { "timeout" } else { "unavailable" };
        span.record("error.type", kind);
    }
    result
}
