//! Registers the commands with the server: names, flags, keys, categories, documentation.

use std::{
    ffi::{CStr, CString, c_char, c_int},
    ptr::null,
};

use sluicegate_commands::{Argument, ArgumentKind, CommandSpec, Keys, table};

use crate::{
    api::{self, BeginAt, CommandArgument, CommandInfo, CommandInfoVersion, KeySpec, Run, api},
    commands::{self, ModuleCommand},
    context::{Context, text},
    options,
};

const SINCE: &CStr = c"0.1.0";
const COMPLEXITY: &CStr =
    c"O(1) for a limit, O(log N) for a sliding-log of N events that are taken \
                            one at a time, else O(N)";
/// ACL category of the commands, on servers that let modules add one.
const CATEGORY: &CStr = c"ratelimit";

/// Registers all commands. `CL.THROTTLE` may belong to another module.
///
/// # Errors
/// A command exists already.
pub(crate) fn all(context: Context<'_>) -> Result<(), String> {
    // SAFETY: the context is valid.
    let add = |add: unsafe extern "C" fn(_, _) -> c_int| unsafe {
        add(context.raw(), CATEGORY.as_ptr()) == api::OK
    };
    let category = api().add_acl_category.is_some_and(add);
    for ModuleCommand { spec, run } in table() {
        let name = spec.name.to_lowercase();
        if !create(context, &name, run, spec.flags, spec.keys) {
            if spec.name != "CL.THROTTLE" {
                return Err(format!("command `{name}` is taken"));
            }
            context.log(
                c"notice",
                "cl.throttle is taken by another module, so it stays that module's; all other \
                 commands are there",
            );
            continue;
        }
        describe(context, spec, &name, category);
    }
    if options::TEST_PANIC.get() {
        create(context, "sg.panic", commands::panic, &[], Keys::None);
    }
    Ok(())
}

/// Creates a command. False if its name is taken.
fn create(context: Context<'_>, name: &str, run: Run, flags: &[&str], keys: Keys) -> bool {
    let flags: Vec<_> = flags.iter().map(|flag| flag_of_module(flag)).collect();
    let (name, flags) = (text(name), text(&flags.join(" ")));
    let (first, last) = match keys {
        Keys::First => (1, 1),
        Keys::All => (1, -1),
        // Only the key specification describes them.
        Keys::None | Keys::Counted => (0, 0),
    };
    // SAFETY: context and strings are valid; the server copies them.
    let answer = unsafe {
        let (name, flags) = (name.as_ptr(), flags.as_ptr());
        (api().create_command)(context.raw(), name, run, flags, first, last, first)
    };
    answer == api::OK
}

/// A flag of `COMMAND INFO`, as the module API calls it.
fn flag_of_module(flag: &str) -> &str {
    match flag {
        "denyoom" => "deny-oom",
        // The command reports which arguments are keys.
        "movablekeys" => "getkeys-api",
        flag => flag,
    }
}

fn describe(context: Context<'_>, spec: &CommandSpec, name: &str, category: bool) {
    let mut strings = Strings::default();
    let arguments = strings.arguments(spec.arguments);
    let key_specs = key_specs(spec);
    let info = CommandInfo {
        version: &raw const VERSION,
        summary: strings.store_string(spec.summary),
        complexity: COMPLEXITY.as_ptr(),
        since: SINCE.as_ptr(),
        history: null(),
        tips: null(),
        // The server then rejects the wrong number of arguments.
        arity: c_int::try_from(spec.arity).unwrap_or(0),
        key_specs: key_specs.as_ptr(),
        arguments,
    };
    let name = text(name);
    // SAFETY: all that is pointed to lives until after the call, and the server copies it.
    unsafe {
        let handle = (api().get_command)(context.raw(), name.as_ptr());
        if handle.is_null() {
            return;
        }
        if (api().set_command_info)(handle, &raw const info) != api::OK {
            context.log(c"warning", &format!("{} is not documented", spec.name));
        }
        if let Some(set) = api().set_acl_categories {
            let categories = text(&categories(spec, category));
            set(handle, categories.as_ptr());
        }
    }
}

/// ACL categories of a command. Redis 7.0 has none for the commands of modules.
fn categories(spec: &CommandSpec, own: bool) -> String {
    let has = |flag| spec.flags.contains(&flag);
    let mut categories = vec![if has("readonly") { "read" } else { "write" }];
    categories.push(if has("fast") { "fast" } else { "slow" });
    if has("blocking") {
        categories.push("blocking");
    }
    if own {
        categories.push("ratelimit");
    }
    categories.join(" ")
}

static VERSION: CommandInfoVersion = CommandInfoVersion::ONE;

/// Which arguments are keys, and the end of the list.
fn key_specs(spec: &CommandSpec) -> Vec<KeySpec> {
    let flags = if spec.flags.contains(&"readonly") {
        api::KEY_READ_ONLY | api::KEY_ACCESS
    } else if spec.name == "SG.RESET" {
        api::KEY_REMOVE | api::KEY_DELETE
    } else {
        api::KEY_READ_WRITE | api::KEY_ACCESS | api::KEY_UPDATE
    };
    let (find, keys) = match spec.keys {
        Keys::None => return vec![key_spec(0, 0, 0, [0; 3])],
        Keys::First => (api::FIND_RANGE, [0, 1, 0]),
        Keys::All => (api::FIND_RANGE, [-1, 1, 0]),
        // The count is where the search begins; the first key follows it, and each other key is three further.
        Keys::Counted => (api::FIND_BY_COUNT, [0, 1, 3]),
    };
    // Redis 7.0 assumes that the keys are adjacent. Therefore the command reports them instead.
    let flags = if spec.keys == Keys::Counted { flags | api::KEY_ASK_COMMAND } else { flags };
    vec![key_spec(flags, api::BEGIN_AT_INDEX, find, keys), key_spec(0, 0, 0, [0; 3])]
}

const fn key_spec(flags: u64, begin: c_int, find: c_int, keys: [c_int; 3]) -> KeySpec {
    let index = if begin == 0 { 0 } else { 1 };
    KeySpec { notes: null(), flags, begin, begin_at: BeginAt { index, unused: null() }, find, keys }
}

/// Strings and lists that a description points to.
#[derive(Default)]
struct Strings {
    strings: Vec<CString>,
    lists: Vec<Vec<CommandArgument>>,
}

impl Strings {
    fn store_string(&mut self, string: &str) -> *const c_char {
        let string = text(string);
        // The bytes do not move when the list grows.
        let start = string.as_ptr();
        self.strings.push(string);
        start
    }

    /// A list of arguments, with its end.
    fn arguments(&mut self, arguments: &[Argument]) -> *const CommandArgument {
        let mut list: Vec<_> = arguments.iter().map(|it| self.argument(it)).collect();
        list.push(CommandArgument::END);
        let start = list.as_ptr();
        self.lists.push(list);
        start
    }

    fn argument(&mut self, argument: &Argument) -> CommandArgument {
        let (kind, key_spec) = match argument.kind {
            ArgumentKind::Key => (api::ARGUMENT_KEY, 0),
            ArgumentKind::Text => (api::ARGUMENT_STRING, -1),
            ArgumentKind::Integer => (api::ARGUMENT_INTEGER, -1),
            ArgumentKind::Token => (api::ARGUMENT_PURE_TOKEN, -1),
            ArgumentKind::Block => (api::ARGUMENT_BLOCK, -1),
        };
        let flag = |set: bool, flag| if set { flag } else { 0 };
        CommandArgument {
            name: self.store_string(argument.name),
            kind,
            key_spec,
            token: argument.token.map_or(null(), |token| self.store_string(token)),
            flags: flag(argument.optional, api::ARGUMENT_OPTIONAL)
                | flag(argument.multiple, api::ARGUMENT_MULTIPLE),
            parts: if argument.parts.is_empty() { null() } else { self.arguments(argument.parts) },
            ..CommandArgument::END
        }
    }
}
