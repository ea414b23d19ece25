//! What crosses the boundary: one buffer in, numbers and text out.

use std::{cell::RefCell, fmt::Write as _, time::Duration};

use sluicegate_core::{Answer, Decision, OperationError, Outcome, Retry, Source, Timestamp};

/// Exports functions to the host. Elsewhere, for checks and tests, they are functions of Rust: some have the names of those of a
/// C library.
macro_rules! exported {
    ($($(#[$attribute:meta])* pub fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)? $body:block)+) => {
        $($(#[$attribute])*
        #[cfg_attr(target_family = "wasm", expect(unsafe_code, reason = "the only export of this name"))]
        #[cfg_attr(target_family = "wasm", unsafe(no_mangle))]
        pub extern "C" fn $name($($argument: $kind),*) $(-> $result)? $body)+
    };
}
pub(crate) use exported;

/// Maximum number of keys of one request.
pub(crate) const MAX_KEYS: usize = sluicegate_core::MAX_KEYS_PER_TAKE;
/// Integers of a decision.
pub(crate) const INTEGERS: usize = 7;
/// Index of the source of an answer, behind its decision.
pub(crate) const SOURCE: usize = INTEGERS;
/// Index of the binding key.
pub(crate) const KEY: usize = SOURCE + 1;
/// Index of the decisions on several keys.
pub(crate) const EACH: usize = KEY + 1;
const NUMBERS: usize = EACH + MAX_KEYS * INTEGERS;

/// What a call returns.
pub(crate) type Status = i32;
/// Denied.
pub(crate) const DENIED: Status = 0;
/// Allowed.
pub(crate) const ALLOWED: Status = 1;
/// The policy is invalid; the text says why. So it is with the others.
pub(crate) const POLICY_ERROR: Status = -1;
/// The policy does not support the operation, or an argument of it is invalid.
pub(crate) const OPERATION_ERROR: Status = -2;
/// There is no fallback: the error of the store is the answer.
pub(crate) const NO_FALLBACK: Status = -3;

/// The buffers.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) input: Vec<u8>,
    pub(crate) numbers: Box<[f64; NUMBERS]>,
    pub(crate) text: String,
}

thread_local! {
    static EXCHANGE: RefCell<Exchange> = RefCell::new(Exchange {
        input: vec![0; MIN_INPUT],
        numbers: Box::new([0.0; NUMBERS]),
        text: String::new(),
    });
}

/// Bytes of the first input buffer: enough for most keys, so that the host seldom asks for another.
const MIN_INPUT: usize = 1024;

/// Calls `with` with the buffers. There is one thread, and no call of the host comes during another.
pub(crate) fn with<R>(with: impl FnOnce(&mut Exchange) -> R) -> R {
    EXCHANGE.with_borrow_mut(with)
}

exported! {
    /// The input buffer, of at least `length` bytes. It moves only when it grows.
    pub fn input(length: usize) -> *const u8 {
        with(|it| {
            let input = &mut it.input;
            if input.len() < length {
                input.resize(length, 0);
            }
            input.as_ptr()
        })
    }

    /// The buffer of numbers, which never moves.
    pub fn numbers() -> *const f64 {
        with(|it| it.numbers.as_ptr())
    }

    /// The text of the last call that has one.
    pub fn text() -> *const u8 {
        with(|it| it.text.as_ptr())
    }

    /// Its length in bytes.
    pub fn text_length() -> usize {
        with(|it| it.text.len())
    }
}

impl Exchange {
    /// Sets the text to an error, and returns its status.
    pub(crate) fn fail(&mut self, status: Status, error: impl std::fmt::Display) -> Status {
        self.say(error);
        status
    }

    /// Sets the text.
    pub(crate) fn say(&mut self, text: impl std::fmt::Display) {
        self.text.clear();
        write!(self.text, "{text}").expect("a string takes any text");
    }

    /// Puts a decision, or its error, into the buffers.
    pub(crate) fn decided(&mut self, decision: &Result<Decision, OperationError>) -> Status {
        match decision {
            Ok(decision) => {
                put(&mut self.numbers[..INTEGERS], decision);
                self.numbers[SOURCE] = number_of(Source::Store);
                i32::from(decision.allowed())
            }
            Err(error) => self.fail(OPERATION_ERROR, error),
        }
    }

    /// Puts an answer into the buffers.
    pub(crate) fn answered(&mut self, answer: &Answer) -> Status {
        put(&mut self.numbers[..INTEGERS], answer);
        self.numbers[SOURCE] = number_of(answer.source);
        self.numbers[KEY] = from_usize(answer.key);
        for (numbers, decision) in
            self.numbers[EACH..].chunks_exact_mut(INTEGERS).zip(answer.each())
        {
            put(numbers, decision);
        }
        i32::from(answer.allowed())
    }

    /// Sets the source of the last decision to the full table, which is none of the core.
    pub(crate) fn set_table_full(&mut self) {
        self.numbers[SOURCE] = from_usize(Source::ALL.len());
    }

    /// The decision that the host has put into the buffer.
    pub(crate) fn decision(&self) -> Option<Decision> {
        decision_of(&self.numbers[..INTEGERS])
    }

    /// The answer on `count` keys that the host has put into the buffer.
    pub(crate) fn answer(&self, count: usize) -> Option<Answer> {
        let source = *Source::ALL.get(to_usize(self.numbers[SOURCE]))?;
        if count == 1 {
            return Some(Answer::new(self.decision()?, source));
        }
        let each = self.numbers[EACH..].chunks_exact(INTEGERS).take(count);
        Answer::of_all(each.map(decision_of).collect::<Option<_>>()?, source)
    }
}

/// The integers of [`Decision::to_integers`]. Spans are computed as `f64`, because integers of 128 bits are slow here.
fn put(numbers: &mut [f64], decision: &Decision) {
    let micros =
        |span: Duration| from_micros(span.as_secs()) * 1e6 + f64::from(span.subsec_micros());
    let [retry, delay] = match decision.outcome {
        Outcome::Allow { delay } => [0.0, micros(delay)],
        Outcome::Deny { retry: Retry::After(wait) } => [micros(wait), 0.0],
        Outcome::Deny { retry: Retry::Never } => [-1.0, 0.0],
    };
    numbers.copy_from_slice(&[
        f64::from(u8::from(decision.allowed())),
        f64::from(decision.limit),
        f64::from(decision.remaining),
        retry,
        micros(decision.reset_after),
        delay,
        from_usize(decision.binding),
    ]);
}

fn decision_of(numbers: &[f64]) -> Option<Decision> {
    let mut integers = [0; INTEGERS];
    for (integer, number) in integers.iter_mut().zip(numbers) {
        *integer = to_integer(*number);
    }
    Decision::from_integers(&integers)
}

fn number_of(source: Source) -> f64 {
    from_usize(Source::ALL.iter().position(|it| *it == source).unwrap_or_default())
}

/// The time of the host, in microseconds.
pub(crate) fn time(micros: f64) -> Timestamp {
    Timestamp::saturating_from_micros(to_micros(micros))
}

/// Microseconds, 0 for less.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates"
)]
pub(crate) const fn to_micros(number: f64) -> u64 {
    number as u64
}

#[expect(clippy::cast_possible_truncation, reason = "the conversion saturates")]
const fn to_integer(number: f64) -> i64 {
    number as i64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates"
)]
const fn to_usize(number: f64) -> usize {
    number as usize
}

/// A number of bytes or keys, which is less than 2^53.
pub(crate) const fn from_usize(number: usize) -> f64 {
    number as f64
}

/// Microseconds of a time or a span, which are less than 2^53.
pub(crate) const fn from_micros(micros: u64) -> f64 {
    micros as f64
}
