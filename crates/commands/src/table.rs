//! The table of commands.

use sluicegate_core::closest;

use crate::{
    CommandError,
    arguments::HostOptions,
    command::{Command, FromCommand, Parsed},
    commands::{
        cl_throttle, increx, sg_charge, sg_hold, sg_info, sg_mtake, sg_peek, sg_refund, sg_renew,
        sg_reserve, sg_reset, sg_settle, sg_take, sg_takeall, sg_wait,
    },
    error::quote,
    spec::CommandSpec,
};

/// The commands on keys, in the order of `COMMAND LIST`: a value made of each.
///
/// ```
/// use sluicegate_commands::{CommandSpec, table};
///
/// let specs: Vec<&CommandSpec> = table();
/// assert_eq!(specs[1].syntax(), "SG.TAKE key policy [COST cost]");
/// ```
#[must_use]
pub fn table<T: FromCommand>() -> Vec<T> {
    vec![
        T::from_command::<cl_throttle::ClThrottle>(),
        T::from_command::<sg_take::SgTake>(),
        T::from_command::<sg_peek::SgPeek>(),
        T::from_command::<sg_charge::SgCharge>(),
        T::from_command::<sg_refund::SgRefund>(),
        T::from_command::<sg_reserve::SgReserve>(),
        T::from_command::<sg_wait::SgWait>(),
        T::from_command::<sg_reset::SgReset>(),
        T::from_command::<sg_info::SgInfo>(),
        T::from_command::<sg_mtake::SgMtake>(),
        T::from_command::<sg_takeall::SgTakeall>(),
        T::from_command::<sg_hold::SgHold>(),
        T::from_command::<sg_settle::SgSettle>(),
        T::from_command::<sg_renew::SgRenew>(),
    ]
}

/// The command that only a server has, because some versions of Redis and Valkey have their own.
#[must_use]
pub fn increx<T: FromCommand>() -> T {
    T::from_command::<increx::Increx>()
}

/// Parses `arguments`, which start with the name of a command of the [`table`], in any case.
///
/// ```
/// use sluicegate_commands::{Action, HostOptions, parse};
///
/// let action = parse(&[b"sg.take", b"user7", b"gcra:30/1m", b"COST", b"2"], HostOptions::default())?;
/// assert!(matches!(action, Action::Apply { .. }));
///
/// let error = parse(&[b"SG.TAKE", b"user7", b"gcra:30/1m", b"COST", b"-2"], HostOptions::default());
/// assert_eq!(
///     error.unwrap_err().to_string(),
///     "ERR invalid COST `-2`: expected a whole number from 0 to 4294967295",
/// );
/// # Ok::<(), sluicegate_commands::CommandError>(())
/// ```
///
/// # Errors
/// [`CommandError`], whose text is the whole error reply.
pub fn parse<'a>(arguments: &[&'a [u8]], mut options: HostOptions) -> Parsed<'a, HostOptions> {
    let name = arguments.first().copied().unwrap_or_default();
    let parsers: Vec<CommandParser> = table();
    let found = parsers.iter().find(|it| name.eq_ignore_ascii_case(it.spec.name.as_bytes()));
    let rest = arguments.get(1..).unwrap_or_default();
    let parser = found.ok_or_else(|| unknown_command(name, rest))?;
    (parser.parse)(&mut options, arguments)
}

/// A command that is parsed without a cache of policies.
struct CommandParser {
    spec: &'static CommandSpec,
    parse: for<'a> fn(&mut HostOptions, &[&'a [u8]]) -> Parsed<'a, HostOptions>,
}

impl FromCommand for CommandParser {
    fn from_command<C: Command>() -> Self {
        Self { spec: C::SPEC, parse: |options, arguments| C::parse(options, arguments) }
    }
}

/// Commands of other servers, and those that this one has under another name.
const ELSEWHERE: [(&[&str], &str); 3] = [
    (&["KEYS", "SCAN"], "use 'SG.KEYS'"),
    (
        &["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "SCRIPT", "FCALL", "FCALL_RO", "FUNCTION"],
        "this is a Sluicegate server, which runs no scripts: use 'SG.TAKE' and others; 'SG.HELP' lists them",
    ),
    (&["SG.BLOCK", "SG.UNBLOCK"], "use `POST /admin/block` and `/admin/unblock` over HTTP"),
];

/// The error for a command that does not exist; `rest` are the arguments after its name.
#[must_use]
pub fn unknown_command(name: &[u8], rest: &[&[u8]]) -> CommandError {
    /// Bytes after which no more arguments are quoted.
    const QUOTED: usize = 128;
    let mut arguments = String::new();
    for argument in rest {
        if arguments.len() >= QUOTED {
            break;
        }
        arguments.push('\'');
        arguments.push_str(&quote(argument));
        arguments.push_str("' ");
    }
    let name = quote(name);
    let known: Vec<_> = table::<&CommandSpec>().into_iter().map(|spec| spec.name).collect();
    let prefixed = format!("SG.{name}");
    let similar = known.iter().find(|it| it.eq_ignore_ascii_case(&prefixed)).copied();
    let similar = similar.or_else(|| closest(&name, &known));
    let elsewhere =
        ELSEWHERE.iter().find(|(names, _)| names.contains(&&*name.to_ascii_uppercase()));
    let similar = match (elsewhere, similar) {
        (Some((_, advice)), _) => format!("({advice})"),
        (None, Some(similar)) => format!("(did you mean '{similar}'?)"),
        (None, None) => String::new(),
    };
    CommandError::UnknownCommand { name, arguments, similar }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_any_case_finds_the_command() {
        assert!(parse(&[b"sg.Take", b"k", b"gcra:1/s"], HostOptions::default()).is_ok());
        for name in ["SG.TAK", ""] {
            let error = parse(&[name.as_bytes()], HostOptions::default()).unwrap_err().to_string();
            assert!(error.starts_with("ERR unknown command"), "{error}");
        }
    }

    #[test]
    fn unknown_command_is_quoted_printable_and_short() {
        let many = vec![&[b'\n'; 1000][..]; 1000];
        let message = unknown_command(b"\r\n", &many).to_string();
        assert!(
            message.starts_with(r"ERR unknown command '\r\n', with args beginning with: '\n\n")
        );
        assert!(message.len() < 300, "{}", message.len());
    }

    #[test]
    fn keys_of_every_kind_returns_keys() {
        let specs: Vec<&CommandSpec> = table();
        let check = |line: &str, expected: Option<&[&str]>| {
            let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let spec = specs.iter().find(|it| it.name.as_bytes() == arguments[0]).unwrap();
            let keys = spec.keys_of(&arguments);
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
    fn syntax_options_and_repetitions_in_brackets() {
        let all: Vec<_> = table::<&CommandSpec>().iter().map(|spec| spec.syntax()).collect();
        assert_eq!(all[0], "CL.THROTTLE key max_burst count period [quantity]");
        assert_eq!(all[1], "SG.TAKE key policy [COST cost]");
        assert_eq!(all[6], "SG.WAIT key policy [COST cost] [TIMEOUT microseconds]");
        assert_eq!(all[9], "SG.MTAKE n key policy [COST] cost [key policy [COST] cost ...]");
    }

    #[test]
    fn commands_summary_and_arity_are_consistent() {
        for spec in table::<&CommandSpec>() {
            assert_eq!(spec.name, spec.name.to_ascii_uppercase());
            assert!(spec.summary.ends_with('.'), "{}", spec.name);
            let mandatory = spec.arguments.iter().filter(|argument| !argument.optional).count();
            let least = usize::try_from(spec.arity.unsigned_abs()).unwrap();
            assert!(mandatory < least, "{}", spec.name);
        }
    }

    #[test]
    fn parse_with_fewer_arguments_than_arity_is_an_error() {
        for spec in table::<&CommandSpec>() {
            let least = usize::try_from(spec.arity.unsigned_abs()).unwrap();
            for count in 1..least {
                let mut arguments = vec![spec.name.as_bytes()];
                arguments.resize(count, b"1");
                let error = parse(&arguments, HostOptions::default()).unwrap_err();
                assert_eq!(error, CommandError::Arity(spec), "{} {count}", spec.name);
            }
        }
    }
}
