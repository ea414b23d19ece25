//! One decision to be made, and how to reply.

use sluicegate_commands::DecisionFormat;
use sluicegate_core::{Decision, Operation, PreparedPolicy, StoreError};
use sluicegate_resp::Writer;

use super::resp_reply::RespReply;
use crate::{policies::policy_cache::PolicyId, store::error_reply};

/// A decision to be made on a key `K` under a policy `P`.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecisionEntry<K, P> {
    pub(super) key: K,
    pub(super) policy: P,
    pub(super) operation: Operation,
    pub(super) format: DecisionFormat,
    /// Length of the array whose first element is the reply; 0 for none.
    pub(super) begins_array: usize,
}

/// A decision of a batch, on a key in the buffer of the connection.
pub(super) type BatchEntry<'a> = DecisionEntry<&'a [u8], PolicyId>;

/// A decision that was deferred.
pub(super) type PendingDecision = DecisionEntry<Box<[u8]>, PreparedPolicy>;

impl<K, P> DecisionEntry<K, P> {
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
