//! The arguments of the script for several keys.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sluicegate_core::{HoldOperation, MultiKeyOperation, Operation, Policy};

use super::script::{Policies, ScriptOperation, number};

/// Arguments before those of the keys, and of each key.
const HEAD: usize = 4;
const OF_KEY: usize = 3;

/// A call of the script.
#[derive(Debug)]
pub(crate) struct MultiKeyCall<'a> {
    pub(crate) operation: MultiKeyOperation<'a>,
    pub(crate) takes: Vec<ReceivedTake<'a>>,
    pub(super) calendars: &'a [u8],
}

/// The operation on one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedTake<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) policy: &'a Policy,
    pub(crate) cost: u32,
}

impl Policies {
    /// The call that keys and arguments stand for.
    pub(super) fn multi_key_call<'a>(
        &'a self,
        keys: &[&'a [u8]],
        arguments: &[&'a [u8]],
    ) -> Result<MultiKeyCall<'a>> {
        let (head, rest) = arguments.split_at_checked(HEAD).context("too few arguments")?;
        ensure!(rest.len() == keys.len() * OF_KEY, "as many arguments as keys");
        ensure!(head[2].is_empty(), "a process sets the time of a decision");
        let mut takes = Vec::new();
        let mut ttl = None;
        for (&key, of_key) in keys.iter().zip(rest.chunks(OF_KEY)) {
            let cost = u32::try_from(number(of_key[0])?)?;
            takes.push(ReceivedTake { key, policy: self.find(of_key[1])?, cost });
            ttl = Some(Duration::from_micros(number(of_key[2])?));
        }
        let operation = match head[0] {
            b"take" => MultiKeyOperation::Take,
            b"peek" => MultiKeyOperation::Peek,
            word => {
                ensure!(word == b"hold", "no operation on several keys: {}", word.escape_ascii());
                MultiKeyOperation::Hold { id: head[3], ttl }
            }
        };
        Ok(MultiKeyCall { operation, takes, calendars: head[1] })
    }
}

impl MultiKeyCall<'_> {
    /// The operation on one of the keys.
    pub(crate) fn on(&self, cost: u32) -> ScriptOperation<'_> {
        match self.operation {
            MultiKeyOperation::Take => ScriptOperation::OnKey(Operation::Take(cost)),
            MultiKeyOperation::Peek => ScriptOperation::OnKey(Operation::Peek(cost)),
            MultiKeyOperation::Hold { id, ttl } => {
                ScriptOperation::OnHold(HoldOperation::Hold { id, cost, ttl })
            }
        }
    }
}
