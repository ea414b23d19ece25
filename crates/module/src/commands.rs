//! The commands of the shared table, run inside the server.

use std::{ffi::c_int, sync::Arc, time::Duration};

use sluicegate_commands::{
    Command, CommandError, CommandSpec, DecisionFormat, EntryReply, FromCommand, Host, KeyArgument,
    Keys, Options, PolicyText, ReplyWriter, TakeRequest,
};
use sluicegate_core::{Decision, Operation, Timestamp};

use crate::{
    api::{self, Ctx, Run, Text},
    context::{Arguments, Context, Name},
    edge, options,
    policy_cache::{self, CachedPolicy},
    state, stats,
    time::Moment,
    wait::{self, WaitStart},
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
    let mut call = Call { context, argv, count: arguments.len() };
    match edge::guard("command", None, || Some(C::run(&mut call, &arguments))) {
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
        context.reply_integer(1);
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

impl<'a> Host<'a> for Call<'a> {
    type Policy = Arc<CachedPolicy>;
    type Outcome = ();

    #[inline]
    fn options(&self) -> Options {
        Options { test_clock: options::TEST_CLOCK.get() }
    }

    #[inline]
    fn policy(&mut self, text: PolicyText<'a>) -> Result<Arc<CachedPolicy>, CommandError> {
        policy_cache::find(text)
    }

    #[inline]
    fn apply(
        &mut self,
        key: KeyArgument<'a>,
        policy: Arc<CachedPolicy>,
        operation: Operation,
        at: Option<Timestamp>,
        format: DecisionFormat,
    ) -> Result<(), CommandError> {
        let moment = Moment::new(self.context.now(), at);
        let decision = self.decide(self.name(key), &policy, operation, moment)?;
        self.reply_decision(&decision, format);
        Ok(())
    }

    fn take_batch(
        &mut self,
        takes: Vec<TakeRequest<'a, Arc<CachedPolicy>>>,
        at: Option<Timestamp>,
    ) -> Result<(), CommandError> {
        let moment = Moment::new(self.context.now(), at);
        let decide = |take: &TakeRequest<'a, Arc<CachedPolicy>>| {
            self.decide(self.name(take.key), &take.policy, Operation::Take(take.cost), moment)
        };
        // All are decided before the first reply, so that a panic leaves no reply unfinished.
        let answers: Vec<_> = takes.iter().map(decide).collect();
        self.context.reply_array(answers.len());
        for answer in answers {
            match answer {
                Ok(decision) => self.reply_decision(&decision, DecisionFormat::Sluicegate),
                Err(error) => self.reply_error(&error.to_string()),
            }
        }
        Ok(())
    }

    fn wait(
        &mut self,
        take: TakeRequest<'a, Arc<CachedPolicy>>,
        timeout: Duration,
    ) -> Result<(), CommandError> {
        let TakeRequest { key, policy, cost } = take;
        let name = self.name(key);
        match wait::begin(self.context, name, policy, cost, timeout)? {
            WaitStart::Answered(decision) => {
                self.count(name, &decision);
                self.reply_decision(&decision, DecisionFormat::Sluicegate);
            }
            WaitStart::Waits => {}
            WaitStart::Refused(error) => self.reply_error(&error),
        }
        Ok(())
    }

    fn reset(&mut self, key: KeyArgument<'a>, at: Option<Timestamp>) -> Result<(), CommandError> {
        let name = self.name(key);
        let had_state = state::reset(self.context, name, at.unwrap_or(self.context.now()))?;
        wait::changed(self.context, name);
        self.context.reply_integer(had_state.into());
        Ok(())
    }

    fn read(
        &mut self,
        key: KeyArgument<'a>,
        at: Option<Timestamp>,
        reply: EntryReply,
    ) -> Result<(), CommandError> {
        let entry = state::stored(self.context, self.name(key))?;
        reply(entry.as_ref(), at.unwrap_or(self.context.now()), &mut self.context);
        Ok(())
    }
}

impl<'a> Call<'a> {
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
        wait::asked(self.context, name, &cached.policy, operation);
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
        format.write(decision, |integers| self.context.reply_integers(integers));
    }

    fn reply_error(&self, error: &str) {
        stats::ERRORS.add();
        self.context.reply_error(error);
    }
}

impl ReplyWriter for Context<'_> {
    fn integer(&mut self, value: i64) {
        self.reply_integer(value);
    }

    fn string(&mut self, bytes: &[u8]) {
        self.reply_bytes(bytes);
    }

    fn null(&mut self) {
        self.reply_null();
    }

    fn array(&mut self, length: usize) {
        self.reply_array(length);
    }

    fn map(&mut self, length: usize) {
        self.reply_map(length);
    }
}
