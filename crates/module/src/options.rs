//! Options: set when the module is loaded, as `name yes` after its path, and by `CONFIG` as
//! `sluicegate.name`.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr::null_mut,
    sync::atomic::{AtomicBool, Ordering},
};

use sluicegate_commands::quote;

use crate::{
    api::{self, Text, api},
    context::Context,
    edge,
};

/// An option that is on or off.
#[derive(Debug)]
pub(crate) struct Switch {
    name: &'static CStr,
    value: AtomicBool,
    /// Whether it can be changed while the server runs.
    is_mutable: bool,
}

impl Switch {
    const fn new(name: &'static CStr, is_mutable: bool) -> Self {
        Self { name, value: AtomicBool::new(false), is_mutable }
    }

    #[inline]
    pub(crate) fn get(&self) -> bool {
        self.value.load(Ordering::Relaxed)
    }

    fn set(&self, value: bool) {
        self.value.store(value, Ordering::Relaxed);
    }
}

/// Commands may set the time (`AT us`).
pub(crate) static TEST_CLOCK: Switch = Switch::new(c"test-clock", false);
/// The command `SG.PANIC` exists, which makes an entry of the module panic.
pub(crate) static TEST_PANIC: Switch = Switch::new(c"test-panic", false);
/// Denials are published as keyspace events.
pub(crate) static NOTIFY_DENIALS: Switch = Switch::new(c"notify-denials", true);

static ALL: [&Switch; 3] = [&NOTIFY_DENIALS, &TEST_CLOCK, &TEST_PANIC];

/// Parses the `arguments` of loading, and registers the options with the server.
///
/// # Errors
/// The text of the error.
pub(crate) fn start(context: Context<'_>, arguments: &[&[u8]]) -> Result<(), String> {
    for switch in ALL {
        switch.set(false);
    }
    for pair in arguments.chunks(2) {
        let switch = find(pair[0])?;
        let name = switch.name.to_string_lossy();
        match pair.get(1) {
            Some(value) => switch.set(is_on(value).ok_or_else(|| {
                format!("invalid option `{name} {}`: expected `yes` or `no`", quote(value))
            })?),
            None => {
                return Err(format!("option `{name}` has no value: expected `yes` or `no`"));
            }
        }
    }
    for switch in ALL {
        let flags = if switch.is_mutable { 0 } else { api::CONFIG_IMMUTABLE };
        // SAFETY: context and name are valid; the functions take the passed pointer as their data.
        let answer = unsafe {
            (api().register_bool)(
                context.raw(),
                switch.name.as_ptr(),
                switch.get().into(),
                flags,
                get,
                set,
                None,
                std::ptr::from_ref(switch).cast_mut().cast(),
            )
        };
        if answer != api::OK {
            return Err(format!("option `{}` is taken", switch.name.to_string_lossy()));
        }
    }
    Ok(())
}

/// Applies the options in the configuration of the server.
///
/// # Errors
/// The text of the error.
pub(crate) fn load_configuration(context: Context<'_>) -> Result<(), String> {
    // SAFETY: the context is valid.
    if unsafe { (api().load_configs)(context.raw()) } != api::OK {
        return Err("the configuration of sluicegate is wrong; see above".to_owned());
    }
    Ok(())
}

fn find(name: &[u8]) -> Result<&'static Switch, String> {
    let found = ALL.iter().find(|it| name.eq_ignore_ascii_case(it.name.to_bytes()));
    found.copied().ok_or_else(|| {
        let [first, second, third] = ALL.map(|it| it.name.to_string_lossy());
        format!("unknown option `{}`: expected {first}, {second} or {third}", quote(name))
    })
}

fn is_on(value: &[u8]) -> Option<bool> {
    if value.eq_ignore_ascii_case(b"yes") {
        Some(true)
    } else {
        value.eq_ignore_ascii_case(b"no").then_some(false)
    }
}

unsafe extern "C" fn get(_: *const c_char, data: *mut c_void) -> c_int {
    edge::guard("get", 0, || {
        // SAFETY: it is the registered pointer: a switch that lives as long as the program.
        let switch = unsafe { &*data.cast::<Switch>() };
        switch.get().into()
    })
}

unsafe extern "C" fn set(
    _: *const c_char,
    value: c_int,
    data: *mut c_void,
    error: *mut *mut Text,
) -> c_int {
    edge::guard("set", api::ERR, || {
        // SAFETY: it is the registered pointer, as above; the server takes a null error for none.
        let switch = unsafe {
            *error = null_mut();
            &*data.cast::<Switch>()
        };
        switch.set(value != 0);
        api::OK
    })
}
