//! Servers with the module.

use sluicegate_testing::{Engine, Server};
pub(crate) use sluicegate_testing::{module, target};

/// A server with the module, and no options.
pub(crate) fn serve(engine: Engine) -> Server {
    serve_with(engine, &[])
}

/// A server with the module, which accepts `AT`.
pub(crate) fn with_test_clock(engine: Engine) -> Server {
    serve_with(engine, &["test-clock", "yes"])
}

/// A server with the module, loaded with these arguments.
pub(crate) fn serve_with(engine: Engine, arguments: &[&str]) -> Server {
    Server::with(engine, &[&["--loadmodule", module()], arguments].concat())
}
