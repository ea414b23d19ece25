//! The commands of the shared table, run inside the server.

use std::{ffi::c_int, sync::Arc};

use sluicegate_commands::{
    Action, Command, CommandError, CommandSpec, DecisionFormat, FromCommand, Host, HostOptions,
    KeyArgument, Keys, PolicyText, ReplyWriter, TakeRequest, write_multi_key,
};
use sluicegate_core::{Decision, HoldOperation, Operation};

use crate::{
    api::{self, Ctx, Run, Text},
    context::{Arguments, Context, Name},
    edge, options,
    policy_cache::{self, CachedPolicy},
    state, stats,
    time::Moment,
    wait::{self, WaitStart, WaitingHold, WaitingTakes},
};

/// A command of the shared table, and the function that the server calls for it.
pub(crate) struct ModuleCommand {
    pub(crate) spec: &'static CommandSpec,
    pub(crate) run: Run,
}

impl FromCommand for ModuleCommand {
    fn from_command<C: Command>() -> Self {
        Self { spec: C::SPEC, run: run::<C> }
    }
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

/// Runs the command `C`.
///
/// # Safety
/// Only the server calls it.
unsafe extern "C" fn run<C: Command>(ctx: *mut Ctx, argv: *mut *mut Text, argc: c_int) -> c_int {
    // SAFETY: the server passed both for this call.
    let (context, arguments) = unsafe { (Context::of_command(ctx), arguments(argv, argc)) };
    if C::SPEC.keys == Keys::Counted && context.asks_for_keys() {
        edge::guard("keys", (), || {
            for index in C::SPEC.key_indexes(&arguments).unwrap_or_default() {
                context.report_key(index);
            }
        });
        return api::OK;
    }
    let call = Call { context, argv, count: arguments.len() };
    let act = || C::parse(&mut Parsing, &arguments).and_then(|action| call.act(action));
    match edge::guard("command", None, || Some(act())) {
        Some(Ok(())) => {}
        Some(Err(error)) => call.reply_error(&error.to_string()),
        None => context.reply_error(edge::PANICKED),
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
        { context }.integer(1);
    });
    api::OK
}

/// One call of a command.
struct Call<'a> {
    context: Context<'a>,
    /// The arguments as strings of the server, and their number.
    argv: *mut *mut Text,
    count: usize,
}

/// Parses with the options and the policy cache of the module.
struct Parsing;

impl<'a> Host<'a> for Parsing {
    type Policy = Arc<CachedPolicy>;

    #[inline]
    fn options(&self) -> HostOptions {
        HostOptions { test_clock: options::TEST_CLOCK.get() }
    }

    #[inline]
    fn policy(&mut self, text: PolicyText<'a>) -> Result<Arc<CachedPolicy>, CommandError> {
        policy_cache::find(text)
    }
}

impl<'a> Call<'a> {
    /// Carries out an action, and replies.
    #[inline]
    fn act(&self, action: Action<'_, Arc<CachedPolicy>>) -> Result<(), CommandError> {
        let (mut context, now) = (self.context, self.context.now());
        match action {
            Action::Apply { key, policy, operation, at, format } => {
                let moment = Moment::new(now, at);
                let decision = self.decide(self.name(key), &policy, operation, moment)?;
                self.reply_decision(&decision, format);
            }
            Action::TakeBatch { takes, at } => {
                let moment = Moment::new(now, at);
                let decide = |take: &TakeRequest<'_, Arc<CachedPolicy>>| {
                    let operation = Operation::Take(take.cost);
                    self.decide(self.name(take.key), &take.policy, operation, moment)
                };
                // All are decided before the first reply, so that a panic leaves no reply unfinished.
                let answers: Vec<_> = takes.iter().map(decide).collect();
                context.array(answers.len());
                for answer in answers {
                    match answer {
                        Ok(decision) => self.reply_decision(&decision, DecisionFormat::Sluicegate),
                        Err(error) => self.reply_error(&error.to_string()),
                    }
                }
            }
            Action::Wait { take: TakeRequest { key, policy, cost }, timeout } => {
                let name = self.name(key);
                // An invalid request does not wait for its error.
                policy.policy.check_operation(Operation::Take(cost))?;
                let start = wait::begin(context, name, &policy, cost, timeout, None)?;
                self.reply_or_wait(name, start);
            }
            Action::Hold { key, policy, operation, at, timeout } => {
                let (name, moment) = (self.name(key), Moment::new(now, at));
                policy.policy.check_hold(&operation)?;
                let held = if let HoldOperation::Hold { id, cost, ttl } = operation
                    && !timeout.is_zero()
                {
                    let hold = WaitingHold { id: id.into(), ttl };
                    wait::begin(context, name, &policy, cost, timeout, Some(&hold))
                } else {
                    state::decide_hold(context, name, &policy.policy, operation, moment)
                        .map(WaitStart::Answered)
                };
                match (held?, operation) {
                    (start, HoldOperation::Hold { .. }) => {
                        if let WaitStart::Answered(decision) = &start
                            && timeout.is_zero()
                        {
                            wait::held(context, name, &policy.policy, decision.allowed());
                        }
                        self.reply_or_wait(name, start);
                    }
                    (WaitStart::Answered(decision), _) => {
                        // It may free units for waiting clients.
                        wait::changed(context, name);
                        self.reply_decision(&decision, DecisionFormat::Sluicegate);
                    }
                    _ => {}
                }
            }
            Action::TakeAll { takes, repeated, operation, timeout, .. } if !timeout.is_zero() => {
                for take in &takes {
                    take.policy.policy.check_multi_key(operation, take.cost)?;
                }
                let keyed = takes
                    .into_iter()
                    .map(|TakeRequest { key, policy, cost }| (key.bytes.into(), policy, cost));
                let waiting =
                    WaitingTakes::new(context, keyed, repeated.clone(), operation, timeout);
                match wait::begin_all(context, waiting) {
                    Ok(Some(taken)) => write_multi_key(&taken, &repeated, &mut context),
                    Ok(None) => {}
                    Err(error) => self.reply_error(&error),
                }
            }
            Action::TakeAll { takes, repeated, operation, at, .. } => {
                let takes: Vec<_> = takes
                    .iter()
                    .map(|take| (self.name(take.key), &take.policy.policy, take.cost))
                    .collect();
                let taken = state::take_all(context, &takes, operation, Moment::new(now, at))?;
                for ((name, ..), decision) in takes.iter().zip(&taken.each) {
                    self.count(*name, decision);
                    wait::changed(context, *name);
                }
                write_multi_key(&taken, &repeated, &mut context);
            }
            Action::Reset { key, at } => {
                let name = self.name(key);
                let had_state = state::reset(context, name, at.unwrap_or(now))?;
                wait::changed(context, name);
                context.integer(had_state.into());
            }
            Action::Read { key, at, reply } => {
                let entry = state::stored(context, self.name(key))?;
                reply(entry.as_ref(), at.unwrap_or(now), &mut context);
            }
        }
        Ok(())
    }

    /// Replies to a request that may wait, unless it does.
    fn reply_or_wait(&self, name: Name<'_>, start: WaitStart) {
        match start {
            WaitStart::Answered(decision) => {
                self.count(name, &decision);
                self.reply_decision(&decision, DecisionFormat::Sluicegate);
            }
            WaitStart::Waits => {}
            WaitStart::Rejected(error) => self.reply_error(&error),
        }
    }

    /// The name of a key as a string of the server.
    #[inline]
    fn name(&self, key: KeyArgument<'_>) -> Name<'a> {
        assert!(key.index < self.count, "a key is one of the arguments");
        // SAFETY: there are `count` strings, valid for this call.
        unsafe { Name::new(*self.argv.add(key.index)) }
    }

    #[inline]
    fn decide(
        &self,
        name: Name<'_>,
        cached: &CachedPolicy,
        operation: Operation,
        moment: Moment,
    ) -> Result<Decision, CommandError> {
        let decision = state::decide(self.context, name, cached, operation, moment)?;
        wait::applied(self.context, name, &cached.policy, operation);
        if let Operation::Peek(_) = operation {
            stats::decided(&decision);
        } else {
            self.count(name, &decision);
        }
        Ok(decision)
    }

    /// Counts a decision, and publishes a denial.
    #[inline]
    fn count(&self, name: Name<'_>, decision: &Decision) {
        stats::decided(decision);
        if !decision.allowed() && options::NOTIFY_DENIALS.get() {
            self.context.notify_denial(name);
        }
    }

    #[inline]
    fn reply_decision(&self, decision: &Decision, format: DecisionFormat) {
        format.write(decision, &mut { self.context });
    }

    fn reply_error(&self, error: &str) {
        stats::ERRORS.add();
        self.context.reply_error(error);
    }
}
