//! One decision of a batch.

use sluicegate_commands::DecisionFormat;
use sluicegate_core::{Decision, Operation};
use sluicegate_resp::Writer;

use super::resp_reply::RespReply;
use crate::policies::policy_cache::PolicyId;

/// A decision to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchEntry<'a> {
    pub(super) key: &'a [u8],
    pub(super) policy: PolicyId,
    pub(super) operation: Operation,
    pub(super) format: DecisionFormat,
    /// Length of the array whose first element is the reply; 0 for none.
    pub(super) begins_array: usize,
}

impl BatchEntry<'_> {
    /// Writes the reply.
    #[inline]
    pub(super) fn reply(&self, decision: &Decision, writer: &mut Writer<'_>) {
        if self.begins_array > 0 {
            writer.array(self.begins_array);
        }
        self.format.write(decision, &mut RespReply(writer));
    }
}
