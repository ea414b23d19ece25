//! Servers with the module.

use sluicegate_testing::{Engine, Server};
pub(crate) use sluicegate_testing::{module, target};

/// With the module and nothing else.
pub(crate) fn serve(engine: Engine) -> Server {
    serve_with(engine, &[])
}

/// With the module, which takes `AT`.
pub(crate) fn with_test_clock(engine: Engine) -> Server {
    serve_with(engine, &["test-clock", "yes"])
}

/// With the module loaded with these arguments.
pub(crate) fn serve_with(engine: Engine, arguments: &[&str]) -> Server {
    Server::with(engine, &[&["--loadmodule", module()], arguments].concat())
}
