//! `EXISTS key [key ...]`: the number of keys that have state.

use sluicegate_commands::{CommandSpec, Keys};

use super::spec::EACH_KEY;
use crate::resp::{
    call::{Call, Next, ServerCommand},
    store_operation::StoreOperation,
};

pub(super) struct Exists;

impl ServerCommand for Exists {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "EXISTS",
        arity: -2,
        flags: &["readonly", "fast"],
        keys: Keys::All,
        summary: "Counts the keys that have state.",
        group: "generic",
        arguments: EACH_KEY,
    };

    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        let keys = call.rest().iter().map(|&key| key.into()).collect();
        call.session.apply(StoreOperation::CountExisting(keys), call.out);
        Ok(Next::Go)
    }
}
