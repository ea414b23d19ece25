//! `serve --print-config`: all settings in force, in the form of the configuration file.

use std::fmt::Write as _;

use clap::ArgMatches;
use toml::Value;

use super::{check::unused, file::Setting};
use crate::usage::{MASKED, Origin, Origins, SECRETS, URLS, without_login};

/// Every setting with its value and its source. Settings without a value, or without effect, are comments.
pub(super) fn in_force(settings: &[Setting], serve: &ArgMatches, origins: &Origins<'_>) -> String {
    let mut text =
        String::from("# All settings in force, as `sluicegate serve --config FILE` reads them.\n");
    for setting in settings {
        let Setting { name, id, is_flag, is_list } = setting;
        let source = match origins.origin(name) {
            Some(Origin::Flag) => "command line".to_owned(),
            Some(Origin::Environment(variable)) => variable,
            Some(Origin::File(path, line)) => format!("{path}: line {line}"),
            None if name == "workers" => format!("default: {} here", cores()),
            None => "default".to_owned(),
        };
        let raw: Vec<String> = serve
            .get_raw(id)
            .map(|values| values.map(|value| value.to_string_lossy().into_owned()).collect())
            .unwrap_or_default();
        let value = match (&*raw, is_flag, is_list) {
            (_, true, _) => Some(serve.get_flag(id).to_string()),
            ([], ..) => None,
            (values, _, true) => {
                let items = values.iter().cloned().map(Value::String).collect();
                Some(Value::Array(items).to_string())
            }
            ([value, ..], ..) => Some(masked_value(name, value)),
        };
        // Writing to a string cannot fail.
        let unused = unused(name, serve);
        let _ = match (value, unused) {
            (Some(value), Some(reason)) => {
                writeln!(text, "# {name} = {value} # {source}, without effect: {reason}")
            }
            (Some(value), None) => writeln!(text, "{name} = {value} # {source}"),
            (None, _) => writeln!(text, "# {name} is not set"),
        };
    }
    text
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A value in TOML, without secrets.
fn masked_value(name: &str, value: &str) -> String {
    if SECRETS.contains(&name) {
        return Value::String(MASKED.to_owned()).to_string();
    }
    if URLS.contains(&name) {
        return Value::String(without_login(value)).to_string();
    }
    match value.parse::<i64>() {
        Ok(number) if number.to_string() == value => value.to_owned(),
        _ => Value::String(value.to_owned()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_secret_is_masked() {
        for (name, value, expected) in [
            ("requirepass", "hunter2", "\"********\""),
            ("store", "redis://user:pass@host:1/2", "\"redis://********@host:1/2\""),
            ("otlp", "http://user:pass@host:1", "\"http://********@host:1\""),
            ("store", "redis://host", "\"redis://host\""),
            ("max-clients", "10", "10"),
            ("unix-permissions", "0700", "\"0700\""),
            ("listen", "127.0.0.1:1", "\"127.0.0.1:1\""),
        ] {
            assert_eq!(masked_value(name, value), expected, "{name} {value}");
        }
    }
}
