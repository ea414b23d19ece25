//! The configuration file of `serve`. Its settings are read as flags of the same name, with the same checks and
//! errors.

use std::{ffi::OsString, fs, ops::Range, path::Path};

use anyhow::{anyhow, bail};
use clap::{ArgAction, Command};
use sluicegate_commands::plain_error;
use toml::de::{DeTable, DeValue};

use crate::{
    usage::{FileSetting, MASKED, SECRETS},
    values::closest,
};

/// Flags that no file can set.
const NOT_SETTINGS: [&str; 4] = ["config", "print-config", "help", "version"];

/// A setting of `serve`.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// Its name in the file, and after `--`.
    pub(super) name: String,
    pub(super) id: String,
    /// Whether it has no value.
    pub(super) is_flag: bool,
    /// Whether it has several values.
    pub(super) is_list: bool,
}

/// All settings, in the order of the help.
pub(super) fn settings_of(serve: &Command) -> Vec<Setting> {
    let settings = serve.get_arguments().filter_map(|argument| {
        let name = argument.get_long()?.to_owned();
        let is_setting = !NOT_SETTINGS.contains(&&*name);
        is_setting.then(|| Setting {
            name,
            id: argument.get_id().to_string(),
            is_flag: matches!(argument.get_action(), ArgAction::SetTrue),
            is_list: argument.get_value_delimiter().is_some(),
        })
    });
    settings.collect()
}

/// The settings of the file at `path`.
pub(super) fn read(path: &Path, settings: &[Setting]) -> anyhow::Result<Vec<FileSetting>> {
    let text = fs::read_to_string(path).map_err(|error| {
        anyhow!("cannot read the configuration file {}: {}", path.display(), plain_error(&error))
    })?;
    parse(&text, settings).map_err(|(at, problem)| {
        let line = line_of(&text, at);
        anyhow!("{}: line {line}: {problem}", path.display())
    })
}

/// The settings of `text`, or the offset of a mistake and its description.
fn parse(text: &str, settings: &[Setting]) -> Result<Vec<FileSetting>, (usize, String)> {
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.lines().nth(line_of(text, at) - 1).unwrap_or_default().trim();
        let problem = match unquoted(line, settings) {
            _ if is_yaml(line) || line.starts_with('{') => {
                format!("invalid line `{line}`: expected `NAME = VALUE`, as in TOML")
            }
            Some(problem) => problem,
            None => format!("invalid TOML: {}", error.message().replace('\n', ", ")),
        };
        (at, problem)
    })?;
    let mut found = Vec::new();
    // The table is sorted by name; the first mistake in the file is the clearest.
    let mut entries: Vec<_> = table.into_inner().into_iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    for (name, value) in entries {
        let Range { start: at, .. } = name.span();
        let name = name.get_ref().as_ref();
        let is_known = settings.iter().any(|setting| setting.name == name);
        if let (DeValue::Table(_), false) = (value.get_ref(), is_known) {
            let problem =
                format!("unknown table `{name}`: expected settings at the top level of the file");
            return Err((at, problem));
        }
        let Some(setting) = settings.iter().find(|setting| setting.name == name) else {
            let names = settings.iter().map(|setting| setting.name.as_str());
            let hint = match closest(name, names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "see `sluicegate serve --help` for all settings".to_owned(),
            };
            return Err((at, format!("unknown setting `{name}`: {hint}")));
        };
        let flag =
            flag_of(setting, value.get_ref()).map_err(|problem| (at, problem.to_string()))?;
        let line = line_of(text, at);
        found.push(FileSetting { name: name.to_owned(), line, flag });
    }
    Ok(found)
}

/// What to write instead of a line whose value is a string without quotes: `listen = 127.0.0.1:0`.
fn unquoted(line: &str, settings: &[Setting]) -> Option<String> {
    let (name, value) = line.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    let setting = settings.iter().find(|it| it.name == name && !it.is_flag)?;
    if value.is_empty() || value.contains(['"', '\'', '[', '{', '#']) {
        return None;
    }
    let name = &setting.name;
    Some(match SECRETS.contains(&name.as_str()) {
        true => format!("invalid {name}: expected a string in quotes"),
        false => format!("invalid {name} `{value}`: expected it in quotes: `{name} = \"{value}\"`"),
    })
}

/// Whether a line is a setting as YAML writes it: `listen: :6380`.
fn is_yaml(line: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|it| it.is_ascii_alphanumeric() || b"-_".contains(&it))
    };
    let value = line.split_once(':').filter(|(name, _)| is_name(name));
    value.is_some_and(|(_, value)| value.is_empty() || value.starts_with(' '))
}

/// The setting as a flag; `None` for a flag that is off, and for an empty list.
fn flag_of(setting: &Setting, value: &DeValue<'_>) -> anyhow::Result<Option<OsString>> {
    let name = &setting.name;
    let with = |value: &str| Some(format!("--{name}={value}").into());
    Ok(match value {
        DeValue::Boolean(on) if setting.is_flag => on.then(|| format!("--{name}").into()),
        DeValue::String(text) if !setting.is_flag => with(text),
        DeValue::Integer(number) if !setting.is_flag => with(&number.to_string()),
        DeValue::Array(items) if setting.is_list => {
            let texts = items.iter().map(|item| match item.get_ref() {
                DeValue::String(text) => Some(text.as_ref()),
                _ => None,
            });
            let Some(texts) = texts.collect::<Option<Vec<_>>>() else {
                bail!("invalid {name}: expected a list of strings");
            };
            if texts.is_empty() { None } else { with(&texts.join(",")) }
        }
        _ if setting.is_flag => bail!("invalid {name}: expected true or false"),
        _ if setting.is_list => bail!("invalid {name}: expected a string or a list of strings"),
        other if SECRETS.contains(&name.as_str()) => {
            bail!("invalid {name}: expected a string, not {}", kind(other))
        }
        other => bail!("invalid {name}: expected a string or a whole number, not {}", kind(other)),
    })
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a decimal number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// Rejects the masks that `--print-config` writes instead of secrets.
pub(super) fn check_masks(path: &Path, used: &[FileSetting]) -> anyhow::Result<()> {
    let masked = used.iter().find(|setting| {
        let flag = setting.flag.as_ref().map(|flag| flag.to_string_lossy());
        flag.is_some_and(|flag| flag.contains(MASKED))
    });
    match masked {
        None => Ok(()),
        Some(FileSetting { name, line, .. }) => bail!(
            "{}: line {line}: {name} is masked: replace {MASKED} by the secret, or remove the line",
            path.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::arguments::Arguments;

    #[test]
    fn parse_mistake_is_named_with_its_line() {
        let settings = settings_of(Arguments::command().find_subcommand("serve").unwrap());
        for (text, expected) in [
            ("\nlisen = 1", "2: unknown setting `lisen`: did you mean `listen`?"),
            ("max_clients = 1", "1: unknown setting `max_clients`: did you mean `max-clients`?"),
            ("x = 1", "1: unknown setting `x`: see `sluicegate serve --help` for all settings"),
            (
                "listen = true",
                "1: invalid listen: expected a string or a whole number, not true or false",
            ),
            (
                "requirepass = 1.5",
                "1: invalid requirepass: expected a string, not a decimal number",
            ),
            ("test-clock = 1", "1: invalid test-clock: expected true or false"),
            ("\n\nrules = [1]", "3: invalid rules: expected a list of strings"),
            (
                "\n[server]\nlisten = 1",
                "2: unknown table `server`: expected settings at the top level of the file",
            ),
            (
                "zzz = 1\nlisen = 1",
                "1: unknown setting `zzz`: see `sluicegate serve --help` for all settings",
            ),
            (
                "http = \"off\"\nlisten: :6380",
                "2: invalid line `listen: :6380`: expected `NAME = VALUE`, as in TOML",
            ),
            (
                "{\"listen\": \":6380\"}",
                "1: invalid line `{\"listen\": \":6380\"}`: expected `NAME = VALUE`, as in TOML",
            ),
            (
                "\nlisten = 127.0.0.1:0",
                "2: invalid listen `127.0.0.1:0`: expected it in quotes: `listen = \"127.0.0.1:0\"`",
            ),
            (
                "max-memory = 1gb",
                "1: invalid max-memory `1gb`: expected it in quotes: `max-memory = \"1gb\"`",
            ),
            (
                "http = off\nlisten = \":0\"",
                "1: invalid http `off`: expected it in quotes: `http = \"off\"`",
            ),
            ("requirepass = hunter2", "1: invalid requirepass: expected a string in quotes"),
            (
                "[store]\nurl = \"x\"",
                "1: invalid store: expected a string or a whole number, not a table",
            ),
        ] {
            let (at, problem) = parse(text, &settings).unwrap_err();
            assert_eq!(format!("{}: {problem}", line_of(text, at)), expected, "{text}");
        }
        let (at, problem) = parse("http = \"off\"\nlisten = ", &settings).unwrap_err();
        assert_eq!(line_of("http = \"off\"\nlisten = ", at), 2, "{problem}");
        assert!(problem.starts_with("invalid TOML: ") && !problem.contains('\n'), "{problem}");
    }
}
