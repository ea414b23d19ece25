//! Errors of usage: the flag, environment variable or line of the configuration file, and what is expected there.

use std::{
    error::Error as _,
    ffi::{OsStr, OsString},
    path::Path,
};

use anyhow::anyhow;
use clap::{
    ArgMatches, Command, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

use sluicegate_core::{Policy, human::printable};

use crate::values::closest;

/// Settings whose values no message repeats.
pub(crate) const SECRETS: [&str; 3] = ["requirepass", "http-token", "password"];
/// Settings that are URLs, whose user and password no message repeats.
pub(crate) const URLS: [&str; 2] = ["store", "otlp"];
/// Printed instead of a secret.
pub(crate) const MASKED: &str = "********";

/// Options of other programs, with those of this one: the first that the command has is meant.
const MEANT: [(&str, &[&str]); 26] = [
    ("v", &["version"]),
    ("p", &["listen", "server"]),
    ("a", &["password", "requirepass"]),
    ("addr", &["listen", "server"]),
    ("address", &["listen", "server"]),
    ("auth", &["password", "requirepass"]),
    ("backend", &["store"]),
    ("bind", &["listen"]),
    ("host", &["listen", "server"]),
    ("hostname", &["listen", "server"]),
    ("http-port", &["http"]),
    ("grpc-port", &["grpc"]),
    ("loglevel", &["log-level"]),
    ("maxclients", &["max-clients"]),
    ("maxmemory", &["max-memory"]),
    ("n", &["cost"]),
    ("pass", &["password", "requirepass"]),
    ("password", &["requirepass"]),
    ("port", &["listen", "server"]),
    ("redis", &["store"]),
    ("redis-url", &["store"]),
    ("requirepass", &["password"]),
    ("threads", &["workers"]),
    ("token", &["http-token"]),
    ("url", &["store", "server"]),
    ("valkey", &["store"]),
];

/// Commands of other programs, with those of this one.
const MEANT_COMMANDS: [(&str, &str); 10] = [
    ("server", "serve"),
    ("start", "serve"),
    ("del", "reset"),
    ("delete", "reset"),
    ("get", "info"),
    ("show", "info"),
    ("explain", "policy"),
    ("replay", "simulate"),
    ("ping", "health"),
    ("validate", "rules check"),
];

/// The command that deletes state: no misspelling suggests it.
const DELETES: &str = "reset";
/// Letters from which on the beginning of a word suggests the word.
const MIN_PREFIX: usize = 3;

/// Variables of client commands that the server does not read, with its own.
const CLIENT_VARIABLES: [(&str, &str); 2] =
    [("SLUICEGATE_PASSWORD", "requirepass"), ("SLUICEGATE_REDIS", "store")];

/// Words for the format of a log, which `--format` does not take.
const LOGS: [&str; 9] =
    ["nginx", "apache", "combined", "common", "json", "envoy", "traefik", "w3c", "alb"];

/// A setting of the configuration file.
#[derive(Clone, Debug)]
pub(crate) struct FileSetting {
    pub(crate) name: String,
    pub(crate) line: usize,
    /// The same on the command line; nothing for a flag that is off.
    pub(crate) flag: Option<OsString>,
}

/// Where values come from.
#[derive(Debug)]
pub(crate) struct Origins<'a> {
    pub(crate) command: &'a Command,
    pub(crate) arguments: &'a [OsString],
    pub(crate) file: Option<(&'a Path, &'a [FileSetting])>,
}

/// Where one value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Environment(String),
    File(String, usize),
}

impl<'a> Origins<'a> {
    /// Where the value of the setting `name` comes from, if it is given.
    pub(crate) fn origin(&self, name: &str) -> Option<Origin> {
        let flag = format!("--{name}");
        let is_flag = |argument: &OsString| {
            let argument = argument.as_encoded_bytes();
            argument
                .strip_prefix(flag.as_bytes())
                .is_some_and(|rest| matches!(rest, [] | [b'=', ..]))
        };
        if self.arguments.iter().any(is_flag) {
            return Some(Origin::Flag);
        }
        let variable = variable(self.command, name);
        if let Some(variable) = variable.filter(|variable| std::env::var_os(variable).is_some()) {
            return Some(Origin::Environment(variable));
        }
        let (path, settings) = self.file?;
        let setting = settings.iter().find(|setting| setting.name == name)?;
        Some(Origin::File(path.display().to_string(), setting.line))
    }

    /// The name of the setting in a message, and the prefix of the message.
    pub(crate) fn call(&self, name: &str) -> (String, String) {
        match self.origin(name) {
            Some(Origin::Environment(variable)) => (String::new(), variable),
            Some(Origin::File(path, line)) => (format!("{path}: line {line}: "), name.to_owned()),
            Some(Origin::Flag) | None => (String::new(), format!("--{name}")),
        }
    }

    /// An error about the value of the setting `name`: ``invalid --name `value`: expected ...``.
    pub(crate) fn invalid(&self, name: &str, value: &str, expected: &str) -> anyhow::Error {
        let (before, called) = self.call(name);
        anyhow!("{before}{}", invalid(&called, name, value, expected))
    }

    /// Converts clap's error to one that names the correction.
    pub(crate) fn explain(&self, error: &Error) -> anyhow::Error {
        let text = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => text.clone(),
            Some(ContextValue::Strings(texts)) => texts.first().cloned().unwrap_or_default(),
            _ => String::new(),
        };
        let (argument, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
        match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
            ErrorKind::ValueValidation => {
                let expected = error.source().map(ToString::to_string).unwrap_or_default();
                self.wrong(&argument, &value, &expected)
            }
            ErrorKind::InvalidValue if value.is_empty() => {
                let (name, expected) = split(&argument);
                let (before, called) = self.called(name);
                anyhow!("{before}missing value of {called}: expected {expected}")
            }
            ErrorKind::InvalidValue => {
                let valid = match error.get(ContextKind::ValidValue) {
                    Some(ContextValue::Strings(values)) => values.clone(),
                    _ => Vec::new(),
                };
                let expected = match closest(&value, valid.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("expected {}", sluicegate_core::any_of(&valid)),
                };
                let is_log = split(&argument).0 == "--format" && LOGS.contains(&&*value);
                let advice = if is_log { "; use --log for the format of a log" } else { "" };
                let expected = format!("{expected}{advice}");
                self.wrong(&argument, &value, &expected)
            }
            ErrorKind::UnknownArgument if argument.starts_with('-') => {
                self.unknown_option(&argument)
            }
            ErrorKind::UnknownArgument => {
                // A policy, where an option takes it.
                let is_policy = argument.parse::<Policy>().is_ok();
                let advice = match is_policy && self.current().0.ends_with(" simulate") {
                    true => format!(": expected `--policy {argument}`"),
                    false => self
                        .option_before(&argument)
                        .map_or_else(String::new, |it| format!(": expected `--{it}={argument}`")),
                };
                anyhow!("unexpected argument `{argument}`{advice}{}", usage(error))
            }
            ErrorKind::InvalidSubcommand => {
                self.unknown_command(&text(ContextKind::InvalidSubcommand))
            }
            ErrorKind::MissingRequiredArgument => {
                let missing = match error.get(ContextKind::InvalidArg) {
                    Some(ContextValue::Strings(names)) => names.clone(),
                    _ => vec![argument],
                };
                let missing: Vec<_> = missing.iter().map(|name| plain(name)).collect();
                anyhow!("missing {}{}", missing.join(" and "), usage(error))
            }
            ErrorKind::ArgumentConflict if text(ContextKind::PriorArg) == argument => {
                anyhow!("{} is given twice: expected it once", split(&argument).0)
            }
            ErrorKind::TooManyValues => {
                let variable = variable(self.command, argument.trim_start_matches('-'));
                let off = variable.map_or_else(String::new, |it| format!(" or set {it}=false"));
                anyhow!("{argument} takes no value; to switch it off, leave it out{off}")
            }
            _ => {
                let shown = error.to_string();
                anyhow!("{}", shown.trim_end().trim_start_matches("error: "))
            }
        }
    }

    fn wrong(&self, argument: &str, value: &str, expected: &str) -> anyhow::Error {
        let (name, _) = split(argument);
        let (before, called) = self.called(name);
        anyhow!("{before}{}", invalid(&called, name.trim_start_matches('-'), value, expected))
    }

    /// As [`Origins::call`], for a flag or a positional argument.
    fn called(&self, argument: &str) -> (String, String) {
        match argument.strip_prefix("--") {
            Some(name) => self.call(name),
            None => (String::new(), plain(argument)),
        }
    }

    /// The option before a word that may have it as its value, after `=`.
    fn option_before(&self, word: &str) -> Option<&'a str> {
        let before = self.arguments.windows(2).find(|it| it[1] == *word)?[0].to_str()?;
        let takes_value = |it: &clap::Arg| {
            it.get_num_args().is_some_and(|it| it.takes_values() && it.min_values() == 0)
        };
        let options = self.current().1.get_arguments().filter(|it| takes_value(it));
        options.filter_map(clap::Arg::get_long).find(|it| before.strip_prefix("--") == Some(it))
    }

    fn unknown_option(&self, word: &str) -> anyhow::Error {
        let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
        let (_, command) = self.current();
        let options = command.get_arguments().filter(|it| !it.is_hide_set());
        let mut options: Vec<&str> = options.filter_map(clap::Arg::get_long).collect();
        options.extend(["version", "help"]);
        if let Some(meant) = meant(name, &options) {
            return self.unknown("option", word, Some(&format!("--{meant}")));
        }
        let has_it = |it: &&Command| it.get_arguments().any(|it| it.get_long() == Some(name));
        let others: Vec<&Command> = self.command.get_subcommands().filter(has_it).collect();
        if let [other] = &others[..] {
            let (here, other) = (self.current().0, other.get_name());
            return anyhow!(
                "unknown option `{word}`: `sluicegate {other}` has it; see `{here} --help`"
            );
        }
        if self.command.find_subcommand(name).is_some() {
            return anyhow!("unknown option `{word}`: expected the command `{name}` without `--`");
        }
        let near = near(name, &options).map(|near| format!("--{near}"));
        self.unknown("option", word, near.as_deref())
    }

    fn unknown_command(&self, word: &str) -> anyhow::Error {
        let (_, command) = self.current();
        let visible =
            |command: &'a Command| command.get_subcommands().filter(|it| !it.is_hide_set());
        let is_root = command.get_name() == self.command.get_name();
        let other = MEANT_COMMANDS.iter().find(|(other, _)| is_root && *other == word);
        let inside = visible(command).find_map(|outer| {
            let inner = outer.find_subcommand(word)?;
            Some(format!("{} {}", outer.get_name(), inner.get_name()))
        });
        let mut names: Vec<&str> = visible(command).map(Command::get_name).collect();
        names.push("help");
        let meant = other.map(|(_, meant)| (*meant).to_owned()).or(inside);
        let meant = meant.or_else(|| near(word, &names).map(str::to_owned));
        self.unknown("command", word, meant.as_deref())
    }

    fn unknown(&self, what: &str, word: &str, near: Option<&str>) -> anyhow::Error {
        match near {
            Some(near) => anyhow!("unknown {what} `{word}`: did you mean `{near}`?"),
            None => anyhow!("unknown {what} `{word}`: see `{} --help`", self.current().0),
        }
    }

    /// The command that is called, whose help lists the valid values.
    fn current(&self) -> (String, &'a Command) {
        let mut path = vec![self.command.get_name().to_owned()];
        let mut command = self.command;
        for argument in self.arguments.iter().skip(1).filter_map(|it| it.to_str()) {
            match command.find_subcommand(argument) {
                Some(found) => command = found,
                None => break,
            }
            path.push(argument.to_owned());
        }
        (path.join(" "), command)
    }
}

/// ``invalid X `value`: expected Y``. A text that has such a form already is not repeated.
fn invalid(called: &str, name: &str, value: &str, expected: &str) -> String {
    if SECRETS.contains(&name) {
        return format!("invalid {called}: {expected}");
    }
    let value = &printable(value);
    if expected.starts_with("invalid ") && expected.contains(&format!(" `{value}`: ")) {
        return expected.to_owned();
    }
    let value = if URLS.contains(&name) { without_login(value) } else { value.to_owned() };
    format!("invalid {called} `{value}`: {expected}")
}

/// A URL without its user and password.
pub(crate) fn without_login(url: &str) -> String {
    let Some((front, host)) = url.rsplit_once('@') else { return url.to_owned() };
    let scheme = front.split_once("://").map_or(String::new(), |(it, _)| format!("{it}://"));
    format!("{scheme}{MASKED}@{host}")
}

/// `--name <VALUE>`, or `--name[=<VALUE>]` if the value is optional, as its name and its value.
fn split(argument: &str) -> (&str, String) {
    let parts = argument.split_once(' ').or_else(|| argument.split_once("[="));
    let (name, value) = parts.unwrap_or((argument, ""));
    (name, plain(value))
}

/// Without the brackets of usage texts: those around the whole say that it is optional.
fn plain(text: &str) -> String {
    let text = text.trim_end_matches("...");
    let optional = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    optional.unwrap_or(text).replace(['<', '>'], "")
}

/// The usage of the command, on a line of its own.
fn usage(error: &Error) -> String {
    match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => {
            let usage = usage.to_string();
            format!("\nusage: {}", usage.trim().trim_start_matches("Usage: "))
        }
        _ => String::new(),
    }
}

/// The environment variable of the setting `name`, which may be any command's.
fn variable(command: &Command, name: &str) -> Option<String> {
    let own = command.get_arguments().find(|it| it.get_long() == Some(name));
    own.and_then(|argument| argument.get_env())
        .map(|variable| variable.to_string_lossy().into_owned())
        .or_else(|| command.get_subcommands().find_map(|it| variable(it, name)))
}

/// The option that one of another program means.
fn meant(name: &str, options: &[&str]) -> Option<&'static str> {
    let (_, meant) = MEANT.iter().find(|(other, _)| *other == name)?;
    meant.iter().copied().find(|option| options.contains(option))
}

/// The only one of `known` that begins with `word`, or else the one that it misspells.
fn near<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let mut begun = known.iter().filter(|it| word.len() >= MIN_PREFIX && it.starts_with(word));
    if let (Some(only), None) = (begun.next(), begun.next()) {
        return Some(only);
    }
    closest(word, known.iter().copied().filter(|it| *it != DELETES))
}

/// Environment variables with the prefix of Sluicegate that are not its own.
pub(crate) fn unknown_variables(command: &Command) -> Vec<String> {
    let mut known = Vec::new();
    variables(command, &mut known);
    let given =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let mut unknown: Vec<String> = given
        .filter(|(name, value)| {
            name.starts_with(PREFIX) && !known.contains(name) && !is_injected(name, value)
        })
        .map(|(name, _)| match variable_meant(&name, &known) {
            Some(near) => format!("unknown environment variable {name}: did you mean {near}?"),
            None => format!("unknown environment variable {name}: it is ignored"),
        })
        .collect();
    unknown.sort();
    unknown
}

/// The variable that `name` means, of `known`.
fn variable_meant(name: &str, known: &[String]) -> Option<String> {
    let options = known.iter().map(|it| option_of(it)).collect::<Vec<_>>();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let name = option_of(name);
    let found = meant(&name, &options).or_else(|| near(&name, &options))?;
    let index = options.iter().position(|it| *it == found)?;
    Some(known[index].clone())
}

/// The option that a variable sets.
fn option_of(variable: &str) -> String {
    variable.trim_start_matches(PREFIX).to_ascii_lowercase().replace('_', "-")
}

/// Warnings about variables of client commands, of which the server has its own that are not set.
pub(crate) fn client_variables(serve: &ArgMatches, origins: &Origins<'_>) -> Vec<String> {
    let is_unset = |(name, own): &&(&str, &str)| {
        std::env::var_os(name).is_some() && serve.get_raw(own).is_none()
    };
    let warning = |(name, own): &(&str, &str)| {
        let own = variable(origins.command, own).unwrap_or_default();
        format!("{name} is ignored: client commands read it; use {own} for the server")
    };
    CLIENT_VARIABLES.iter().filter(is_unset).map(warning).collect()
}

const PREFIX: &str = "SLUICEGATE_";

fn variables(command: &Command, known: &mut Vec<String>) {
    let own = command.get_arguments().filter_map(|argument| argument.get_env());
    known.extend(own.map(OsStr::to_string_lossy).map(String::from));
    command.get_subcommands().for_each(|it| variables(it, known));
}

/// Whether Kubernetes sets it in every container beside a service that is called `sluicegate`.
fn is_injected(name: &str, value: &OsStr) -> bool {
    let rest = &name[PREFIX.len()..];
    let is_url = value.to_str().is_some_and(|value| value.contains("://"));
    rest.starts_with("SERVICE_") || (rest == "PORT" && is_url) || rest.starts_with("PORT_")
}
