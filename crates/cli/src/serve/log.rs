//! The log of a server: one line per event on standard error, as text or JSON.
//!
//! A thread writes the lines, so that no client waits if standard error is a pipe with a slow reader. Libraries log errors
//! only, unless a module is named: clients cause their warnings as often as they like.

use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use sluicegate_server::{DenialOutput, Telemetry};
use tracing::Subscriber;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    Layer,
    filter::{FilterExt as _, LevelFilter, Targets, filter_fn},
    fmt,
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

use crate::values::closest;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

#[derive(Args, Clone, Debug)]
pub(super) struct Log {
    /// Least severe level to log: error, warn, info, debug, trace or off; or levels per module, such as
    /// `info,sluicegate_redis=debug`
    #[arg(
        long,
        env = "SLUICEGATE_LOG",
        value_name = "LEVEL",
        default_value = "info",
        value_parser = filter
    )]
    log_level: Targets,
    /// Format of the log, which is written to standard error
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    log_format: Format,
    /// Log why requests were denied: a line of JSON for the first denial of each key in each second, on standard error
    /// or appended to FILE; `sluicegate why` explains them
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = STDERR,
        value_parser = denial_output
    )]
    log_denials: Option<DenialOutput>,
}

/// Lines that wait until they are written; further ones are lost.
const MAX_LINES: usize = 4096;

/// The name of standard error.
const STDERR: &str = "stderr";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// For people, in colour on a terminal
    Text,
    /// One JSON object per line
    Json,
}

impl Log {
    /// Where the denial log goes, if there is one.
    pub(super) fn denial_log(&self) -> Option<DenialOutput> {
        self.log_denials.clone()
    }

    /// Everything that is logged from now on is written, and spans are recorded if there is a collector. The last lines are
    /// written when the guard is dropped.
    pub(super) fn start(&self, telemetry: Option<&Telemetry>) -> WorkerGuard {
        let registry = tracing_subscriber::registry();
        let lines = NonBlockingBuilder::default().buffered_lines_limit(MAX_LINES);
        let (lines, guard) = lines.thread_name("sluicegate-log").finish(io::stderr());
        let Some(telemetry) = telemetry else {
            registry.with(self.log_level.clone()).with(self.writer(lines)).init();
            return guard;
        };
        // No line of the log has the spans.
        let logged = filter_fn(|metadata| !Telemetry::is_span(metadata));
        let logged = logged.with_max_level_hint(LevelFilter::TRACE);
        let writer = self.writer(lines).with_filter(self.log_level.clone().and(logged));
        registry.with(writer).with(telemetry.layer()).init();
        guard
    }

    /// The layer that writes lines.
    fn writer<S>(&self, lines: NonBlocking) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let layer = fmt::layer().with_writer(lines);
        match self.log_format {
            Format::Text => layer.with_ansi(io::stderr().is_terminal()).boxed(),
            Format::Json => layer.json().flatten_event(true).boxed(),
        }
    }
}

fn denial_output(text: &str) -> Result<DenialOutput, String> {
    match text {
        "" => Err(format!("expected {STDERR} or a file")),
        STDERR => Ok(DenialOutput::Stderr),
        path => Ok(DenialOutput::File(path.into())),
    }
}

/// The level of Sluicegate's modules, whose names all begin with `sluicegate`. Libraries have it, too, if it shows more than `info`.
fn with_libraries(directive: &str) -> String {
    match directive.to_ascii_lowercase().as_str() {
        level @ ("warn" | "info") => format!("error,sluicegate={level}"),
        _ => directive.to_owned(),
    }
}

/// A level, or levels per module. Any other word is the name of a module to the filter: it accepts misspellings.
fn filter(text: &str) -> Result<Targets, String> {
    let levels = sluicegate_core::any_of(&LEVELS);
    for directive in text.split(',') {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
        if LEVELS.contains(&level.to_ascii_lowercase().as_str()) {
            continue;
        }
        return Err(match closest(level, LEVELS) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("expected {levels}"),
        });
    }
    let directives: Vec<String> = text.split(',').map(with_libraries).collect();
    directives.join(",").parse().map_err(|_| {
        format!("expected {levels}, or levels per module: `info,sluicegate_redis=debug`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_log_errors_unless_named() {
        use tracing::Level;
        for (text, target, level, expected) in [
            ("info", "sluicegate_server", Level::INFO, true),
            ("info", "sluicegate", Level::WARN, true),
            ("info", "sluicegate_server", Level::DEBUG, false),
            ("INFO", "h2::proto::streams", Level::WARN, false),
            ("info", "h2::proto::streams", Level::ERROR, true),
            ("info,h2=warn", "h2::proto::streams", Level::WARN, true),
            ("warn,sluicegate_redis=debug", "sluicegate_redis", Level::DEBUG, true),
            ("debug", "h2::proto::streams", Level::DEBUG, true),
            ("off", "sluicegate_server", Level::ERROR, false),
        ] {
            let targets = filter(text).unwrap();
            assert_eq!(targets.would_enable(target, &level), expected, "{text} {target} {level}");
        }
    }

    #[test]
    fn levels_are_checked() {
        for text in
            ["info", "DEBUG", "off", "warn,sluicegate_redis=debug", "sluicegate_server=trace"]
        {
            assert!(filter(text).is_ok(), "{text}");
        }
        for (text, expected) in [
            ("inof", "did you mean `info`?"),
            ("verbose", "expected error, warn, info, debug, trace or off"),
            ("", "expected error, warn, info, debug, trace or off"),
            ("a=b=c=loud", "expected error, warn, info, debug, trace or off"),
        ] {
            assert_eq!(filter(text).unwrap_err(), expected, "{text}");
        }
    }
}
