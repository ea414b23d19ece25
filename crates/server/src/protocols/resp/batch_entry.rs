//! One decision to be made, and how to reply.

use sluicegate_commands::{DecisionFormat, IntegersWriter, ReplyWriter};
use sluicegate_core::{Decision, KeyedOperation, Operation, PreparedPolicy, StoreError};
use sluicegate_resp::Writer;

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
