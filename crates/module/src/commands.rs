//! From a command's arguments to its reply.

use std::{ffi::c_int, sync::Arc};

use sluicegate_commands::{
    COMMANDS, CommandError, Description, Keys, Options, Request, parse_at, throttle_integers,
};
use sluicegate_core::{Decision, Operation};

use crate::{
    api::{self, Ctx, Text},
    context::{Arguments, Context, Name},
    edge, options,
    policy_cache::{self, CachedPolicy},
    state, stats,
    time::Moment,
    wait::{self, WaitStart},
};

/// What a command answers.
#[derive(Debug)]
enum Reply {
    /// Five integers.
    Throttle(Decision),
    /// Seven.
    Decision(Decision),
    Many(Vec<Result<Decision, CommandError>>),
    Integer(i64),
    Description(Option<Description>),
    /// It comes later.
    Later,
    /// An error in words that only waiting has.
    Refused(String),
}

/// The arguments of a call, the name first.
///
/// # Safety
/// `argv` must be `argc` strings of the server, valid for `'a`.
pub(crate) unsafe fn arguments<'a>(argv: *mut *mut Text, argc: c_int) -> Arguments<'a> {
    let count = usize::try_from(argc).unwrap_or(0);
    // SAFETY: the caller's promise.
    (0..count).map(|index| unsafe { Name::new(*argv.add(index)).bytes() }).collect()
}

/// Carries out the command that stands at `INDEX` of [`COMMANDS`].
///
/// # Safety
/// Only the server calls it.
pub(crate) unsafe extern "C" fn run<const INDEX: usize>(
    ctx: *mut Ctx,
    argv: *mut *mut Text,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passed both for this call.
    let call =
        unsafe { Call { context: Context::of_command(ctx), argv, words: arguments(argv, argc) } };
    if COMMANDS[INDEX].keys == Keys::Counted && call.context.asks_for_keys() {
        edge::guard("keys", (), || call.tell_keys(INDEX));
        return api::OK;
    }
    let answer = edge::guard("command", None, || Some(call.answer(INDEX)));
    match answer {
        Some(Ok(reply)) => reply.write(call.context),
        Some(Err(error)) => {
            stats::ERRORS.add();
            call.context.reply_error(&error.to_string());
        }
        None => call.context.reply_error(edge::PANICKED),
    }
    api::OK
}

/// `SG.PANIC name`: the next entry of that name panics.
///
/// # Safety
/// Only the server calls it.
pub(crate) unsafe extern "C" fn panic(ctx: *mut Ctx, argv: *mut *mut Text, argc: c_int) -> c_int {
    edge::guard("panic", (), || {
        // SAFETY: the server passed both for this call.
        let (context, words) = unsafe { (Context::new(ctx), arguments(argv, argc)) };
        let name = words.get(1).copied().unwrap_or_default();
        edge::arm(&String::from_utf8_lossy(name));
        context.reply_integer(1);
    });
    api::OK
}

/// One call of a command.
struct Call<'a> {
    context: Context<'a>,
    argv: *mut *mut Text,
    words: Arguments<'a>,
}

impl<'a> Call<'a> {
    /// The argument at `index` as the name of a key.
    fn name(&self, index: usize) -> Name<'a> {
        assert!(index < self.words.len(), "there are as many strings as words");
        // SAFETY: there are as many strings as words, valid as long as they.
        unsafe { Name::new(*self.argv.add(index)) }
    }

    /// Tells the server which arguments are keys, where there are keys with others between them.
    fn tell_keys(&self, index: usize) {
        for place in COMMANDS[index].key_indexes(&self.words).unwrap_or_default() {
            self.context.report_key(place);
        }
    }

    #[inline]
    fn answer(&self, index: usize) -> Result<Reply, CommandError> {
        let options = Options { test_clock: options::TEST_CLOCK.get() };
        let request = parse_at(index, &self.words, options, policy_cache::find)?;
        let server = self.context.now();
        match request {
            Request::Throttle { policy, operation, .. } => {
                let moment = Moment::new(server, None);
                self.decide(1, &policy, operation, moment).map(Reply::Throttle)
            }
            Request::Decide { policy, operation, at, .. } => {
                let moment = Moment::new(server, at);
                self.decide(1, &policy, operation, moment).map(Reply::Decision)
            }
            Request::TakeMany { takes, at } => {
                let moment = Moment::new(server, at);
                let places = COMMANDS[index].key_indexes(&self.words).unwrap_or_default();
                let take =
                    |(place, take): (usize, &sluicegate_commands::Take<'_, Arc<CachedPolicy>>)| {
                        let operation = Operation::Take(take.cost);
                        self.decide(place, &take.policy, operation, moment)
                    };
                Ok(Reply::Many(places.into_iter().zip(&takes).map(take).collect()))
            }
            Request::Wait { policy, cost, timeout, .. } => {
                Ok(match wait::begin(self.context, self.name(1), &policy, cost, timeout)? {
                    WaitStart::Answered(decision) => Reply::Decision(self.told(1, decision)),
                    WaitStart::Waits => Reply::Later,
                    WaitStart::Refused(words) => Reply::Refused(words),
                })
            }
            Request::Reset { at, .. } => {
                let now = at.unwrap_or(server);
                let used = state::reset(self.context, self.name(1), now)?;
                wait::changed(self.context, self.name(1));
                Ok(Reply::Integer(used.into()))
            }
            Request::Info { at, .. } => {
                let now = at.unwrap_or(server);
                state::describe(self.context, self.name(1), now).map(Reply::Description)
            }
            // The enum may grow; a request that is not known here is a command that is not there.
            _ => Err(CommandError::unknown_command(self.words[0], &self.words[1..])),
        }
    }

    #[inline]
    fn decide(
        &self,
        key: usize,
        cached: &CachedPolicy,
        operation: Operation,
        moment: Moment,
    ) -> Result<Decision, CommandError> {
        let name = self.name(key);
        let decision = state::decide(self.context, name, cached, operation, moment)?;
        wait::asked(self.context, name, &cached.policy, operation);
        if let Operation::Peek(_) = operation {
            stats::decided(&decision);
            return Ok(decision);
        }
        Ok(self.told(key, decision))
    }

    /// Counts a decision, and tells those who listen if it is a denial.
    #[inline]
    fn told(&self, key: usize, decision: Decision) -> Decision {
        stats::decided(&decision);
        if !decision.allowed() && options::NOTIFY_DENIALS.get() {
            self.context.notify_denial(self.name(key));
        }
        decision
    }
}

impl Reply {
    #[inline]
    fn write(self, context: Context<'_>) {
        match self {
            Self::Throttle(decision) => context.reply_integers(&throttle_integers(&decision)),
            Self::Decision(decision) => context.reply_integers(&decision.to_integers()),
            Self::Many(decisions) => {
                context.reply_array(decisions.len());
                for decision in decisions {
                    match decision {
                        Ok(decision) => context.reply_integers(&decision.to_integers()),
                        Err(error) => {
                            stats::ERRORS.add();
                            context.reply_error(&error.to_string());
                        }
                    }
                }
            }
            Self::Later => {}
            Self::Refused(words) => {
                stats::ERRORS.add();
                context.reply_error(&words);
            }
            Self::Integer(integer) => context.reply_integer(integer),
            Self::Description(None) => context.reply_null(),
            Self::Description(Some(description)) => describe(&description, context),
        }
    }
}

fn describe(description: &Description, context: Context<'_>) {
    let number = |name: &str, value| {
        context.reply_bytes(name.as_bytes());
        context.reply_integer(value);
    };
    context.reply_map(5);
    context.reply_bytes(b"policy");
    context.reply_bytes(description.policy.as_bytes());
    number("reset_after_us", description.reset_after_us);
    number("lifetime_us", description.lifetime_us);
    number("bytes", description.bytes);
    context.reply_bytes(b"limits");
    context.reply_array(description.limits.len());
    for limit in &description.limits {
        context.reply_map(5);
        context.reply_bytes(b"limit");
        context.reply_bytes(limit.limit.as_bytes());
        number("capacity", limit.capacity);
        number("used", limit.used);
        number("remaining", limit.remaining);
        number("reset_after_us", limit.reset_after_us);
    }
}

/// The function of each of [`COMMANDS`], at the same place.
pub(crate) const RUNS: [api::Run; COMMANDS.len()] = [
    run::<0>, run::<1>, run::<2>, run::<3>, run::<4>, run::<5>, run::<6>, run::<7>, run::<8>,
    run::<9>,
];
