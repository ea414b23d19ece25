//! One file for all settings of `serve`: what it says goes for what neither a flag nor the
//! environment says.
//!
//! Its names are those of the flags, so that there is one set of names, checks and words for both:
//! what is read is handed on as if it had been said on the command line.

use std::{ffi::OsString, fmt::Write as _, fs, path::Path};

use anyhow::{Context, bail};
use clap::{ArgAction, ArgMatches, Command, CommandFactory, parser::ValueSource};
use toml::{Table, Value};

use crate::arguments::Arguments;

/// The name of the subcommand, and those of flags that are about the file itself.
const SERVE: &str = "serve";
const NOT_SETTINGS: [&str; 4] = ["config", "print-config", "help", "version"];
/// What is not printed.
const SECRETS: [&str; 3] = ["requirepass", "http-token", "store"];
const MASKED: &str = "********";

/// What was said on the command line, in the environment and in the file; in that order of weight.
pub(crate) fn read() -> anyhow::Result<ArgMatches> {
    let said: Vec<OsString> = std::env::args_os().collect();
    let command = Arguments::command();
    // Only to learn of the file: what is wrong may be put right by it.
    let first = command.clone().ignore_errors(true).try_get_matches_from(&said).ok();
    let serve = first.as_ref().and_then(|matches| matches.subcommand_matches(SERVE));
    let path = serve.and_then(|serve| serve.get_one::<std::path::PathBuf>("config"));
    let (mut whole, mut from_file) = (said, Vec::new());
    if let (Some(serve), Some(path)) = (serve, path) {
        let settings = settings_of(&command);
        from_file = of_file(path, &settings, serve)?;
        whole.extend(from_file.iter().map(|(_, flag)| flag.into()));
    }
    let matches = command.clone().get_matches_from(whole);
    if let Some(serve) = matches.subcommand_matches(SERVE)
        && serve.get_flag("print_config")
    {
        let from_file: Vec<_> = from_file.into_iter().map(|(name, _)| name).collect();
        print!("{}", in_force(&settings_of(&command), serve, &from_file));
        std::process::exit(0);
    }
    Ok(matches)
}

/// A setting.
struct Setting {
    /// As in the file.
    name: String,
    id: String,
    /// Whether it is said by being there.
    flag: bool,
}

fn settings_of(command: &Command) -> Vec<Setting> {
    let serve = command.find_subcommand(SERVE).expect("there is such a command");
    let settings = serve.get_arguments().filter_map(|argument| {
        let name = argument.get_long()?.to_owned();
        let flag = matches!(argument.get_action(), ArgAction::SetTrue);
        let is_setting = !NOT_SETTINGS.contains(&&*name);
        is_setting.then(|| Setting { name, id: argument.get_id().to_string(), flag })
    });
    settings.collect()
}

/// The settings of the file that nothing else says, each as its name and as a flag.
fn of_file(
    path: &Path,
    settings: &[Setting],
    said: &ArgMatches,
) -> anyhow::Result<Vec<(String, String)>> {
    let file = || format!("the configuration {}", path.display());
    let text = fs::read_to_string(path).with_context(file)?;
    let table: Table = text.parse().with_context(file)?;
    let mut flags = Vec::new();
    for (name, value) in table {
        let Some(setting) = settings.iter().find(|setting| setting.name == name) else {
            let known: Vec<_> = settings.iter().map(|setting| setting.name.as_str()).collect();
            bail!("{}: `{name}` is no setting; there are: {}", file(), known.join(", "));
        };
        let flag = match value {
            Value::Boolean(yes) if setting.flag => yes.then(|| format!("--{name}")),
            Value::String(text) if !setting.flag => Some(format!("--{name}={text}")),
            Value::Array(items) if !setting.flag && items.iter().all(Value::is_str) => {
                let texts: Vec<_> = items.iter().filter_map(Value::as_str).collect();
                (!texts.is_empty()).then(|| format!("--{name}={}", texts.join(",")))
            }
            Value::Integer(number) if !setting.flag => Some(format!("--{name}={number}")),
            _ if setting.flag => bail!("{}: `{name}` is true or false", file()),
            other => bail!("{}: `{name}` is a text or a whole number, not {other}", file()),
        };
        let weightier = matches!(
            said.value_source(&setting.id),
            Some(ValueSource::CommandLine | ValueSource::EnvVariable)
        );
        flags.extend(flag.filter(|_| !weightier).map(|flag| (name, flag)));
    }
    Ok(flags)
}

/// All settings in force, as the file could say them, and who says each.
fn in_force(settings: &[Setting], said: &ArgMatches, from_file: &[String]) -> String {
    let mut text = String::from("# The settings in force, as `serve --config FILE` reads them.\n");
    for Setting { name, id, flag } in settings {
        let source = match said.value_source(id) {
            _ if from_file.contains(name) => "the file",
            Some(ValueSource::CommandLine) => "the command line",
            Some(ValueSource::EnvVariable) => "the environment",
            _ => "by default",
        };
        let value = if *flag {
            Some(said.get_flag(id).to_string())
        } else {
            let raw = said.get_raw(id).map(|values| {
                let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
                shown(name, &values.join(","))
            });
            raw.filter(|_| said.value_source(id).is_some())
        };
        // Writing to a string cannot fail.
        let _ = match value {
            Some(value) => writeln!(text, "{name} = {value} # {source}"),
            None => writeln!(text, "# {name} is not set"),
        };
    }
    text
}

/// A value in TOML; of a secret, only that there is one, or where it leads.
fn shown(name: &str, value: &str) -> String {
    if SECRETS.contains(&name) {
        let host = value.rsplit_once('@').map(|(front, host)| {
            let scheme = front.split_once("://").map_or("", |(scheme, _)| scheme);
            format!("{scheme}://{MASKED}@{host}")
        });
        let shown = match host {
            Some(url) if name == "store" => url,
            None if name == "store" => value.to_owned(),
            _ => MASKED.to_owned(),
        };
        return Value::String(shown).to_string();
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
    fn secrets_are_masked() {
        for (name, value, expected) in [
            ("requirepass", "hunter2", "\"********\""),
            ("store", "redis://user:pass@host:1/2", "\"redis://********@host:1/2\""),
            ("store", "redis://host", "\"redis://host\""),
            ("max-clients", "10", "10"),
            ("unix-permissions", "0700", "\"0700\""),
            ("listen", "127.0.0.1:1", "\"127.0.0.1:1\""),
        ] {
            assert_eq!(shown(name, value), expected, "{name} {value}");
        }
    }

    #[test]
    fn every_secret_is_a_setting() {
        let settings = settings_of(&Arguments::command());
        for secret in SECRETS {
            assert!(settings.iter().any(|setting| setting.name == secret), "{secret}");
        }
    }
}
