//! Errors of usage: the flag, environment variable or line of the configuration file, and what is expected there.

use std::{
    error::Error as _,
    ffi::{OsStr, OsString},
    path::Path,
};

use anyhow::anyhow;
use clap::{
    Command, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

use sluicegate_core::Policy;

use crate::values::closest;

/// Settings whose values no message repeats.
pub(crate) const SECRETS: [&str; 3] = ["requirepass", "http-token", "password"];
/// Printed instead of a secret.
pub(crate) const MASKED: &str = "********";

/// Options of other programs, with those of this one.
const MEANT: [(&str, &str); 7] = [
    ("v", "version"),
    ("p", "listen"),
    ("port", "listen"),
    ("bind", "listen"),
    ("host", "listen"),
    ("loglevel", "log-level"),
    ("maxmemory", "max-memory"),
];

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

impl Origins<'_> {
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
                let near = text(ContextKind::SuggestedArg);
                let near = split(&near).0;
                self.unknown_option(&argument, near)
            }
            ErrorKind::UnknownArgument => {
                // A policy, where an option takes it.
                let is_policy = argument.parse::<Policy>().is_ok();
                let advice = match is_policy && self.current().0.ends_with(" simulate") {
                    true => format!(": expected `--policy {argument}`"),
                    false => String::new(),
                };
                anyhow!("unexpected argument `{argument}`{advice}{}", usage(error))
            }
            ErrorKind::InvalidSubcommand => {
                let word = text(ContextKind::InvalidSubcommand);
                self.unknown("command", &word, &text(ContextKind::SuggestedSubcommand))
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

    fn unknown_option(&self, word: &str, near: &str) -> anyhow::Error {
        let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
        if self.command.find_subcommand(name).is_some() {
            return anyhow!("unknown option `{word}`: expected the command `{name}` without `--`");
        }
        let (_, command) = self.current();
        let has = |option: &str| {
            option == "version" || command.get_arguments().any(|it| it.get_long() == Some(option))
        };
        let meant = MEANT.iter().find(|(other, meant)| *other == name && has(meant));
        match meant {
            Some((_, meant)) => self.unknown("option", word, &format!("--{meant}")),
            None => self.unknown("option", word, near),
        }
    }

    fn unknown(&self, what: &str, word: &str, near: &str) -> anyhow::Error {
        if near.is_empty() {
            return anyhow!("unknown {what} `{word}`: see `{} --help`", self.current().0);
        }
        anyhow!("unknown {what} `{word}`: did you mean `{near}`?")
    }

    /// The command that is called, whose help lists the valid values.
    fn current(&self) -> (String, &Command) {
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
    if expected.starts_with("invalid ") && expected.contains(&format!(" `{value}`: ")) {
        return expected.to_owned();
    }
    format!("invalid {called} `{value}`: {expected}")
}

/// `--name <VALUE>` as its name and its value.
fn split(argument: &str) -> (&str, String) {
    let (name, value) = argument.split_once(' ').unwrap_or((argument, ""));
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

/// Environment variables with the prefix of Sluicegate that are not its own.
pub(crate) fn unknown_variables(command: &Command) -> Vec<String> {
    let mut known = Vec::new();
    variables(command, &mut known);
    let given = std::env::vars_os().map(|(name, _)| name);
    let given = given.filter_map(|name| name.to_str().map(str::to_owned));
    let mut unknown: Vec<String> = given
        .filter(|name| name.starts_with(PREFIX) && !known.contains(name) && !is_injected(name))
        .map(|name| match closest(&name, known.iter().map(String::as_str)) {
            Some(near) => format!("unknown environment variable {name}: did you mean {near}?"),
            None => format!("unknown environment variable {name}: it is ignored"),
        })
        .collect();
    unknown.sort();
    unknown
}

const PREFIX: &str = "SLUICEGATE_";

fn variables(command: &Command, known: &mut Vec<String>) {
    let own = command.get_arguments().filter_map(|argument| argument.get_env());
    known.extend(own.map(OsStr::to_string_lossy).map(String::from));
    command.get_subcommands().for_each(|it| variables(it, known));
}

/// Whether Kubernetes sets it in every container beside a service that is called `sluicegate`.
fn is_injected(name: &str) -> bool {
    let rest = &name[PREFIX.len()..];
    rest.starts_with("SERVICE_") || rest == "PORT" || rest.starts_with("PORT_")
}
