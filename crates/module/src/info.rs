//! `INFO sluicegate`.

use std::ffi::{CStr, c_int};

use crate::{
    api::{InfoCtx, api},
    context::has_no_consumers,
    edge, stats, wait,
};

/// `INFO sluicegate`.
pub(crate) unsafe extern "C" fn info_callback(info: *mut InfoCtx, _: c_int) {
    edge::guard("info", (), || {
        // SAFETY: the server passed it for this call; the names are C strings.
        unsafe {
            (api().info_section)(info, c"".as_ptr());
            for (name, value) in fields() {
                (api().info_number)(info, name.as_ptr(), value);
            }
        }
    });
}

/// All fields of `INFO sluicegate`.
fn fields() -> [(&'static CStr, u64); 8] {
    let (allowed, denied) = (stats::ALLOWED.get(), stats::DENIED.get());
    [
        (c"decisions", allowed + denied),
        (c"allowed", allowed),
        (c"denied", denied),
        (c"errors", stats::ERRORS.get()),
        (c"policies_parsed", stats::PARSED.get()),
        (c"waiting", wait::waiting() as u64),
        (c"panics", stats::PANICS.get()),
        // 1 while there is neither an append-only file nor a replica.
        (c"replication_idle", has_no_consumers().into()),
    ]
}
