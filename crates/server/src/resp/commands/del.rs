//! `DEL key [key ...]`: resets keys. The reply is the number of those that had state.

use sluicegate_commands::{CommandSpec, Keys};

use super::spec::EACH_KEY;
use crate::resp::{
    call::{Call, Next, ServerCommand},
    store_operation::StoreOperation,
};

pub(super) struct Del;

impl ServerCommand for Del {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "DEL",
        arity: -2,
        flags: &["write"],
        keys: Keys::All,
        summary: "Resets keys.",
        group: "generic",
        arguments: EACH_KEY,
    };

    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        let keys = call.rest().iter().map(|&key| key.into()).collect();
        call.session.apply(StoreOperation::Reset(keys), call.out);
        Ok(Next::Go)
    }
}
