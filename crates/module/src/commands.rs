//! The commands of the shared table, run inside the server.

use std::{ffi::c_int, sync::Arc, time::Duration};

use sluicegate_commands::{
    Action, Command, CommandError, CommandSpec, DecisionFormat, FromCommand, Host, HostOptions,
    KeyArgument, KeyOperation, Keys, PolicyText, RepeatedKeys, ReplyWriter, write_all,
};
use sluicegate_core::{Decision, Operation};

use crate::{
    api::{self, Ctx, Run, Text},
    context::{Arguments, Context, Name},
    edge, options,
    policy_cache::{self, CachedPolicy},
    state::{self, NamedOperation},
    stats,
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
            Action::ApplyMany { operations, at } => {
                let moment = Moment::new(now, at);
                let decide = |it: &KeyOperation<'_, Arc<CachedPolicy>>| {
                    self.decide(self.name(it.key), &it.policy, it.operation, moment)
                };
                // All are decided before the first reply, so that a panic leaves no reply unfinished.
                let answers: Vec<_> = operations.iter().map(decide).collect();
                context.array(answers.len());
                for answer in answers {
                    match answer {
                        Ok(decision) => self.reply_decision(&decision, DecisionFormat::Sluicegate),
                        Err(error) => self.reply_error(&error.to_string()),
                    }
                }
            }
            Action::ApplyAll { operations, repeated, at } => {
                let named = operations.iter().map(|it| NamedOperation {
                    name: self.name(it.key),
                    policy: &it.policy.policy,
                    operation: it.operation,
                });
                let named: Vec<_> = named.collect();
                let answer = state::decide_all(context, &named, Moment::new(now, at))?;
                for (it, decision) in named.iter().zip(answer.each()) {
                    self.count(it.name, decision);
                    wait::changed(context, it.name);
                }
                write_all(&answer, &repeated, &mut context);
            }
            Action::Wait { operations, repeated, timeout } => {
                // An invalid request does not wait for its error.
                for KeyOperation { policy, operation, .. } in &operations {
                    policy.policy.check_operation(*operation)?;
                }
                let (Some(&KeyOperation { key, ref policy, operation }), None) =
                    (operations.first(), &repeated)
                else {
                    let repeated = repeated.unwrap_or_default();
                    self.wait_for_all(operations, &repeated, timeout);
                    return Ok(());
                };
                let name = self.name(key);
                let hold = match operation {
                    Operation::Hold { id, ttl, .. } => Some(WaitingHold { id: id.into(), ttl }),
                    _ => None,
                };
                let cost = operation.cost();
                match wait::begin(context, name, policy, cost, timeout, hold.as_ref())? {
                    WaitStart::Answered(decision) => {
                        self.count(name, &decision);
                        self.reply_decision(&decision, DecisionFormat::Sluicegate);
                    }
                    WaitStart::Waits => {}
                    WaitStart::Rejected(error) => self.reply_error(&error),
                }
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

    /// Takes from several keys, or holds, and replies unless the client waits.
    fn wait_for_all(
        &self,
        operations: Vec<KeyOperation<'_, Arc<CachedPolicy>>>,
        repeated: &RepeatedKeys,
        timeout: Duration,
    ) {
        let mut context = self.context;
        let waiting = WaitingTakes::new(context, operations, repeated.clone(), timeout);
        match wait::begin_all(context, waiting) {
            Ok(Some(answer)) => write_all(&answer, repeated, &mut context),
            Ok(None) => {}
            Err(error) => self.reply_error(&error),
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
        wait::applied(self.context, name, &cached.policy, operation, decision.allowed());
        match operation {
            Operation::Peek(_) => stats::decided(&decision),
            Operation::Settle { .. } | Operation::Renew { .. } => {}
            _ => self.count(name, &decision),
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
