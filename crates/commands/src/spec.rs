//! Description of a command: name, arguments and their bounds, keys, flags and summary.

use std::time::Duration;

use sluicegate_core::MAX_DRAIN;

/// A command, as `COMMAND` and `COMMAND DOCS` describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandSpec {
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

impl CommandSpec {
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
                if !(1..=MAX_INDEPENDENT_TAKES).contains(&count) {
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

pub(crate) const KEY: Argument = Argument::new("key", ArgumentKind::Key);
pub(crate) const POLICY: Argument = Argument::new("policy", ArgumentKind::Text);
pub(crate) const ID: Argument = Argument::new("id", ArgumentKind::Text);
pub(crate) const TTL: Argument = Argument::option("TTL", "microseconds");
pub(crate) const COST: Argument = Argument::option("COST", "cost");

/// Flags of a command that changes one key in constant time.
pub(crate) const FAST_WRITE: &[&str] = &["write", "denyoom", "fast"];
/// Flags of a command that reads one key in constant time.
pub(crate) const FAST_READ: &[&str] = &["readonly", "fast"];

/// A command on one key.
pub(crate) const ONE_KEY: CommandSpec = CommandSpec {
    name: "",
    arity: -2,
    flags: FAST_WRITE,
    keys: Keys::First,
    summary: "",
    group: "module",
    arguments: &[KEY],
};
/// A command that decides about one key under a policy.
pub(crate) const DECISION: CommandSpec =
    CommandSpec { arity: -3, arguments: &[KEY, POLICY, COST], ..ONE_KEY };
/// A command on a hold of one key.
pub(crate) const HOLD: CommandSpec = CommandSpec { arity: -4, ..ONE_KEY };

/// Upper bound on a time span in an option, in microseconds: 2^50, 35 years. No request waits longer. It is the default
/// of `MAXWAIT` in `SG.RESERVE`.
pub const MAX_SPAN: u64 = MAX_DRAIN;

/// Default `TIMEOUT` of `SG.WAIT`.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Upper bound on the takes of one `SG.MTAKE`.
pub const MAX_INDEPENDENT_TAKES: usize = 256;

/// A whole number in decimal digits: no sign, no space, no leading zero.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    match text {
        [b'0'] => Some(0),
        [b'1'..=b'9', ..] => text.iter().try_fold(0_u64, |number, &byte| {
            let digit = byte.checked_sub(b'0').filter(|&digit| digit <= 9)?;
            number.checked_mul(10)?.checked_add(digit.into())
        }),
        _ => None,
    }
}

#[cfg(test)]
mod decimal_tests {
    use super::*;

    #[test]
    fn decimal_accepts_plain_digits_only() {
        let table: [(&[u8], Option<u64>); 16] = [
            (b"0", Some(0)),
            (b"7", Some(7)),
            (b"18446744073709551615", Some(u64::MAX)),
            (b"18446744073709551616", None),
            (b"99999999999999999999999", None),
            (b"", None),
            (b"00", None),
            (b"01", None),
            (b"+5", None),
            (b"-0", None),
            (b"-5", None),
            (b" 5", None),
            (b"5 ", None),
            (b"5.0", None),
            (b"0x5", None),
            (b"5\0", None),
        ];
        for (text, expected) in table {
            assert_eq!(decimal(text), expected, "{}", text.escape_ascii());
        }
    }
}
