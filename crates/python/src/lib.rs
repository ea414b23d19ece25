//! The native part of the Python package `sluicegate`: the module `sluicegate._native`.
//!
//! It exposes the library to Python, and decides nothing by itself. `limiter` has the calls and `hold` the units held;
//! `request` is a call with its arguments, in the form in which it runs on a task. Calls of a store in another process
//! run on the runtime of `runtime`: a synchronous one blocks, and an asynchronous one ends by way of `bridge`.

mod arguments;
mod bridge;
mod decision;
mod errors;
mod fork;
mod hold;
mod http;
mod limiter;
mod policy;
mod request;
mod runtime;
mod usage;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<limiter::Limiter>()?;
    module.add_class::<limiter::PendingCall>()?;
    module.add_class::<policy::Policy>()?;
    module.add_class::<decision::Decision>()?;
    module.add_class::<limiter::ManualClock>()?;
    module.add_class::<hold::Hold>()?;
    module.add_class::<bridge::Bridge>()?;
    fork::prepare();
    module.add_function(wrap_pyfunction!(http::client_network, module)?)?;
    module.add_function(wrap_pyfunction!(http::unavailable_problem, module)?)?;
    module.add_function(wrap_pyfunction!(usage::usage, module)?)?;
    module.add_function(wrap_pyfunction!(usage::window, module)?)?;
    module.add_function(wrap_pyfunction!(usage::keys, module)?)?;
    module.add_function(wrap_pyfunction!(usage::delete_matching, module)?)?;
    module.add_function(wrap_pyfunction!(policy::hold_ttl, module)?)?;
    module.add_function(wrap_pyfunction!(policy::limit_text, module)?)
}
