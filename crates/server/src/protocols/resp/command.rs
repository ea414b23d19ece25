//! `COMMAND`: what clients ask in order to know which arguments are keys, and people for help.

use sluicegate_commands::{Argument, Command, Keys};
use sluicegate_resp::Writer;

use super::{settings::unknown, table};

/// `COMMAND [COUNT | DOCS [name ...] | INFO [name ...] | GETKEYS command ... | LIST]`.
pub(super) fn call(arguments: &[&[u8]], writer: &mut Writer<'_>) -> Result<(), String> {
    let [word, rest @ ..] = arguments else {
        writer.array(table::all().len());
        table::all().for_each(|command| entry(command, writer));
        return Ok(());
    };
    match (&*word.to_ascii_uppercase(), rest) {
        (b"COUNT", []) => writer.integer(i64::try_from(table::all().len()).unwrap_or(i64::MAX)),
        (b"LIST", []) => {
            writer.array(table::all().len());
            table::all().for_each(|command| writer.bulk(command.name.to_ascii_lowercase()));
        }
        (b"INFO", []) => return call(&[], writer),
        (b"INFO", names) => {
            writer.array(names.len());
            for name in names {
                match table::find(name) {
                    Some((_, command, _)) => entry(command, writer),
                    None => writer.null(),
                }
            }
        }
        (b"DOCS", []) => {
            writer.map(table::all().len());
            table::all().for_each(|command| docs(command, writer));
        }
        (b"DOCS", names) => {
            let found = names.iter().filter_map(|name| table::find(name));
            let found: Vec<_> = found.map(|(_, command, _)| command).collect();
            writer.map(found.len());
            found.into_iter().for_each(|command| docs(command, writer));
        }
        (b"GETKEYS", [name, ..]) => {
            let (_, command, _) = table::find(name).ok_or("ERR Invalid command specified")?;
            if !command.takes(rest.len()) {
                return Err("ERR Invalid number of arguments specified for command".into());
            }
            if command.keys == Keys::None {
                return Err("ERR The command has no key arguments".into());
            }
            let keys =
                command.keys_of(rest).ok_or("ERR Invalid arguments specified for command")?;
            writer.array(keys.len());
            keys.into_iter().for_each(|key| writer.bulk(key));
        }
        (b"COUNT" | b"LIST" | b"GETKEYS", _) => {
            let word = word.to_ascii_lowercase().escape_ascii().to_string();
            return Err(format!("ERR wrong number of arguments for 'command|{word}' command"));
        }
        _ => return Err(unknown(word, "COMMAND")),
    }
    Ok(())
}

/// One command as `COMMAND INFO` tells it.
fn entry(command: &Command, writer: &mut Writer<'_>) {
    writer.array(10);
    writer.bulk(command.name.to_ascii_lowercase());
    writer.integer(command.arity);
    writer.set(command.flags.len());
    command.flags.iter().for_each(|flag| writer.simple(flag));
    let (first, last, step) = match command.keys {
        // Where the arguments say which are keys, a range cannot.
        Keys::None | Keys::Counted => (0, 0, 0),
        Keys::First => (1, 1, 1),
        Keys::All => (1, -1, 1),
    };
    writer.integer(first);
    writer.integer(last);
    writer.integer(step);
    let categories = categories(command);
    writer.set(categories.len());
    categories.iter().for_each(|category| writer.simple(category));
    writer.array(0); // tips
    key_specification(command, writer);
    writer.array(0); // subcommands
}

/// The ACL categories that a command's flags and keys put it in.
fn categories(command: &Command) -> Vec<&'static str> {
    let has = |flag| command.flags.contains(&flag);
    let mut categories = Vec::new();
    for (flag, category) in
        [("write", "@write"), ("readonly", "@read"), ("admin", "@admin"), ("blocking", "@blocking")]
    {
        if has(flag) {
            categories.push(category);
        }
    }
    if command.group == "connection" {
        categories.push("@connection");
    }
    if has("admin") {
        categories.push("@dangerous");
    }
    categories.push(if has("fast") { "@fast" } else { "@slow" });
    categories
}

fn key_specification(command: &Command, writer: &mut Writer<'_>) {
    let (index, find, numbers): (_, _, [(&str, i64); 3]) = match command.keys {
        Keys::None => return writer.array(0),
        Keys::First => (1, "range", [("lastkey", 0), ("keystep", 1), ("limit", 0)]),
        Keys::All => (1, "range", [("lastkey", -1), ("keystep", 1), ("limit", 0)]),
        Keys::Counted => (1, "keynum", [("keynumidx", 0), ("firstkey", 1), ("keystep", 3)]),
    };
    writer.array(1);
    writer.map(3);
    writer.bulk("flags");
    let flags: &[&str] =
        if command.flags.contains(&"write") { &["RW", "UPDATE"] } else { &["RO", "ACCESS"] };
    writer.set(flags.len());
    flags.iter().for_each(|flag| writer.simple(flag));
    writer.bulk("begin_search");
    writer.map(2);
    writer.bulk("type");
    writer.bulk("index");
    writer.bulk("spec");
    writer.map(1);
    writer.bulk("index");
    writer.integer(index);
    writer.bulk("find_keys");
    writer.map(2);
    writer.bulk("type");
    writer.bulk(find);
    writer.bulk("spec");
    writer.map(numbers.len());
    for (name, value) in numbers {
        writer.bulk(name);
        writer.integer(value);
    }
}

/// One command as `COMMAND DOCS` tells it: its name, and a map behind.
fn docs(command: &Command, writer: &mut Writer<'_>) {
    writer.bulk(command.name.to_ascii_lowercase());
    writer.map(if command.arguments.is_empty() { 3 } else { 4 });
    writer.bulk("summary");
    writer.bulk(command.summary);
    writer.bulk("since");
    writer.bulk(env!("CARGO_PKG_VERSION"));
    writer.bulk("group");
    writer.bulk(command.group);
    if !command.arguments.is_empty() {
        writer.bulk("arguments");
        argument_docs(command.arguments, writer);
    }
}

fn argument_docs(arguments: &[Argument], writer: &mut Writer<'_>) {
    writer.array(arguments.len());
    for argument in arguments {
        let is_key = argument.kind == sluicegate_commands::ArgumentKind::Key;
        let flags = [(argument.optional, "optional"), (argument.multiple, "multiple")];
        let flags: Vec<_> = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).collect();
        let pairs =
            [is_key, argument.token.is_some(), !flags.is_empty(), !argument.parts.is_empty()];
        writer.map(2 + pairs.iter().filter(|&&there| there).count());
        writer.bulk("name");
        writer.bulk(argument.name);
        writer.bulk("type");
        writer.bulk(argument.kind.name());
        if is_key {
            writer.bulk("key_spec_index");
            writer.integer(0);
        }
        if let Some(token) = argument.token {
            writer.bulk("token");
            writer.bulk(token);
        }
        if !flags.is_empty() {
            writer.bulk("flags");
            writer.set(flags.len());
            flags.into_iter().for_each(|flag| writer.simple(flag));
        }
        if !argument.parts.is_empty() {
            writer.bulk("arguments");
            argument_docs(argument.parts, writer);
        }
    }
}
