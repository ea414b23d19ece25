//! A host that applies nothing: it only checks arguments and policies.

use std::time::Duration;

use sluicegate_core::{Operation, Policy, Timestamp};

use crate::{
    CommandError, DecisionFormat, PolicyText,
    arguments::{KeyArgument, Options},
    host::{EntryReply, Host, TakeRequest},
};

/// Accepts whatever is valid.
pub(crate) struct Checker {
    pub(crate) options: Options,
}

impl<'a> Host<'a> for Checker {
    type Policy = Policy;
    type Outcome = ();

    fn options(&self) -> Options {
        self.options
    }

    fn policy(&mut self, text: PolicyText<'a>) -> Result<Policy, CommandError> {
        text.parse()
    }

    fn apply(
        &mut self,
        _: KeyArgument<'a>,
        _: Policy,
        _: Operation,
        _: Option<Timestamp>,
        _: DecisionFormat,
    ) -> Result<(), CommandError> {
        Ok(())
    }

    fn take_batch(
        &mut self,
        _: Vec<TakeRequest<'a, Policy>>,
        _: Option<Timestamp>,
    ) -> Result<(), CommandError> {
        Ok(())
    }

    fn wait(&mut self, _: TakeRequest<'a, Policy>, _: Duration) -> Result<(), CommandError> {
        Ok(())
    }

    fn reset(&mut self, _: KeyArgument<'a>, _: Option<Timestamp>) -> Result<(), CommandError> {
        Ok(())
    }

    fn read(
        &mut self,
        _: KeyArgument<'a>,
        _: Option<Timestamp>,
        _: EntryReply,
    ) -> Result<(), CommandError> {
        Ok(())
    }
}
