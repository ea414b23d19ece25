//! All commands of this face: those that decide, and those that look after a connection.

use sluicegate_commands::{Argument, ArgumentKind, COMMANDS, Command, Keys, position};

/// What carries a command out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Limiter,
    Auth,
    Client,
    Cluster,
    Command,
    Config,
    DbSize,
    Del,
    Echo,
    Exists,
    Hello,
    Info,
    Latency,
    ListKeys,
    Ping,
    Pttl,
    Quit,
    Reset,
    Role,
    Select,
    SlowLog,
    Time,
    Ttl,
}

impl Word {
    /// Whether a client may call it that has yet to give the password.
    pub(super) const fn before_password(self) -> bool {
        matches!(self, Self::Auth | Self::Hello | Self::Quit | Self::Reset)
    }
}

/// The command of that name, in any case, with its place among all and what carries it out.
pub(super) fn find(name: &[u8]) -> Option<(usize, &'static Command, Word)> {
    let named = |command: &Command| name.eq_ignore_ascii_case(command.name.as_bytes());
    if let Some(index) = position(name) {
        return Some((index, &COMMANDS[index], Word::Limiter));
    }
    let index = CONNECTION.iter().position(|(_, command)| named(command))?;
    let (word, command) = &CONNECTION[index];
    Some((COMMANDS.len() + index, command, *word))
}

/// All commands, in the order of their places.
pub(super) fn all() -> impl ExactSizeIterator<Item = &'static Command> {
    (0..COMMANDS.len() + CONNECTION.len())
        .map(|index| COMMANDS.get(index).unwrap_or_else(|| &CONNECTION[index - COMMANDS.len()].1))
}

const fn command(
    name: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    arguments: &'static [Argument],
    summary: &'static str,
) -> Command {
    Command { name, arity, flags, keys: Keys::None, summary, group: "connection", arguments }
}

const fn with_keys(keys: Keys, command: Command) -> Command {
    Command { keys, group: "generic", ..command }
}

const fn of_server(command: Command) -> Command {
    Command { group: "server", ..command }
}

const fn text(name: &'static str) -> Argument {
    Argument::new(name, ArgumentKind::Text)
}

const SUBCOMMAND: &[Argument] = &[text("subcommand")];
const KEY: &[Argument] = &[Argument::new("key", ArgumentKind::Key)];
const EACH_KEY: &[Argument] =
    &[Argument { multiple: true, ..Argument::new("key", ArgumentKind::Key) }];
const EARLY: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth"];
const FAST: &[&str] = &["loading", "stale", "fast"];
const ADMIN: &[&str] = &["admin", "noscript", "loading", "stale"];

const CONNECTION: &[(Word, Command)] = &[
    (
        Word::Auth,
        command(
            "AUTH",
            -2,
            EARLY,
            &[Argument::optional("username", ArgumentKind::Text), text("password")],
            "Authenticates the connection.",
        ),
    ),
    (Word::Client, command("CLIENT", -2, ADMIN, SUBCOMMAND, "Lists, names and closes clients.")),
    (
        Word::Cluster,
        of_server(command(
            "CLUSTER",
            -2,
            FAST,
            SUBCOMMAND,
            "Reports that cluster support is disabled.",
        )),
    ),
    (Word::Command, of_server(command("COMMAND", -1, FAST, SUBCOMMAND, "Describes the commands."))),
    (Word::Config, of_server(command("CONFIG", -2, ADMIN, SUBCOMMAND, "Returns settings."))),
    (Word::DbSize, of_server(command("DBSIZE", 1, &["readonly", "fast"], &[], "Counts the keys."))),
    (Word::Del, with_keys(Keys::All, command("DEL", -2, &["write"], EACH_KEY, "Resets keys."))),
    (Word::Echo, command("ECHO", 2, FAST, &[text("message")], "Returns the message.")),
    (
        Word::Exists,
        with_keys(
            Keys::All,
            command(
                "EXISTS",
                -2,
                &["readonly", "fast"],
                EACH_KEY,
                "Counts the keys that have state.",
            ),
        ),
    ),
    (
        Word::Hello,
        command(
            "HELLO",
            -1,
            EARLY,
            &[Argument::optional("protover", ArgumentKind::Integer)],
            "Selects the protocol, and describes the server.",
        ),
    ),
    (
        Word::Info,
        of_server(command(
            "INFO",
            -1,
            &["loading", "stale"],
            &[Argument { multiple: true, ..Argument::optional("section", ArgumentKind::Text) }],
            "Returns statistics and status.",
        )),
    ),
    (
        Word::Latency,
        of_server(command(
            "LATENCY",
            -2,
            ADMIN,
            SUBCOMMAND,
            "Reports that no latency is recorded.",
        )),
    ),
    (
        Word::ListKeys,
        of_server(command(
            "SG.KEYS",
            -2,
            &["readonly"],
            &[
                Argument::new("cursor", ArgumentKind::Integer),
                Argument::option("COUNT", "count"),
                Argument {
                    token: Some("MATCH"),
                    ..Argument::optional("prefix", ArgumentKind::Text)
                },
                Argument::optional("DENIED", ArgumentKind::Text),
            ],
            "Lists the keys that the server samples.",
        )),
    ),
    (
        Word::Ping,
        command(
            "PING",
            -1,
            FAST,
            &[Argument::optional("message", ArgumentKind::Text)],
            "Returns PONG, or the message.",
        ),
    ),
    (
        Word::Pttl,
        with_keys(
            Keys::First,
            command(
                "PTTL",
                2,
                &["readonly", "fast"],
                KEY,
                "Returns the expiry time of a key, in milliseconds.",
            ),
        ),
    ),
    (Word::Quit, command("QUIT", -1, EARLY, &[], "Closes the connection.")),
    (Word::Reset, command("RESET", 1, EARLY, &[], "Resets the connection.")),
    (
        Word::Role,
        of_server(command(
            "ROLE",
            1,
            FAST,
            &[],
            "Reports that this server is a primary without replicas.",
        )),
    ),
    (
        Word::Select,
        command(
            "SELECT",
            2,
            FAST,
            &[Argument::new("index", ArgumentKind::Integer)],
            "Selects a database; there is only database 0.",
        ),
    ),
    (
        Word::SlowLog,
        of_server(command("SLOWLOG", -2, ADMIN, SUBCOMMAND, "Reports that nothing is recorded.")),
    ),
    (Word::Time, of_server(command("TIME", 1, FAST, &[], "Returns the time of the server."))),
    (
        Word::Ttl,
        with_keys(
            Keys::First,
            command(
                "TTL",
                2,
                &["readonly", "fast"],
                KEY,
                "Tells until when a key is kept, in seconds.",
            ),
        ),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_at_its_place() {
        for (index, command) in all().enumerate() {
            let (found, same, _) = find(command.name.to_lowercase().as_bytes()).unwrap();
            assert_eq!((found, same), (index, command));
        }
        assert!(all().len() <= crate::stats::MAX_COMMANDS, "the counters of calls have no room");
    }
}
