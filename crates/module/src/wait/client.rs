//! Clients that the server blocks until they are answered.

use std::{
    ffi::{c_int, c_void},
    ptr::null_mut,
};

use sluicegate_commands::{IntegersWriter, RepeatedKeys, write_all};
use sluicegate_core::{Answer, Decision};

use crate::{
    api::{self, BlockedClient, Ctx, OnDisconnect, Text, api},
    context::Context,
    edge,
};

/// The reply to a waiting client.
#[derive(Debug)]
pub(crate) enum WaitReply {
    One(Decision),
    All(Answer, RepeatedKeys),
}

impl WaitReply {
    /// Writes the reply.
    pub(crate) fn write(&self, context: &mut Context<'_>) {
        match self {
            Self::One(decision) => context.integers(&decision.to_integers()),
            Self::All(answer, repeated) => write_all(answer, repeated, context),
        }
    }
}

/// A blocked client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Client(*mut BlockedClient);

// SAFETY: it is an address, which is only passed back to the server, in calls of the server.
unsafe impl Send for Client {}

impl Client {
    /// Blocks the client that called, and calls `disconnected` if it disconnects.
    pub(super) fn block(context: Context<'_>, disconnected: OnDisconnect) -> Self {
        // SAFETY: the context is that of a command. The server has no timeout, and therefore calls no function for it.
        unsafe {
            let client = (api().block_client)(context.raw(), Some(reply), None, Some(free), 0);
            (api().on_disconnect)(client, disconnected);
            Self(client)
        }
    }

    /// The client that has disconnected.
    pub(super) const fn of(client: *mut BlockedClient) -> Self {
        Self(client)
    }

    /// Unblocks a client that has disconnected, which gets no reply.
    pub(super) fn release(self) {
        // SAFETY: the client is blocked, and is unblocked once.
        unsafe { (api().unblock_client)(self.0, null_mut()) };
    }

    pub(super) fn answer(self, answer: Result<WaitReply, String>) {
        let data = Box::into_raw(Box::new(answer));
        // SAFETY: the client is blocked, and is unblocked once; `free` takes the box back.
        unsafe { (api().unblock_client)(self.0, data.cast()) };
    }
}

/// Sends the reply to a client that is unblocked.
unsafe extern "C" fn reply(ctx: *mut Ctx, _: *mut *mut Text, _: c_int) -> c_int {
    // SAFETY: the server passed it for this call.
    let mut context = unsafe { Context::new(ctx) };
    let words = edge::guard("reply", edge::PANICKED, || {
        // SAFETY: the data of this client is from `Client::answer`, or null.
        let data =
            unsafe { (api().private_data)(ctx).cast::<Result<WaitReply, String>>().as_ref() };
        match data {
            Some(Ok(reply)) => {
                reply.write(&mut context);
                ""
            }
            Some(Err(words)) => words,
            None => edge::PANICKED,
        }
    });
    if !words.is_empty() {
        context.reply_error(words);
    }
    api::OK
}

unsafe extern "C" fn free(_: *mut Ctx, data: *mut c_void) {
    if !data.is_null() {
        // SAFETY: it is the box of `Client::answer`, which comes back once.
        drop(unsafe { Box::from_raw(data.cast::<Result<WaitReply, String>>()) });
    }
}
