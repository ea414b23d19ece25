//! One decision to be made, and how to reply; and the fast path for a command that differs from the one before only in its key.
//!
//! Most clients send the same command with many keys. Such a command is not parsed again: the bytes before and after
//! the key are compared with those of the last command, of whichever connection of the worker, and the key gets the
//! same decision. Any other command takes the general path. `docs/adr/0037-command-per-file.md` has the gain.

use sluicegate_commands::{DecisionFormat, IntegersWriter, ReplyWriter};
use sluicegate_core::{Decision, KeyedOperation, Operation, PreparedPolicy, StoreError};
use sluicegate_resp::{Version, Writer};

use crate::{
    policies::policy_cache::{PolicyCache, PolicyId},
    store::error_reply,
};

/// A decision to be made on a key `K` under a policy `P`.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecisionEntry<'a, K, P> {
    pub(super) key: K,
    pub(super) policy: P,
    pub(super) operation: Operation<'a>,
    pub(super) format: DecisionFormat,
    /// Length of the array whose first element is the reply; 0 for none.
    pub(super) begins_array: usize,
}

/// A decision of a batch, on a key in the buffer of the connection.
pub(super) type BatchEntry<'a> = DecisionEntry<'a, &'a [u8], PolicyId>;

/// A decision that was deferred.
#[derive(Debug)]
pub(super) struct PendingDecision {
    pub(super) entry: DecisionEntry<'static, Box<[u8]>, PreparedPolicy>,
    /// The id of its hold, which the operation in `entry` lacks; empty for none.
    pub(super) id: Box<[u8]>,
}

impl PendingDecision {
    pub(super) fn new(
        &BatchEntry { key, policy, operation, format, begins_array }: &BatchEntry<'_>,
        policies: &PolicyCache,
    ) -> Self {
        let id = operation.id().unwrap_or_default().into();
        let (key, policy) = (key.into(), policies.get(policy).clone());
        let operation = operation.with_id(&[]);
        Self { entry: DecisionEntry { key, policy, operation, format, begins_array }, id }
    }

    /// The operation, for the store.
    pub(super) fn keyed(&self) -> KeyedOperation<'_> {
        let DecisionEntry { key, policy, operation, .. } = &self.entry;
        KeyedOperation { key, policy, operation: operation.with_id(&self.id) }
    }
}

impl<K, P> DecisionEntry<'_, K, P> {
    /// Writes the reply.
    #[inline]
    pub(super) fn reply(&self, decision: &Decision, writer: &mut Writer<'_>) {
        if self.begins_array > 0 {
            writer.array(self.begins_array);
        }
        self.format.write(decision, &mut RespReply(writer));
    }

    /// Writes an error as the reply.
    #[cold]
    pub(super) fn fail(&self, error: &StoreError, writer: &mut Writer<'_>) {
        if self.begins_array > 0 {
            writer.array(self.begins_array);
        }
        writer.error(error_reply(error));
    }
}

// Replies of shared commands as RESP.

/// Writes a reply as RESP.
pub(super) struct RespReply<'w, 'o>(pub(super) &'w mut Writer<'o>);

impl IntegersWriter for RespReply<'_, '_> {
    #[inline]
    fn integers<const N: usize>(&mut self, integers: &[i64; N]) {
        self.0.integers(integers);
    }
}

impl ReplyWriter for RespReply<'_, '_> {
    fn integer(&mut self, value: i64) {
        self.0.integer(value);
    }

    fn string(&mut self, bytes: &[u8]) {
        self.0.bulk(bytes);
    }

    fn null(&mut self) {
        self.0.null();
    }

    fn array(&mut self, length: usize) {
        self.0.array(length);
    }

    fn map(&mut self, length: usize) {
        self.0.map(length);
    }

    fn error(&mut self, text: &str) {
        self.0.error(text);
    }
}

// A command that differs from the one before only in its key.

/// Upper bound on the bytes of a key on this path: a length of three digits.
const MAX_REPEATED_KEY: usize = 999;

/// Upper bound on the bytes of the arguments after the key.
const MAX_SUFFIX: usize = 1024;

/// The last command of a worker that added one decision on its first argument to a batch.
#[derive(Debug, Default)]
pub(super) struct RepeatCache {
    last: Option<LastCommand>,
    /// Whether `prefix` and `suffix` are those of the last command.
    is_learned: bool,
    /// The bytes up to the length of the key, and those after the key.
    prefix: Vec<u8>,
    suffix: Vec<u8>,
    /// The [epoch](crate::policies::policy_cache::PolicyCache#structfield.epoch) of policies in which the policy is valid.
    epoch: u64,
}

/// The last command: its position in the command table, and its decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastCommand {
    index: usize,
    policy: PolicyId,
    operation: Operation<'static>,
    format: DecisionFormat,
}

impl RepeatCache {
    /// Forgets a command of another epoch of policies.
    #[inline]
    pub(super) fn set_epoch(&mut self, epoch: u64) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.forget();
        }
    }

    /// Remembers the command at `index` of the table, which added `entry` to a batch. Its bytes are learned if the
    /// command before added the same, because then the following ones probably do as well.
    pub(super) fn remember(&mut self, index: usize, arguments: &[&[u8]], entry: &BatchEntry<'_>) {
        let &BatchEntry { key, policy, operation, format, begins_array } = entry;
        let [name, first, rest @ ..] = arguments else { return self.forget() };
        let is_long = rest.iter().map(|argument| argument.len()).sum::<usize>() > MAX_SUFFIX;
        if is_long || begins_array > 0 || operation.id().is_some() || !std::ptr::eq(*first, key) {
            return self.forget();
        }
        let operation = operation.with_id(&[]);
        let last = Some(LastCommand { index, policy, operation, format });
        self.is_learned = self.last == last;
        self.last = last;
        if self.is_learned {
            self.prefix.clear();
            let mut prefix = Writer::new(&mut self.prefix, Version::Resp2);
            prefix.array(arguments.len());
            prefix.bulk(name);
            self.prefix.push(b'$');
            self.suffix.clear();
            self.suffix.extend_from_slice(b"\r\n");
            let mut suffix = Writer::new(&mut self.suffix, Version::Resp2);
            rest.iter().for_each(|argument| suffix.bulk(argument));
        }
    }

    /// Forgets the last command.
    pub(super) fn forget(&mut self) {
        (self.last, self.is_learned) = (None, false);
    }

    /// Takes the last command with any key from the front of `unread`. Returns its position in the table, and its
    /// decision; `None` if another command is at the front.
    #[inline]
    pub(super) fn take<'a>(&self, unread: &mut &'a mut [u8]) -> Option<(usize, BatchEntry<'a>)> {
        let last = self.last.filter(|_| self.is_learned)?;
        let rest = unread.strip_prefix(&*self.prefix)?;
        let (length, digits) = key_length(rest)?;
        if !rest.get(digits + length..)?.starts_with(&self.suffix) {
            return None;
        }
        let start = self.prefix.len() + digits;
        let end = start + length;
        let (command, rest) = std::mem::take(unread).split_at_mut(end + self.suffix.len());
        *unread = rest;
        let LastCommand { index, policy, operation, format } = last;
        let key = &command[start..end];
        Some((index, BatchEntry { key, policy, operation, format, begins_array: 0 }))
    }
}

/// The length at the front, and the number of its bytes with the line end. An empty key and one that is too long take
/// the general path.
#[inline]
fn key_length(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut length = 0;
    for (at, &byte) in bytes.iter().take(4).enumerate() {
        match byte {
            b'0'..=b'9' => length = length * 10 + usize::from(byte - b'0'),
            b'\r' if bytes.get(at + 1) == Some(&b'\n') => {
                return (1..=MAX_REPEATED_KEY).contains(&length).then_some((length, at + 2));
            }
            _ => return None,
        }
    }
    None
}

/// Whether statistics count the decision: the end of a hold is none by a limit.
pub(super) const fn counts(operation: Operation<'_>) -> bool {
    !matches!(operation, Operation::Settle { .. } | Operation::Renew { .. })
}

#[cfg(test)]
mod repeat_tests {
    use sluicegate_core::PreparedPolicy;

    use super::*;
    use crate::policies::{policy_cache::PolicyCache, rule_store::RuleStore};

    const FIRST: [&[u8]; 3] = [b"SG.TAKE", b"user7", b"gcra:30/1m"];

    fn entry() -> BatchEntry<'static> {
        let mut cache = PolicyCache::default();
        let text = sluicegate_commands::PolicyText::Text(b"gcra:30/1m");
        let policy =
            cache.find(text, &RuleStore::default(), |it, _| PreparedPolicy::new(it)).unwrap();
        let format = DecisionFormat::Sluicegate;
        BatchEntry { key: FIRST[1], policy, operation: Operation::Take(1), format, begins_array: 0 }
    }

    /// After the same command came twice.
    fn learned() -> RepeatCache {
        let mut repeats = RepeatCache::default();
        repeats.remember(3, &FIRST, &entry());
        repeats.remember(3, &FIRST, &entry());
        repeats
    }

    /// The key that is taken from the front of `bytes`, and the number of bytes left.
    fn take(bytes: &str) -> Option<(Vec<u8>, usize)> {
        let repeats = learned();
        let mut bytes = bytes.as_bytes().to_vec();
        let mut unread = &mut *bytes;
        let (index, entry) = repeats.take(&mut unread)?;
        assert_eq!(index, 3);
        Some((entry.key.to_vec(), unread.len()))
    }

    const SAME: &str = "*3\r\n$7\r\nSG.TAKE\r\n$3\r\nyou\r\n$10\r\ngcra:30/1m\r\n";

    #[test]
    fn take_command_with_another_key_returns_it() {
        assert_eq!(take(SAME), Some((b"you".to_vec(), 0)));
        assert_eq!(take(&format!("{SAME}*1\r\n")), Some((b"you".to_vec(), 4)));
        let key = "x".repeat(MAX_REPEATED_KEY);
        let long = SAME.replace("$3\r\nyou", &format!("${MAX_REPEATED_KEY}\r\n{key}"));
        assert_eq!(take(&long), Some((key.into(), 0)));
    }

    #[test]
    fn take_other_command_returns_none() {
        for (from, to) in [
            ("SG.TAKE", "SG.PEEK"),
            ("SG.TAKE", "sg.take"),
            ("30/1m", "30/1h"),
            ("*3", "*4"),
            ("$3\r\nyou", "$0\r\n"),
            ("$3\r\nyou", "$4\r\nyou"),
            ("$3\r\nyou", "$2\r\nyou"),
            ("$3\r\nyou", "$03x\r\nyou"),
            ("$3\r\nyou", "$-1"),
            ("$3\r\nyou", "$1000\r\nyou"),
        ] {
            assert_eq!(take(&SAME.replace(from, to)), None, "{to}");
        }
        for cut in 0..SAME.len() {
            assert_eq!(take(&SAME[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn take_after_forget_returns_none() {
        let mut repeats = learned();
        repeats.forget();
        assert!(repeats.take(&mut &mut *SAME.as_bytes().to_vec()).is_none());
        // Seen once.
        repeats.remember(3, &FIRST, &entry());
        assert!(repeats.take(&mut &mut *SAME.as_bytes().to_vec()).is_none());
    }

    #[test]
    fn take_in_another_epoch_returns_none() {
        let mut repeats = learned();
        repeats.set_epoch(0);
        assert!(repeats.take(&mut &mut *SAME.as_bytes().to_vec()).is_some());
        repeats.set_epoch(1);
        assert!(repeats.take(&mut &mut *SAME.as_bytes().to_vec()).is_none());
    }

    #[test]
    fn remember_long_command_keeps_nothing() {
        let (mut repeats, long) = (RepeatCache::default(), [b'x'; MAX_SUFFIX + 1]);
        let arguments = [FIRST[0], FIRST[1], &long];
        for _ in 0..3 {
            repeats.remember(3, &arguments, &entry());
        }
        assert_eq!((repeats.last, repeats.suffix.capacity()), (None, 0));
    }
}
