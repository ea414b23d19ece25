//! One decision to be made, and how to reply.

use sluicegate_commands::DecisionFormat;
use sluicegate_core::{Decision, KeyedOperation, Operation, PreparedPolicy, StoreError};
use sluicegate_resp::Writer;

use super::resp_reply::RespReply;
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
