//! `COMMAND [COUNT | DOCS [name ...] | INFO [name ...] | GETKEYS command ... | LIST]`: describes the commands, for
//! clients that need to know which arguments are keys, and for people.

use sluicegate_commands::{Argument, ArgumentKind, CommandSpec, Keys};
use sluicegate_resp::Writer;

use super::spec::{FAST, SUBCOMMAND};
use crate::protocols::resp::{
    call::{CallResult, CommandCall, Next, ServerCommand, command, unknown_subcommand},
    session::WORK,
};

pub(super) const COMMAND: ServerCommand =
    command("COMMAND", -1, FAST, SUBCOMMAND, "Describes the commands.", run)
        .of_server()
        .with_work(WORK);

fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let table = call.table;
    let (word, rest) = match call.arguments_after_name() {
        [] => (&b"INFO"[..], &[][..]),
        [word, rest @ ..] => (*word, rest),
    };
    let writer = &mut call.writer();
    match (&*word.to_ascii_uppercase(), rest) {
        (b"COUNT", []) => writer.integer(i64::try_from(table.specs().len()).unwrap_or(i64::MAX)),
        (b"LIST", []) => {
            writer.array(table.specs().len());
            table.specs().for_each(|spec| writer.bulk(spec.name.to_ascii_lowercase()));
        }
        (b"INFO", []) => {
            writer.array(table.specs().len());
            table.specs().for_each(|spec| entry(spec, writer));
        }
        (b"INFO", names) => {
            writer.array(names.len());
            for name in names {
                match table.find(name) {
                    Some(spec) => entry(spec, writer),
                    None => writer.null(),
                }
            }
        }
        (b"DOCS", []) => {
            writer.map(table.specs().len());
            table.specs().for_each(|spec| docs(spec, writer));
        }
        (b"DOCS", names) => {
            let found: Vec<_> = names.iter().filter_map(|name| table.find(name)).collect();
            writer.map(found.len());
            found.into_iter().for_each(|spec| docs(spec, writer));
        }
        (b"GETKEYS", [name, ..]) => {
            let spec = table.find(name).ok_or("ERR Invalid command specified")?;
            if !spec.takes(rest.len()) {
                return Err("ERR Invalid number of arguments specified for command".into());
            }
            if spec.keys == Keys::None {
                return Err("ERR The command has no key arguments".into());
            }
            let keys = spec.keys_of(rest).ok_or("ERR Invalid arguments specified for command")?;
            writer.array(keys.len());
            keys.into_iter().for_each(|key| writer.bulk(key));
        }
        (b"COUNT" | b"LIST" | b"GETKEYS", _) => {
            let word = word.to_ascii_lowercase().escape_ascii().to_string();
            return Err(format!(
                "ERR wrong number of arguments for 'command|{word}' command; expected COMMAND COUNT, COMMAND LIST or \
                 COMMAND GETKEYS command [argument ...]"
            ));
        }
        _ => return Err(unknown_subcommand(word, "COMMAND", "COUNT, DOCS, GETKEYS, INFO or LIST")),
    }
    Ok(Next::Go)
}

/// The reply of `COMMAND INFO` for one spec.
fn entry(spec: &CommandSpec, writer: &mut Writer<'_>) {
    writer.array(10);
    writer.bulk(spec.name.to_ascii_lowercase());
    writer.integer(spec.arity);
    writer.set(spec.flags.len());
    spec.flags.iter().for_each(|flag| writer.simple(flag));
    let (first, last, step) = match spec.keys {
        // The arguments determine the keys: no range describes them.
        Keys::None | Keys::Counted => (0, 0, 0),
        Keys::First => (1, 1, 1),
        Keys::All => (1, -1, 1),
    };
    writer.integer(first);
    writer.integer(last);
    writer.integer(step);
    let categories = categories(spec);
    writer.set(categories.len());
    categories.iter().for_each(|category| writer.simple(category));
    writer.array(0); // tips
    key_specification(spec, writer);
    writer.array(0); // subcommands
}

/// The ACL categories of a command, by its flags and its group.
fn categories(spec: &CommandSpec) -> Vec<&'static str> {
    let has = |flag| spec.flags.contains(&flag);
    let mut categories = Vec::new();
    for (flag, category) in
        [("write", "@write"), ("readonly", "@read"), ("admin", "@admin"), ("blocking", "@blocking")]
    {
        if has(flag) {
            categories.push(category);
        }
    }
    if spec.group == "connection" {
        categories.push("@connection");
    }
    if has("admin") {
        categories.push("@dangerous");
    }
    categories.push(if has("fast") { "@fast" } else { "@slow" });
    categories
}

fn key_specification(spec: &CommandSpec, writer: &mut Writer<'_>) {
    let (index, find, numbers): (_, _, [(&str, i64); 3]) = match spec.keys {
        Keys::None => return writer.array(0),
        Keys::First => (1, "range", [("lastkey", 0), ("keystep", 1), ("limit", 0)]),
        Keys::All => (1, "range", [("lastkey", -1), ("keystep", 1), ("limit", 0)]),
        Keys::Counted => (1, "keynum", [("keynumidx", 0), ("firstkey", 1), ("keystep", 3)]),
    };
    writer.array(1);
    writer.map(3);
    writer.bulk("flags");
    let flags: &[&str] =
        if spec.flags.contains(&"write") { &["RW", "UPDATE"] } else { &["RO", "ACCESS"] };
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

/// The reply of `COMMAND DOCS` for one command: its name, and a map.
fn docs(spec: &CommandSpec, writer: &mut Writer<'_>) {
    writer.bulk(spec.name.to_ascii_lowercase());
    writer.map(if spec.arguments.is_empty() { 3 } else { 4 });
    writer.bulk("summary");
    writer.bulk(spec.summary);
    writer.bulk("since");
    writer.bulk(env!("CARGO_PKG_VERSION"));
    writer.bulk("group");
    writer.bulk(spec.group);
    if !spec.arguments.is_empty() {
        writer.bulk("arguments");
        argument_docs(spec.arguments, writer);
    }
}

fn argument_docs(arguments: &[Argument], writer: &mut Writer<'_>) {
    writer.array(arguments.len());
    for argument in arguments {
        let is_key = argument.kind == ArgumentKind::Key;
        let flags = [(argument.optional, "optional"), (argument.multiple, "multiple")];
        let flags: Vec<_> = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).collect();
        let pairs =
            [is_key, argument.token.is_some(), !flags.is_empty(), !argument.parts.is_empty()];
        writer.map(2 + pairs.iter().filter(|&&is_present| is_present).count());
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
