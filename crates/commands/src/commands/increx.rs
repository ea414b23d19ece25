//! `INCREX key [BYINT n] UBOUND N EX seconds|PX milliseconds [ENX]`: the command of Redis 8.8 and Valkey 9.2, in the form
//! that limits requests.
//!
//! The policy is `fixed-window:N/P`: the window begins with the first request. Redis does so with `ENX`; without it, each
//! increment prolongs the window there.

use sluicegate_core::Operation;

use crate::{
    CommandError, DecisionFormat, PolicyText,
    arguments::{KeyArgument, units},
    command::{Action, Command, Host, Parsed},
    error::quote,
    policy_text::SpanUnit,
    spec::{Argument, CommandSpec, KEY, ONE_KEY},
};

/// `INCREX`.
pub(crate) struct Increx;

/// What the command serves.
const SERVED: &str = "expected BYINT, UBOUND, EX or PX, and ENX: a fixed window with an upper bound, of whole numbers; \
                      SG.TAKE has other limits";

impl Command for Increx {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "INCREX",
        arity: -2,
        summary: "Takes from a fixed window, with the arguments and the reply of Redis.",
        arguments: &[
            KEY,
            Argument::option("BYINT", "increment"),
            Argument::option("UBOUND", "limit"),
            Argument::option("EX", "seconds"),
            Argument::option("PX", "milliseconds"),
            Argument::word("ENX"),
        ],
        ..ONE_KEY
    };

    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H> {
        let [_, key, options @ ..] = arguments else { return Err(CommandError::Arity(Self::SPEC)) };
        let key = KeyArgument::new(key, 1)?;
        let (mut cost, mut limit, mut span, mut is_new) = (None, None, None, false);
        let mut options = options.iter().copied();
        while let Some(option) = options.next() {
            if option.eq_ignore_ascii_case(b"ENX") {
                if std::mem::replace(&mut is_new, true) {
                    return Err(CommandError::RepeatedOption("ENX"));
                }
                continue;
            }
            const NAMES: [&str; 4] = ["BYINT", "UBOUND", "EX", "PX"];
            let name = NAMES.into_iter().find(|it| option.eq_ignore_ascii_case(it.as_bytes()));
            let name = name.ok_or_else(|| CommandError::UnknownOption {
                command: Self::SPEC.name,
                option: quote(option),
                expected: SERVED.to_owned(),
            })?;
            let value = options.next().ok_or(CommandError::MissingValue(name))?;
            let is_repeated = match name {
                "BYINT" => cost.replace(units(name, value, 0)?).is_some(),
                "UBOUND" => limit.replace(value).is_some(),
                "EX" => span.replace((value, SpanUnit::Seconds)).is_some(),
                _ => span.replace((value, SpanUnit::Milliseconds)).is_some(),
            };
            if is_repeated {
                return Err(CommandError::RepeatedOption(name));
            }
        }
        let missing = |option| CommandError::MissingOption { command: Self::SPEC.name, option };
        let limit = limit.ok_or(missing("UBOUND limit"))?;
        let (span, unit) = span.ok_or(missing("EX seconds or PX milliseconds"))?;
        let policy = host.policy(PolicyText::Window { limit, span, unit })?;
        let cost = cost.unwrap_or(1);
        let operation = if cost == 0 { Operation::Peek(0) } else { Operation::Take(cost) };
        let format = DecisionFormat::Increment { cost };
        Ok(Action::Apply { key, policy, operation, at: None, format })
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Entry, Timestamp, apply};

    use super::*;
    use crate::HostOptions;

    fn increment(entry: &mut Option<Entry>, millis: u64, arguments: &str) -> Vec<i64> {
        let line = format!("INCREX user123 {arguments}");
        let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let parsed = Increx::parse(&mut HostOptions::default(), &arguments);
        let Ok(Action::Apply { policy, operation, format, .. }) = parsed else { panic!("{line}") };
        let now = Timestamp::from_micros(millis * 1000).unwrap();
        let decision = apply(&policy, entry, now, operation).unwrap();
        let mut integers = Vec::new();
        format.write(&decision, &mut integers);
        integers
    }

    #[test]
    fn increx_counts_up_to_the_bound_within_a_window_from_the_first_request() {
        let entry = &mut None;
        assert_eq!(increment(entry, 0, "BYINT 1 UBOUND 3 EX 60 ENX"), [1, 1]);
        assert_eq!(increment(entry, 30_000, "UBOUND 3 EX 60 ENX"), [2, 1], "by one");
        assert_eq!(increment(entry, 30_000, "BYINT 2 UBOUND 3 EX 60 ENX"), [2, 0], "out of bounds");
        assert_eq!(increment(entry, 30_000, "enx px 60000 ubound 3 byint 1"), [3, 1]);
        assert_eq!(increment(entry, 59_999, "BYINT 1 UBOUND 3 EX 60"), [3, 0]);
        assert_eq!(increment(entry, 59_999, "BYINT 0 UBOUND 3 EX 60"), [3, 0]);
        assert_eq!(increment(entry, 60_000, "BYINT 1 UBOUND 3 EX 60"), [1, 1], "the next window");
    }

    #[test]
    fn increx_in_another_form_is_an_error_that_says_what_is_served() {
        let served = format!(": {SERVED}");
        for (arguments, expected) in [
            (
                "BYFLOAT 1.5 UBOUND 3 EX 60",
                format!("ERR unknown option `BYFLOAT` for INCREX{served}"),
            ),
            (
                "BYINT 1 UBOUND 3 SATURATE",
                format!("ERR unknown option `SATURATE` for INCREX{served}"),
            ),
            ("BYINT 1 UBOUND 3 EXAT 9", format!("ERR unknown option `EXAT` for INCREX{served}")),
            (
                "BYINT -1 UBOUND 3 EX 60",
                "ERR invalid BYINT `-1`: expected a whole number from 0 to 4294967295".to_owned(),
            ),
            (
                "BYINT 1 UBOUND 0 EX 60",
                "ERR invalid UBOUND `0`: expected a whole number from 1 to 4294967295".to_owned(),
            ),
            (
                "BYINT 1 UBOUND 1 EX 0",
                "ERR invalid EX `0`: expected a whole number of seconds from 1 to 31622400"
                    .to_owned(),
            ),
            (
                "BYINT 1 UBOUND 1 PX x",
                "ERR invalid PX `x`: expected a whole number of milliseconds from 1 to 31622400000"
                    .to_owned(),
            ),
            ("EX 60 PX 60 UBOUND 1", "ERR duplicate option PX: expected it once".to_owned()),
            ("UBOUND 1 ENX ENX EX 5", "ERR duplicate option ENX: expected it once".to_owned()),
            (
                "UBOUND 1 ENX EX",
                "ERR option EX has no value: expected EX and a whole number, such as `EX 5`"
                    .to_owned(),
            ),
            ("BYINT 1 EX 60 ENX", "ERR missing option of INCREX: expected UBOUND limit".to_owned()),
            (
                "UBOUND 1",
                "ERR missing option of INCREX: expected EX seconds or PX milliseconds".to_owned(),
            ),
        ] {
            let line = format!("INCREX k {arguments}");
            let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let policy = Increx::parse(&mut HostOptions::default(), &arguments);
            assert_eq!(policy.unwrap_err().to_string(), expected, "{line}");
        }
    }
}
