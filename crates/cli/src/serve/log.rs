//! The log of a server: one line per event on standard error, as text or JSON.

use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::values::closest;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

#[derive(Args, Clone, Debug)]
pub(super) struct Log {
    /// Least severe level to log: error, warn, info, debug or trace; or levels per module, such as
    /// `info,sluicegate_redis=debug`
    #[arg(
        long,
        env = "SLUICEGATE_LOG",
        value_name = "LEVEL",
        default_value = "info",
        value_parser = filter
    )]
    log_level: String,
    /// Format of the log, which is written to standard error
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    log_format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// For people, in colour on a terminal
    Text,
    /// One JSON object per line
    Json,
}

impl Log {
    /// Everything that is logged from now on is written.
    pub(super) fn start(&self) {
        let builder = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(&self.log_level))
            .with_writer(io::stderr);
        match self.log_format {
            Format::Text => builder.with_ansi(io::stderr().is_terminal()).init(),
            Format::Json => builder.json().flatten_event(true).init(),
        }
    }
}

/// A level, or levels per module. Any other word is the name of a module to the filter: it accepts misspellings.
fn filter(text: &str) -> Result<String, String> {
    let levels = sluicegate_core::any_of(&LEVELS[..5]);
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
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => {
            Err(format!("expected {levels}, or levels per module: `info,sluicegate_redis=debug`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_checked() {
        for text in
            ["info", "DEBUG", "off", "warn,sluicegate_redis=debug", "sluicegate_server=trace"]
        {
            assert_eq!(filter(text).as_deref(), Ok(text));
        }
        for (text, expected) in [
            ("inof", "did you mean `info`?"),
            ("verbose", "expected error, warn, info, debug or trace"),
            ("", "expected error, warn, info, debug or trace"),
            ("a=b=c=loud", "expected error, warn, info, debug or trace"),
        ] {
            assert_eq!(filter(text), Err(expected.to_owned()), "{text}");
        }
    }
}
