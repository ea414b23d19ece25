//! The table of commands: names, arguments, keys, flags and summaries.

use crate::{limits::MAX_MANY, text::decimal};

/// A command, as `COMMAND` and `COMMAND DOCS` describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// In upper case. Clients may use any case.
    pub name: &'static str,
    /// Number of arguments, including the name; if negative, the minimum.
    pub arity: i64,
    /// The flags of `COMMAND INFO`.
    pub flags: &'static [&'static str],
    /// Which arguments are keys.
    pub keys: Keys,
    /// One sentence for `COMMAND DOCS`.
    pub summary: &'static str,
    /// The group in `COMMAND DOCS`.
    pub group: &'static str,
    /// The arguments after the name.
    pub arguments: &'static [Argument],
}

/// Which arguments are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// None.
    None,
    /// The first.
    First,
    /// All of them.
    All,
    /// The first argument is their number; they are the second argument and each third one after it.
    Counted,
}

/// One argument of a command, or a block of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its name in the syntax.
    pub name: &'static str,
    /// Its type.
    pub kind: ArgumentKind,
    /// The keyword before it.
    pub token: Option<&'static str>,
    /// Whether it is optional.
    pub optional: bool,
    /// Whether it may be repeated.
    pub multiple: bool,
    /// The arguments of a block.
    pub parts: &'static [Self],
}

/// The types of arguments in `COMMAND DOCS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentKind {
    /// `key`
    Key,
    /// `string`
    Text,
    /// `integer`
    Integer,
    /// `pure-token`: a keyword without a value.
    Token,
    /// `block`: a sequence of arguments.
    Block,
}

impl ArgumentKind {
    /// The type as `COMMAND DOCS` writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Text => "string",
            Self::Integer => "integer",
            Self::Token => "pure-token",
            Self::Block => "block",
        }
    }
}

impl Argument {
    /// A mandatory argument.
    #[must_use]
    pub const fn new(name: &'static str, kind: ArgumentKind) -> Self {
        Self { name, kind, token: None, optional: false, multiple: false, parts: &[] }
    }

    /// An optional argument.
    #[must_use]
    pub const fn optional(name: &'static str, kind: ArgumentKind) -> Self {
        Self { optional: true, ..Self::new(name, kind) }
    }

    /// An optional whole number after the keyword `token`.
    #[must_use]
    pub const fn option(token: &'static str, name: &'static str) -> Self {
        Self { token: Some(token), ..Self::optional(name, ArgumentKind::Integer) }
    }

    /// An optional keyword.
    #[must_use]
    pub const fn word(token: &'static str) -> Self {
        Self { token: Some(token), ..Self::optional(token, ArgumentKind::Token) }
    }

    /// Its syntax: `key`, `[COST cost]`, `key policy cost [key policy cost ...]`.
    fn syntax(&self) -> String {
        let name = match self.parts {
            [] => self.name.to_owned(),
            parts => parts.iter().map(Self::syntax).collect::<Vec<_>>().join(" "),
        };
        let name = match self.token {
            Some(token) if self.kind == ArgumentKind::Token => token.to_owned(),
            Some(token) => format!("{token} {name}"),
            None => name,
        };
        match (self.optional, self.multiple) {
            (true, _) => format!("[{name}]"),
            (false, true) => format!("{name} [{name} ...]"),
            (false, false) => name,
        }
    }

    /// A block of arguments that may be repeated.
    #[must_use]
    pub const fn repeated(name: &'static str, parts: &'static [Self]) -> Self {
        Self { multiple: true, parts, ..Self::new(name, ArgumentKind::Block) }
    }
}

impl Command {
    /// Whether `count` arguments are valid, including the name.
    #[must_use]
    pub const fn takes(&self, count: usize) -> bool {
        let least = self.arity.unsigned_abs();
        if self.arity < 0 { count as u64 >= least } else { count as u64 == least }
    }

    /// Its syntax: `SG.TAKE key policy [COST cost]`.
    #[must_use]
    pub fn syntax(&self) -> String {
        let arguments = self.arguments.iter().map(|argument| format!(" {}", argument.syntax()));
        std::iter::once(self.name.to_owned()).chain(arguments).collect()
    }

    /// The keys among `arguments`, which start with the name. `None` if the command has no keys or the
    /// arguments are invalid.
    #[must_use]
    pub fn keys_of<'a>(&self, arguments: &[&'a [u8]]) -> Option<Vec<&'a [u8]>> {
        let indexes = self.key_indexes(arguments)?.into_iter();
        Some(indexes.filter_map(|index| arguments.get(index).copied()).collect())
    }

    /// The indexes of the keys among `arguments`, otherwise as [`keys_of`](Self::keys_of).
    #[must_use]
    pub fn key_indexes(&self, arguments: &[&[u8]]) -> Option<Vec<usize>> {
        if !self.takes(arguments.len()) {
            return None;
        }
        match self.keys {
            Keys::None => None,
            Keys::First => (arguments.len() > 1).then(|| vec![1]),
            Keys::All => Some((1..arguments.len()).collect()),
            Keys::Counted => {
                let count = usize::try_from(decimal(arguments.get(1)?)?).ok()?;
                if !(1..=MAX_MANY).contains(&count) {
                    return None;
                }
                let (mut indexes, mut index) = (Vec::new(), 2);
                for _ in 0..count {
                    indexes.push(index);
                    index += if is_cost(arguments.get(index + 2)?) { 4 } else { 3 };
                }
                (index <= arguments.len()).then_some(indexes)
            }
        }
    }
}

/// Whether an argument of `SG.MTAKE` is the keyword before a cost.
pub(crate) fn is_cost(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"COST")
}

/// The command with that name, in any case.
#[must_use]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    position(name).map(|index| &COMMANDS[index])
}

/// The index in [`COMMANDS`] of the command with that name, in any case.
#[must_use]
#[inline]
pub fn position(name: &[u8]) -> Option<usize> {
    COMMANDS.iter().position(|command| name.eq_ignore_ascii_case(command.name.as_bytes()))
}

/// How a command is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandKind {
    Throttle,
    Take,
    Peek,
    Charge,
    Refund,
    Reserve,
    Wait,
    Reset,
    Info,
    TakeMany,
}

/// The kind of each of [`COMMANDS`], in the same order.
pub(crate) const COMMAND_KINDS: [CommandKind; COMMANDS.len()] = [
    CommandKind::Throttle,
    CommandKind::Take,
    CommandKind::Peek,
    CommandKind::Charge,
    CommandKind::Refund,
    CommandKind::Reserve,
    CommandKind::Wait,
    CommandKind::Reset,
    CommandKind::Info,
    CommandKind::TakeMany,
];

const KEY: Argument = Argument::new("key", ArgumentKind::Key);
const POLICY: Argument = Argument::new("policy", ArgumentKind::Text);
const COST: Argument = Argument::option("COST", "cost");
const DECISION: &[Argument] = &[KEY, POLICY, COST];

/// All commands on keys.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "CL.THROTTLE",
        arity: -5,
        flags: &["write", "denyoom", "fast"],
        keys: Keys::First,
        summary: "Takes from a gcra limit, with the arguments and the reply of redis-cell.",
        group: GROUP,
        arguments: &[
            KEY,
            Argument::new("max_burst", ArgumentKind::Integer),
            Argument::new("count", ArgumentKind::Integer),
            Argument::new("period", ArgumentKind::Integer),
            Argument::optional("quantity", ArgumentKind::Integer),
        ],
    },
    Command {
        name: "SG.TAKE",
        arity: -3,
        flags: &["write", "denyoom", "fast"],
        keys: Keys::First,
        summary: "Takes units under a policy: all of them or none.",
        group: GROUP,
        arguments: DECISION,
    },
    Command {
        name: "SG.PEEK",
        arity: -3,
        flags: &["readonly", "fast"],
        keys: Keys::First,
        summary: "Returns what SG.TAKE would, and stores nothing.",
        group: GROUP,
        arguments: DECISION,
    },
    Command {
        name: "SG.CHARGE",
        arity: -3,
        flags: &["write", "denyoom", "fast"],
        keys: Keys::First,
        summary: "Takes units whether or not they fit; later requests wait until they are repaid.",
        group: GROUP,
        arguments: DECISION,
    },
    Command {
        name: "SG.REFUND",
        arity: -3,
        flags: &["write", "denyoom", "fast"],
        keys: Keys::First,
        summary: "Gives back units that are in use.",
        group: GROUP,
        arguments: DECISION,
    },
    Command {
        name: "SG.RESERVE",
        arity: -3,
        flags: &["write", "denyoom", "fast"],
        keys: Keys::First,
        summary: "Takes units now, for use after the returned delay.",
        group: GROUP,
        arguments: &[KEY, POLICY, COST, Argument::option("MAXWAIT", "microseconds")],
    },
    Command {
        name: "SG.WAIT",
        arity: -3,
        flags: &["write", "denyoom", "blocking"],
        keys: Keys::First,
        summary: "Takes units, and replies when they fit or when the timeout is sure to be missed.",
        group: GROUP,
        arguments: &[KEY, POLICY, COST, Argument::option("TIMEOUT", "microseconds")],
    },
    Command {
        name: "SG.RESET",
        arity: -2,
        flags: &["write", "fast"],
        keys: Keys::First,
        summary: "Resets a key.",
        group: GROUP,
        arguments: &[KEY],
    },
    Command {
        name: "SG.INFO",
        arity: -2,
        flags: &["readonly", "fast"],
        keys: Keys::First,
        summary: "Describes what is stored for a key.",
        group: GROUP,
        arguments: &[KEY],
    },
    Command {
        name: "SG.MTAKE",
        arity: -5,
        flags: &["write", "denyoom", "movablekeys"],
        keys: Keys::Counted,
        summary: "Takes from several keys, independently of each other.",
        group: GROUP,
        arguments: &[
            Argument::new("n", ArgumentKind::Integer),
            Argument::repeated(
                "take",
                &[
                    KEY,
                    POLICY,
                    Argument::word("COST"),
                    Argument::new("cost", ArgumentKind::Integer),
                ],
            ),
        ],
    },
];

const GROUP: &str = "module";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_any_case_returns_command() {
        assert_eq!(find(b"sg.Take").unwrap().name, "SG.TAKE");
        assert_eq!(find(b"SG.TAK"), None);
        assert_eq!(find(b""), None);
    }

    #[test]
    fn keys_of_every_kind_returns_keys() {
        let check = |line: &str, expected: Option<&[&str]>| {
            let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let keys = find(arguments[0]).unwrap().keys_of(&arguments);
            let expected =
                expected.map(|keys| keys.iter().map(|key| key.as_bytes()).collect::<Vec<_>>());
            assert_eq!(keys, expected, "{line}");
        };
        check("SG.TAKE a gcra:1/s", Some(&["a"]));
        check("SG.TAKE a", None);
        check("SG.MTAKE 2 a p 1 b p 1", Some(&["a", "b"]));
        check("SG.MTAKE 1 a p 1 AT 5", Some(&["a"]));
        check("SG.MTAKE 3 a p cost 1 b p 1 cost p COST 1 AT 5", Some(&["a", "b", "cost"]));
        check("SG.MTAKE 1 a p COST", None);
        check("SG.MTAKE 2 a p 1", None);
        check("SG.MTAKE 18446744073709551615 a p 1", None);
        check("SG.MTAKE x a p 1", None);
    }

    #[test]
    fn command_kinds_match_names() {
        for (command, kind) in COMMANDS.iter().zip(COMMAND_KINDS) {
            let name = match kind {
                CommandKind::TakeMany => "SG.MTAKE".to_owned(),
                CommandKind::Throttle => "CL.THROTTLE".to_owned(),
                kind => format!("SG.{kind:?}").to_uppercase(),
            };
            assert_eq!(command.name, name);
        }
    }

    #[test]
    fn syntax_options_and_repetitions_in_brackets() {
        let all: Vec<_> = COMMANDS.iter().map(Command::syntax).collect();
        assert_eq!(all[0], "CL.THROTTLE key max_burst count period [quantity]");
        assert_eq!(all[1], "SG.TAKE key policy [COST cost]");
        assert_eq!(all[6], "SG.WAIT key policy [COST cost] [TIMEOUT microseconds]");
        assert_eq!(all[9], "SG.MTAKE n key policy [COST] cost [key policy [COST] cost ...]");
    }

    #[test]
    fn commands_summary_and_arity_are_consistent() {
        for command in COMMANDS {
            assert_eq!(command.name, command.name.to_ascii_uppercase());
            assert!(command.summary.ends_with('.'), "{}", command.name);
            let mandatory = command.arguments.iter().filter(|argument| !argument.optional).count();
            let least = usize::try_from(command.arity.unsigned_abs()).unwrap();
            assert!(mandatory < least, "{}", command.name);
        }
    }
}
