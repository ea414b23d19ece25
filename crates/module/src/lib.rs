//! The commands of Sluicegate inside Redis and Valkey, as a native module.
//!
//! Arguments, replies and errors are those of the server (`sluicegate-commands`), decisions those of the core.
//! A key is a string with the bytes of `docs/state-format.md`, which the Lua scripts of Sluicegate use too. The
//! effect of a command is replicated, never the command itself. `docs/module.md` is the manual.
//!
//! - `api.rs` declares the module API; `context.rs` and `key.rs` are its safe side.
//! - Every entry from the server goes through `edge`, which catches panics.
//! - `state.rs` decides and stores; `gcra.rs` and `log.rs` are fast paths that change the bytes in place.

#![expect(unsafe_code, reason = "the module API of the server is one of C")]

mod api;
mod commands;
mod context;
mod edge;
mod gcra;
mod info;
mod key;
mod log;
mod options;
mod policy_cache;
mod redis_cell;
mod register;
mod replication;
mod state;
mod stats;
mod time;
mod wait;

use std::ffi::{c_int, c_void};

use api::{Ctx, Text, api};
use context::Context;

const NAME: &std::ffi::CStr = c"sluicegate";
/// Version of the module, as the server lists it: 100 * minor + patch.
const VERSION: c_int = 100;

/// The server loads the module.
///
/// # Safety
/// Only the server calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut c_void,
    argv: *mut *mut c_void,
    argc: c_int,
) -> c_int {
    let (ctx, argv): (*mut Ctx, *mut *mut Text) = (ctx.cast(), argv.cast());
    // SAFETY: it is the context that the server passed on loading.
    if let Err(missing) = unsafe { api::load(ctx) } {
        eprintln!("sluicegate: this server has no {}", missing.to_string_lossy());
        return api::ERR;
    }
    // SAFETY: context and name are valid. A second module of this name is rejected
    // before anything that both share is changed.
    unsafe {
        if (api().is_name_busy)(NAME.as_ptr()) != 0 {
            return api::ERR;
        }
        (api().set_attributes)(ctx, NAME.as_ptr(), VERSION, api::API_VERSION);
    }
    edge::guard("load", api::ERR, || {
        // SAFETY: context and arguments are valid for this call.
        let (context, arguments) = unsafe { (Context::new(ctx), commands::arguments(argv, argc)) };
        match start(context, &arguments) {
            Ok(()) => api::OK,
            Err(error) => {
                context.log(c"warning", &error);
                api::ERR
            }
        }
    })
}

/// The server unloads the module, which it does only while no client waits.
///
/// # Safety
/// Only the server calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RedisModule_OnUnload(_: *mut c_void) -> c_int {
    edge::guard("unload", api::OK, || {
        policy_cache::clear();
        context::free_shared_strings();
        api::OK
    })
}

fn start(context: Context<'_>, arguments: &[&[u8]]) -> Result<(), String> {
    options::start(context, arguments)?;
    // SAFETY: the context is valid.
    unsafe {
        (api().set_options)(context.raw(), api::OPTION_SIGNAL_BY_HAND);
        (api().register_info)(context.raw(), info::info_callback);
    }
    register::all(context)?;
    options::load_configuration(context)?;
    context::create_shared_strings();
    replication::subscribe_events(context);
    Ok(())
}
